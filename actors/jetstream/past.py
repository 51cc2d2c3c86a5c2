"""The past out of the stream, for a log that began after a base when no other node can give it."""

from __future__ import annotations

from actors.archive import PAGE, PAGE_BYTES
from actors.jetstream.messages import decode
from actors.jetstream.store import Store
from events.replication import place_of


class Past:
    """Each message costs a question to the servers, so it is for want of a better source."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0

    async def upto(self, decision_id: int) -> list[bytes]:
        """Some decisions, the last one of them this; none where the stream ends before it.

        Raises what `store.UNREACHABLE` names.
        """
        entries = await self._message_of(decision_id)
        page: list[bytes] = []
        while entries and len(page) < PAGE and sum(map(len, page)) < PAGE_BYTES:
            page = entries + page
            self._number -= 1
            entries = await self._read(self._number) if self._number else []
        return page

    async def _message_of(self, decision_id: int) -> list[bytes]:
        """The decisions, up to this one, of the message that has it; `_number` is the message's."""
        if not self._number or decision_id not in _ids(await self._read(self._number)):
            self._number = await self._find(decision_id)
        entries = await self._read(self._number) if self._number else []
        return [entry for entry, each in zip(entries, _ids(entries), strict=True) if each <= decision_id]

    async def _find(self, decision_id: int) -> int:
        """The number of the message that has a decision; 0 where none has."""
        low, high = 1, (await self._store.js.stream_info(self._store.stream)).state.last_seq
        if not high or decision_id not in range(1, _ids(await self._read(high))[-1] + 1):
            return 0
        while low < high:
            middle = (low + high) // 2
            if _ids(await self._read(middle))[-1] < decision_id:
                low = middle + 1
            else:
                high = middle
        return low

    async def _read(self, number: int) -> list[bytes]:
        return decode((await self._store.js.get_msg(self._store.stream, number)).data or b"")


def _ids(entries: list[bytes]) -> range:
    """Decisions of a message follow each other."""
    first = place_of(entries[0]).decision_id if entries else 1
    return range(first, first + len(entries))
