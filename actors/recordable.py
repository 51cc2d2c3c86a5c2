"""What no log can hold is refused before anything rests on it: text that is no UTF-8, say."""

from __future__ import annotations

import logging

from actors.refusal import Rejected
from events.errors import DraftRefused
from events.record import Draft
from events.to_rows import EncodedDraft
from events.values import Cause

logger = logging.getLogger("cuebook.master")


def encoded_draft(draft: Draft) -> EncodedDraft:
    """The draft as text. Raises `Rejected` for what no log can hold."""
    try:
        return EncodedDraft(draft)
    except DraftRefused as error:
        raise not_recordable(error) from error


def not_recordable(error: Exception) -> Rejected:
    """The refusal of a command or report that can't be encoded, for ``error``."""
    logger.error("A command or report is refused", exc_info=error)
    return Rejected(Cause(code="not_recordable", message=str(error)))
