"""The lease: a key that its holder renews, and that vanishes when it doesn't.

Its revision when it is taken is the term: revisions only grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError

from actors.jetstream.store import LEASE_S, UNREACHABLE, Store, told
from actors.ordering.interface import Member
from actors.ordering.leased import Granted, Holder, Input, Lost

logger = logging.getLogger("cuebook.jetstream")

KEY = "leader"
LOOK_S = 0.5
"""Between two looks at who holds the lease, of those who would like to."""
RENEW_S = 1.0
HESITANT_S = 30.0
"""So long a lease must have been free for a node that leads only where no other does."""
MARGIN_S = 0.3
"""The holder counts its lease as lost so much before it can be another's."""
_RETRY_S = 0.1
_ANSWER_S = 1.0


class Lease:
    """Takes the lease whenever it is free and keeps it. ``post`` is told on the loop."""

    def __init__(self, store: Store, me: Member, post: Callable[[Input], None]) -> None:
        self._store = store
        self._name = f"{me.node_id} {me.incarnation}".encode()
        self._post = post
        self._now = asyncio.get_running_loop().time
        self._heard_at = self._now()
        self._free_since: float | None = None
        self._given_up = asyncio.Event()
        self.hesitant = False
        """True while others shall lead, where there are any."""
        self.term = 0
        """Of the lease that is held, 0 while none is."""

    def give_up(self, term: int) -> None:
        """Give the lease of this term back and look again later; nothing where it isn't held any more."""
        if term and term == self.term:
            self._given_up.set()

    async def run(self) -> None:
        """Look, take, hold; for ever."""
        while True:
            revision = await self._take()
            if revision:
                await self._hold(revision)
            await asyncio.sleep(LOOK_S)

    async def _take(self) -> int:
        """The revision under which the lease is ours now; 0 where it isn't."""
        leases = self._store.leases
        try:
            async with asyncio.timeout(_ANSWER_S):
                revision = await self._look()
                if revision is None:
                    if self._hesitates():
                        return 0
                    revision = await leases.create(KEY, self._name)
                elif revision:  # an answer to us was lost
                    revision = await leases.update(KEY, self._name, last=revision)
        except KeyWrongLastSequenceError:
            return 0  # another was faster
        except UNREACHABLE as error:
            if self._now() - self._heard_at > LEASE_S:
                logger.debug("Nobody can say who holds the lease: %s", told(error))
                self._post(Holder(""))
            return 0
        return revision

    def _hesitates(self) -> bool:
        self._free_since = self._now() if self._free_since is None else self._free_since
        return self.hesitant and self._now() - self._free_since < HESITANT_S

    async def _look(self) -> int | None:
        """The lease's revision where it is ours, 0 where another has it, None where it is free."""
        try:
            entry = await self._store.leases.get(KEY)
        except KeyNotFoundError:
            self._heard_at = self._now()
            self._post(Holder(""))
            return None
        self._heard_at, self._free_since = self._now(), None
        if entry.value == self._name:
            return entry.revision or 0
        self._post(Holder((entry.value or b"").split()[0].decode()))
        return 0

    async def _hold(self, revision: int) -> None:
        """Renew the lease until it is lost or given up."""
        self.term, until = revision, self._now() + LEASE_S - _ANSWER_S
        self._given_up.clear()
        try:
            async with asyncio.timeout(_ANSWER_S):
                upto = (await self._store.js.stream_info(self._store.stream)).state.last_seq
            self._post(Granted(self.term, upto))
            revision = await self._keep(revision, until)
        except UNREACHABLE as error:
            logger.warning("The lease is given up: %s", told(error))
        term, self.term = self.term, 0
        self._free_since = None
        self._post(Lost(term))
        await self._free(revision)

    async def _keep(self, revision: int, until: float) -> int:
        """Returns the last known revision once the lease is lost or given up."""
        pause = RENEW_S
        while not await self._asked_to_give_up(pause):
            sent = self._now()
            left = until - MARGIN_S - sent
            if left <= 0:
                logger.warning("The lease could not be renewed in time")
                return revision
            try:
                async with asyncio.timeout(min(_ANSWER_S, left)):
                    revision = await self._renewed(revision)
            except UNREACHABLE as error:
                logger.debug("The lease could not be renewed: %s", told(error))
                pause = _RETRY_S
                continue
            if not revision:
                logger.warning("The lease is another's")
                return 0
            until, pause = sent + LEASE_S, RENEW_S
        return revision

    async def _renewed(self, revision: int) -> int:
        """The new revision; 0 where the lease is not ours any more."""
        leases = self._store.leases
        try:
            return await leases.update(KEY, self._name, last=revision)
        except KeyWrongLastSequenceError:
            with contextlib.suppress(KeyNotFoundError):
                entry = await leases.get(KEY)
                if entry.value == self._name and entry.revision:  # an earlier renewal had no answer
                    return await leases.update(KEY, self._name, last=entry.revision)
            return 0

    async def _asked_to_give_up(self, within: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._given_up.wait()
        return self._given_up.is_set()

    async def _free(self, revision: int) -> None:
        """Let others take the lease at once, where it is still ours."""
        if revision:
            with contextlib.suppress(*UNREACHABLE):
                async with asyncio.timeout(_ANSWER_S):
                    await self._store.leases.delete(KEY, last=revision)

    async def stop(self) -> None:
        """Free the lease where it is held; the loop of `run` must have been cancelled."""
        with contextlib.suppress(*UNREACHABLE, APIError):
            async with asyncio.timeout(_ANSWER_S):
                entry = await self._store.leases.get(KEY)
                if entry.value == self._name and entry.revision:
                    await self._store.leases.delete(KEY, last=entry.revision)
