"""Decisions that are yet to be accepted elsewhere: numbered and chained after a tail, in no log so far."""

from __future__ import annotations

from collections.abc import Sequence

from events.ends import Tail
from events.replication import encode_entry
from events.to_rows import Batch, EncodedDraft


def propose(drafts: Sequence[EncodedDraft], after: Tail) -> tuple[list[bytes], Tail]:
    """The entries of decisions that would follow ``after``, and where a log ends that has them.

    `EventLog.append_entries` takes them once it ends at ``after``.
    """
    entries: list[bytes] = []
    for draft in drafts:
        batch = Batch(after)
        batch.add(draft)
        *columns, own_hash = batch.decisions[0]
        entries.append(encode_entry(after, columns, own_hash, batch.events))
        after = batch.tail
    return entries, after
