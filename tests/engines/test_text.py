"""Incremental detokenizing and stop strings, against the tokenizer's own decoding of everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import VOCAB, tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

from engines.answer import Answer
from engines.text import StopStrings, Vocabulary

BYTE_LEVEL = tiny_tokenizer()
BYTE_LEVEL.add_tokens([AddedToken("<ö x>", normalized=False)])


def _sentencepiece(*, strip: bool) -> Tokenizer:
    """Llama 2's kind of decoder (with strip) and Gemma's (without): spaces are ▁, unknown text is bytes."""
    words = ["<unk>", "▁", "▁sea", "sea", "s", "東", "京", "▁▁", "é", "\n", "\ufffd"]
    vocab = {w: i for i, w in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def _word_piece() -> Tokenizer:
    words = ["[UNK]", "the", "sea", "##s", "##ide", ",", ".", "don", "'", "t", "東"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


TOKENIZERS = {
    "byte level": BYTE_LEVEL,
    "sentencepiece": _sentencepiece(strip=True),
    "sentencepiece without strip": _sentencepiece(strip=False),
    "word piece": _word_piece(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_joined_text_is_the_tokenizers_decoding(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = st.integers(
        0, tokenizer.get_vocab_size() + 2
    )  # the last ones are unknown, as in a padded vocabulary
    tokens = data.draw(st.lists(ids, max_size=40))
    detokenizer = Vocabulary(tokenizer).detokenizer()
    text = "".join([detokenizer.add(t) for t in tokens]) + detokenizer.finish()
    assert text == tokenizer.decode(tokens, skip_special_tokens=False)


@given(st.text(max_size=60))
def test_a_character_is_never_cut(text: str) -> None:
    detokenizer = Vocabulary(BYTE_LEVEL).detokenizer()
    pieces = [detokenizer.add(token) for token in BYTE_LEVEL.encode(text).ids]
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def _reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule, written for the whole text at once: the match that ends first, then the longest of those."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_stop_strings_do_not_depend_on_chunk_borders(chunks: list[str], stops: list[str]) -> None:
    wanted, stopped = _reference("".join(chunks), stops)
    held = StopStrings(stops)
    shown, met = "", False
    for chunk in chunks:
        safe, met = held.push(chunk)
        shown += safe
        assert wanted.startswith(shown), "a part of a stop string was shown"
        if met:
            break
    assert (shown if met else shown + held.flush(), met) == (wanted, stopped)


@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=30),
    st.lists(st.text("abc te\nµß", min_size=1, max_size=3), max_size=3),
)
def test_an_answer_shows_the_text_before_the_stop_and_its_tokens(tokens: list[int], stops: list[str]) -> None:
    answer = Answer(Vocabulary(BYTE_LEVEL), stops)
    text, shown = "", []
    for token in tokens:
        step = answer.add(token, None)
        text, shown = text + step.text, shown + step.tokens
        if answer.stopped:
            break
    if not answer.stopped:
        step = answer.finish()
        text, shown = text + step.text, shown + step.tokens
    whole = BYTE_LEVEL.decode(tokens, skip_special_tokens=False)
    assert text == _reference(whole, stops)[0]
    assert shown == tokens[: len(shown)]
    assert BYTE_LEVEL.decode(shown, skip_special_tokens=False).startswith(text)
    if not answer.stopped:
        assert shown == tokens
