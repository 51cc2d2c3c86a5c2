"""What a sender may get instead of an answer. None of these says that the actor is broken."""

from __future__ import annotations

from events.values import Cause


class Rejected(Exception):
    """The actor understood and refuses. The caller sees ``cause``; the actor is well and goes on."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class StartFailed(Rejected):
    """A child could not be started; ``__cause__`` is the error that it met. The supervisor is well."""


class MailboxFull(Exception):
    """The actor has as many messages waiting as it takes. Try again after ``retry_after`` seconds."""

    def __init__(self, actor: str, retry_after: float) -> None:
        super().__init__(f"{actor} has its mailbox full; try again in {retry_after:g} s")
        self.actor = actor
        self.retry_after = retry_after


class Stopped(Exception):
    """The actor was not there to answer: not started, stopping, crashed or being restarted.

    The message may or may not have been handled. Asking again is safe where a repetition is.
    """

    def __init__(self, actor: str, why: str = "is not running") -> None:
        super().__init__(f"{actor} {why}")
        self.actor = actor
