"""What can go wrong with a model's description, files or source. Each error carries a `Cause` for people."""

from __future__ import annotations

from events.values import Cause


class ModelError(Exception):
    """Root of the errors of the model store; ``cause.message`` says what to do."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class CardError(ModelError):
    """A model that can't be served, or whose config.json would be read wrongly."""


class StoreError(ModelError):
    """Files that are missing, broken, or have no room."""


class FetchError(ModelError):
    """A fetch that failed. ``retryable`` is true where the same fetch may succeed later by itself."""

    def __init__(self, cause: Cause, *, retryable: bool) -> None:
        super().__init__(cause)
        self.retryable = retryable


class FetchCancelled(Exception):
    """The fetch was told to stop; what it has so far is kept for the next one."""


class Unknown(ModelError):
    """No source knows the model id; ``cause.message`` lists near matches."""


def refusal(code: str, message: str, **detail: str | int | float) -> Cause:
    """A `Cause` in one line."""
    return Cause(code=code, message=message, detail=detail)
