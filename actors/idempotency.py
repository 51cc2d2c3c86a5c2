"""A command's id is its idempotency key: a repeated command gets the first answer, another one a refusal."""

from __future__ import annotations

from actors.refusal import Rejected
from events.base import Command
from events.record import Committed
from events.values import Cause


def first_answer(first: Committed, command: Command) -> Committed:
    """The first answer to a repeated command. Raises `Rejected` where it was refused, or is another one."""
    check_same(first.command, command, f"decision {first.decision_id}")
    if first.rejection is not None:
        raise Rejected(first.rejection)
    return first


def check_same(first: Command, command: Command, where: str) -> None:
    """Refuse (`Rejected`) a command that has the id of another one, which is ``where``."""
    if first != command:
        message = (
            f"{command.command_id} was the key of another request, {where}: use a new key for a new request."
        )
        raise Rejected(Cause(code="idempotency_key_reused", message=message))
