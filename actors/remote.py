"""Commands between masters: a follower's master passes on what it is asked, the leader's decides.

The answer says little: what was decided comes to the follower with the log, like everything else.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from actors.refusal import Rejected
from events.base import Command
from events.codec import COMMANDS, encode
from events.values import Cause


class Unchanged(NamedTuple):
    """The answer to a report that changes nothing, given on the log up to event ``seq``.

    It counts for a node once its own log has that event: what makes the report no news may yet be lost with
    the master, and then it is news.
    """

    seq: int


class Answer(msgspec.Struct, frozen=True):
    """``committed``: it is in the log, or will be here soon. ``nothing``: a report that is `Unchanged`.

    ``rejected``: refused without a record, for ``cause``. ``unavailable``: ask again, perhaps another node.
    """

    outcome: Literal["committed", "nothing", "rejected", "unavailable"]
    cause: Cause | None = None
    seq: int = 0


_decode_answer = msgspec.json.Decoder(Answer).decode


def encode_command(command: Command) -> bytes:
    """The bytes of a command on its way to another master."""
    return encode(command).encode()


def decode_command(payload: bytes) -> Command:
    """The command of another node. Raises `msgspec.MsgspecError`."""
    return COMMANDS.decode_current(payload.decode())


def encode_answer(said: object, error: BaseException | None) -> bytes:
    """The bytes of what this node's master said: a Committed, an `Unchanged`, or an exception."""
    if isinstance(error, Rejected):
        answer = Answer("rejected", error.cause)
    elif error is not None:
        answer = Answer("unavailable")
    elif isinstance(said, Unchanged):
        answer = Answer("nothing", seq=said.seq)
    else:
        answer = Answer("committed")
    return encode(answer).encode()


def decode_answer(payload: bytes) -> Answer:
    """What another node's master said. Raises `msgspec.MsgspecError`."""
    return _decode_answer(payload)
