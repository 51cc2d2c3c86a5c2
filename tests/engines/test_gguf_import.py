import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file
from support.tiny import tiny_tokenizer
from support.tiny_gguf import HEAD_DIM, HEADS, HIDDEN, KV, KV_HEADS, LAYERS, TEMPLATE, write_gguf
from tokenizers import Tokenizer

from engines import gguf_import
from engines.cards import card_from_directory
from engines.gguf_import import import_gguf, unpermute
from engines.model_errors import FetchCancelled, StoreError


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """convert_hf_to_gguf.py of llama.cpp, word for word: what the importer has to undo."""
    return (
        rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        .swapaxes(1, 2)
        .reshape(rows.shape)
    )


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_unpermute_undoes_llama_cpp() -> None:
    rows = np.arange(6 * 8 * 3, dtype=np.float32).reshape(48, 3)
    assert not np.array_equal(permute(rows, 6), rows)
    assert np.array_equal(unpermute(permute(rows, 6), 6), rows)


def test_every_tensor_is_the_dequantised_one_in_its_place(tiny_gguf: Path, tmp_path: Path) -> None:
    import_gguf(tiny_gguf, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    read = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in GGUFReader(tiny_gguf).tensors}
    assert len(written) == len(read) == 2 + 9 * LAYERS
    assert all(tensor.dtype == np.float32 for tensor in written.values())
    layer = "model.layers.1"
    assert np.array_equal(
        permute(written[f"{layer}.self_attn.q_proj.weight"], HEADS), read["blk.1.attn_q.weight"]
    )
    assert np.array_equal(
        permute(written[f"{layer}.self_attn.k_proj.weight"], KV_HEADS), read["blk.1.attn_k.weight"]
    )
    for name, origin in {
        f"{layer}.self_attn.v_proj": "blk.1.attn_v",
        f"{layer}.self_attn.o_proj": "blk.1.attn_output",
        f"{layer}.mlp.gate_proj": "blk.1.ffn_gate",
        f"{layer}.mlp.up_proj": "blk.1.ffn_up",
        f"{layer}.mlp.down_proj": "blk.1.ffn_down",
        f"{layer}.input_layernorm": "blk.1.attn_norm",
        f"{layer}.post_attention_layernorm": "blk.1.ffn_norm",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
    }.items():
        assert np.array_equal(written[f"{name}.weight"], read[f"{origin}.weight"]), name


def test_qwen2_rows_stay_where_they_are_and_biases_come_along(tmp_path: Path) -> None:
    biases = {
        f"blk.{n}.attn_{p}.bias": np.zeros(HIDDEN if p == "q" else KV) for n in range(LAYERS) for p in "qkv"
    }
    path = write_gguf(tmp_path / "q.gguf", "qwen2", pre="qwen2", extra=biases)
    import_gguf(path, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    read = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}
    assert np.array_equal(written["model.layers.0.self_attn.q_proj.weight"], read["blk.0.attn_q.weight"])
    assert np.array_equal(written["model.layers.0.self_attn.k_proj.bias"], read["blk.0.attn_k.bias"])


def test_the_config_says_rope_theta_where_each_engine_looks(tiny_gguf: Path, tmp_path: Path) -> None:
    import_gguf(tiny_gguf, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    card = card_from_directory(tmp_path)
    assert (card.n_layers, card.n_kv_heads, card.head_dim, card.max_context) == (
        LAYERS,
        KV_HEADS,
        HEAD_DIM,
        512,
    )
    assert card.has_chat_template


def test_the_tokenizer_reads_and_writes_as_the_original(tiny_gguf: Path, tmp_path: Path) -> None:
    import_gguf(tiny_gguf, tmp_path)
    rebuilt, original = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), tiny_tokenizer()
    for text in ("The stage is dark.", "Señor Müller 東京 🙂", "<|im_start|>user\nGo<|im_end|>", "  a\n\nb"):
        assert rebuilt.encode(text).ids == original.encode(text).ids
        assert rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) == text
    assert rebuilt.encode("2026").tokens == list("2026")  # smollm: every digit by itself
    end = rebuilt.token_to_id("<|im_end|>")
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == end
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert (tmp_path / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", 0, False),
        ("qwen2", None, False),
        ("qwen2", 1, True),
    ],
)
def test_a_text_begins_with_bos_where_it_does_in_llama_cpp(
    tmp_path: Path, pre: str, said: int | None, begins: bool
) -> None:
    fields = {} if said is None else {"tokenizer__ggml__add_bos_token": said}
    import_gguf(write_gguf(tmp_path / "bos.gguf", pre=pre, **fields), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert (tokenizer.encode("Go.").ids[0] == tokenizer.token_to_id("<|im_start|>")) == begins


def test_large_models_are_written_in_shards(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_gguf(tiny_gguf, tmp_path / "whole")
    monkeypatch.setattr(gguf_import, "SHARD_BYTES", 60_000)
    import_gguf(tiny_gguf, tmp_path / "shards")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 2
    together = {name: tensor for file in files for name, tensor in load_file(file).items()}
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert together.keys() == whole.keys()
    assert all(np.array_equal(together[name], whole[name]) for name in whole)
    assert card_from_directory(tmp_path / "shards", "m") == card_from_directory(tmp_path / "whole", "m")


def test_progress_counts_the_bytes_written(tiny_gguf: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    import_gguf(tiny_gguf, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (card_from_directory(tmp_path).weight_bytes,) * 2


@pytest.mark.parametrize(
    ("arch", "options", "sentence"),
    [
        ("gemma3", {}, "its architecture is 'gemma3'"),
        ("llama", {"llama__expert_count": 8}, "mixture of experts"),
        ("llama", {"llama__rope__scaling__type": "yarn"}, "scales its rotary embedding"),
        ("llama", {"llama__rope__dimension_count": 8}, "a part of each head"),
        ("llama", {"tokenizer": "llama"}, "tokenizer 'llama'"),
        ("llama", {"pre": "never-heard-of"}, "pre-tokenizer 'never-heard-of'"),
        ("llama", {"extra": {"rope_freqs.weight": np.zeros(8)}}, "'rope_freqs.weight' has no place"),
    ],
)
def test_what_can_t_be_taken_over_exactly_is_refused(
    tmp_path: Path, arch: str, options: dict[str, object], sentence: str
) -> None:
    path = write_gguf(tmp_path / "odd.gguf", arch, **options)  # type: ignore[arg-type]
    with pytest.raises(StoreError) as caught:
        import_gguf(path, tmp_path / "out")
    assert sentence in caught.value.cause.message
    assert "safetensors files instead" in caught.value.cause.message


@pytest.mark.parametrize("keep", [0, 3, 200, 20_000])
def test_a_cut_file_is_said_so(tiny_gguf: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "cut.gguf").write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"cut\.gguf is not a whole GGUF file"):
        import_gguf(tmp_path / "cut.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("there", "instead"),
    [(b"gpt2", b"\xff\xff\xff\xff"), ("Ġs t".encode(), "Ġs_t".encode())],
)
def test_a_file_with_other_bytes_in_its_fields_is_said_so(
    tiny_gguf: Path, tmp_path: Path, there: bytes, instead: bytes
) -> None:
    content = tiny_gguf.read_bytes()
    assert there in content
    (tmp_path / "odd.gguf").write_bytes(content.replace(there, instead, 1))
    with pytest.raises(StoreError, match=r"odd\.gguf is not a whole GGUF file"):
        import_gguf(tmp_path / "odd.gguf", tmp_path / "out")


def test_what_the_watcher_raises_is_not_the_files_fault(tiny_gguf: Path, tmp_path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise FetchCancelled

    with pytest.raises(FetchCancelled):
        import_gguf(tiny_gguf, tmp_path, stop)
