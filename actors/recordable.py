"""What no log can hold is refused before anything rests on it: text that is no UTF-8, say."""

from __future__ import annotations

import logging

from actors.refusal import Rejected
from events.ends import EMPTY
from events.errors import DraftRefused
from events.proposals import propose
from events.record import Draft
from events.to_rows import EncodedDraft
from events.values import Cause

logger = logging.getLogger("cuebook.master")


_ROW = 512  # bytes of a row, at most, that are in no text of a command or an event


def encoded_draft(draft: Draft, max_entry: int = 0) -> EncodedDraft:
    """The draft as text. Raises `Rejected` for what no log can hold.

    ``max_entry`` is that of `actors.journal.Standing`.
    """
    try:
        encoded = EncodedDraft(draft)
        if max_entry:
            _check_size(encoded, max_entry)
    except DraftRefused as error:
        raise not_recordable(error) from error
    return encoded


def _check_size(encoded: EncodedDraft, max_entry: int) -> None:
    """Raises `DraftRefused`. Most are so small that a look at the texts is enough."""
    texts = (encoded.command, encoded.facts, encoded.reason or "", *encoded.bodies)
    rows = _ROW * (1 + len(encoded.bodies))
    if 8 * sum(map(len, texts)) + rows <= max_entry:  # 4 bytes a character, in a text and maybe in a column
        return
    ((entry,), _) = propose([encoded], EMPTY)
    if len(entry) + rows > max_entry:
        raise DraftRefused(
            f"{encoded.command_type} makes a decision of {len(entry):,} bytes, which is more than the NATS "
            f"servers take: {max_entry:,}, by their max_payload.",
            encoded.command_id,
        )


def not_recordable(error: Exception) -> Rejected:
    """The refusal of a command or report that can't be encoded, for ``error``."""
    logger.error("A command or report is refused", exc_info=error)
    return Rejected(Cause(code="not_recordable", message=str(error)))
