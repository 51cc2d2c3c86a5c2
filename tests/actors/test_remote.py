"""What masters say to each other about a command: it comes out as it went in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories import History

from actors.refusal import MailboxFull, Rejected, Stopped
from actors.remote import Answer, Unchanged, decode_answer, decode_command, encode_answer, encode_command
from events.values import Cause

REFUSAL = Cause(code="does_not_fit", message="It fits nowhere.", detail={"free": 5})


@given(st.integers(0, 1 << 32))
def test_every_kind_of_command_arrives_as_it_was(seed: int) -> None:
    for draft in History(seed).take(20):
        assert decode_command(encode_command(draft.command)) == draft.command


@pytest.mark.parametrize(
    ("committed", "error", "answer"),
    [
        (object(), None, Answer("committed")),
        (Unchanged(7), None, Answer("nothing", seq=7)),
        (None, Rejected(REFUSAL), Answer("rejected", REFUSAL)),
        (None, Stopped("the master", "leads no longer"), Answer("unavailable")),
        (None, MailboxFull("master", 0.1), Answer("unavailable")),
        (None, OSError("a bug"), Answer("unavailable")),
    ],
)
def test_an_answer_says_what_became_of_it(
    committed: object, error: BaseException | None, answer: Answer
) -> None:
    assert decode_answer(encode_answer(committed, error)) == answer


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_command(b'{"type":"LaunchRockets"}')
    with pytest.raises(msgspec.MsgspecError):
        decode_answer(b"{}")
