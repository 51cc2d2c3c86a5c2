"""The journal's side of JetStream, on a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from actors.deferred import Deferred
from actors.jetstream.lease import Lease
from actors.jetstream.messages import decode, encode
from actors.jetstream.past import Past
from actors.jetstream.publisher import HEADROOM, Publisher
from actors.jetstream.store import UNREACHABLE, Store, open_store, patiently
from actors.jetstream.subscriber import StreamChanged, Subscriber
from actors.net.nats import NatsSettings, connect
from actors.net.transport import TransportError
from actors.ordering.interface import Member
from actors.ordering.leased import Common, Delivered, Granted, Input, Lost, Publish
from events.errors import LogIncomplete
from events.replication import place_of

logger = logging.getLogger("cuebook.jetstream")


class Failed(NamedTuple):
    """The client can't go on; start it anew."""

    error: Exception


class _Begun(Exception):
    """The log, empty until now, has begun after a base."""


class LocalLog(Protocol):
    """The node's log, as it is compared with the stream."""

    def bounds(self) -> tuple[int, int]:
        """The index that it begins after, and the last one."""
        ...

    def hash_at(self, index: int) -> str:
        """What the entry at ``index`` has in no other history."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


OpenLog = Callable[[], LocalLog]
Post = Callable[[Input | Failed], None]


class JetStream:
    """Posts `leased.Input` and `Failed` to the journal, which carries out what the state machine wants.

    ``post`` is called on the client's thread. After each `Delivered` comes no other until `taken`.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._ended = asyncio.Event()
        self._taken = asyncio.Event()
        self._begun = False
        self._hesitant = False
        self._publisher: Publisher | None = None
        self._lease: Lease | None = None
        self._past: Past | None = None
        self._asked: asyncio.Task[None] | None = None
        self.max_entry = 0
        """Bytes of the largest entry that the servers take."""

    def start(
        self, me: Member, log: Callable[[], LocalLog], post: Callable[[Input | Failed], None]
    ) -> Common:
        """Connect and begin. Returns where log and stream part; the stream from there on is delivered.

        ``log`` opens the log on this client's thread. Raises `TransportError`, or `LogIncomplete` for a log
        whose base the stream does not have.
        """
        common: Deferred[Common] = Deferred()
        self._thread = threading.Thread(
            target=self._run, args=(me, log, post, common), name="jetstream", daemon=True
        )
        self._thread.start()
        return common.get()

    def stop(self) -> None:
        """Give back the lease where it is held, and end. Nothing is posted any more. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._call(self._ended.set)
            thread.join()

    def publish(self, batch: Publish) -> None:
        """Publish a batch of the current term; `Lost` follows where that fails."""
        if self._publisher is not None:
            self._call(self._publisher.offer, batch)

    def resign(self, term: int) -> None:
        """Give back the lease of this term, if it is held."""
        if self._lease is not None:
            self._call(self._lease.give_up, term)

    def taken(self) -> None:
        """What was delivered last is in the log."""
        self._call(self._taken.set)

    def begun(self) -> None:
        """What was delivered last is of no use: the log has begun after a base. Compare it anew."""
        self._begun = True
        self.taken()

    def past(self, upto: int) -> Deferred[bytes]:
        """Decisions of the stream that end with this one, as `actors.archive.decode_past` takes them.

        One question at a time.
        """
        answer = Deferred[bytes]()
        self._call(self._ask_past, upto, answer)
        return answer

    def hesitate(self, hesitant: bool) -> None:
        """Take the lease only where nobody else does, or as soon as it is free."""
        self._hesitant = hesitant
        if self._lease is not None:
            self._lease.hesitant = hesitant

    def _call(self, call: Callable[..., Any], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended with its thread
            self._loop.call_soon_threadsafe(call, *args)

    def _run(
        self,
        me: Member,
        log: OpenLog,
        post: Post,
        common: Deferred[Common],
    ) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live(me, log, post, common))
            except Exception as error:
                if not common.fail(error):
                    post(Failed(error))

    async def _live(
        self,
        me: Member,
        log: OpenLog,
        post: Post,
        common: Deferred[Common],
    ) -> None:
        client = await connect(self._settings)
        try:
            store = await open_store(client, self._settings.cluster)
            self.max_entry = client.max_payload - HEADROOM
            await self._work(store, me, log, post, common)
        finally:
            await client.close()

    async def _work(
        self, store: Store, me: Member, log: OpenLog, post: Post, common: Deferred[Common]
    ) -> None:
        def tell(event: Input) -> None:
            if isinstance(event, Granted):
                publisher.begin(event)
            elif isinstance(event, Lost):
                publisher.end()
            post(event)

        found = await patiently(partial(_common, store, log))
        lease = self._lease = Lease(store, me, tell)
        lease.hesitant = self._hesitant
        publisher = self._publisher = Publisher(store, lambda: lease.give_up(lease.term))
        common.resolve(found)
        follow = self._follow(store, publisher, log, post, found)
        work = [lease.run(), publisher.run(), follow, self._ended.wait()]
        tasks = [asyncio.ensure_future(each) for each in work]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await lease.stop()
        for task in done:
            task.result()

    def _ask_past(self, upto: int, answer: Deferred[bytes]) -> None:
        self._asked = asyncio.ensure_future(self._answer_past(upto, answer))

    async def _answer_past(self, upto: int, answer: Deferred[bytes]) -> None:
        try:
            answer.resolve(encode(await self._past.upto(upto) if self._past is not None else []))
        except UNREACHABLE as error:
            answer.fail(error)

    async def _follow(
        self, store: Store, publisher: Publisher, log: OpenLog, post: Post, found: Common
    ) -> None:
        """Deliver what the stream holds from ``found`` on, for ever; anew where it has lost something."""

        async def deliver(batch: Delivered) -> None:
            self._taken.clear()
            post(batch)
            await self._taken.wait()
            if self._begun:
                self._begun = False
                raise _Begun

        while True:
            self._past = Past(store)
            try:
                await Subscriber(store, found.number, deliver).run()
            except StreamChanged as change:
                logger.warning("The log is compared with its stream again: %s", change)
            except _Begun:
                logger.info("The log has begun after a base: it is compared with its stream")
            store, found = await self._compared_again(store, log)
            publisher.move(store)
            post(found)

    async def _compared_again(self, store: Store, log: OpenLog) -> tuple[Store, Common]:
        while True:
            try:
                opened = await open_store(store.client, self._settings.cluster)
                return opened, await patiently(partial(_common, opened, log))
            except TransportError as error:
                logger.warning("%s", error)


async def _common(store: Store, log: OpenLog) -> Common:
    with contextlib.closing(log()) as opened:
        return await _compared(store, opened)


async def _compared(store: Store, log: LocalLog) -> Common:
    """Where log and stream part.

    Entries are chained: where two are the same, so is all before them. So halving finds it.
    """
    begins, last = log.bounds()
    low, high = 0, (await store.js.stream_info(store.stream)).state.last_seq
    found, ends, number = 0, 0, high  # most often the last message is the answer
    while low < high:
        place = place_of((await _message(store, number))[-1])
        ends = ends or place.decision_id
        if place.decision_id < begins or (
            place.decision_id <= last and place.hash == log.hash_at(place.decision_id)
        ):
            low, found = number, place.decision_id
        else:
            high = number - 1
        number = (low + high + 1) // 2
    if ends < begins:
        logger.warning(
            "This log lacks its past up to decision %d, and the stream %s ends at %d: it waits for a node "
            "that has the past. Where there is none, set log.db aside.", begins, store.stream, ends,
        )  # fmt: skip
    elif found < begins:
        await _check_base(store, low + 1, begins, log.hash_at(begins))
    return Common(found, low, ends)


async def _check_base(store: Store, number: int, begins: int, own_hash: str) -> None:
    """The stream's message ``number`` has the log's base. Raises `LogIncomplete` where it is another one."""
    for place in map(place_of, await _message(store, number)):
        if place.decision_id == begins and place.hash != own_hash:
            raise LogIncomplete(
                f"The stream has gone another way than this log, which begins after {begins}."
            )


async def _message(store: Store, number: int) -> list[bytes]:
    return decode((await store.js.get_msg(store.stream, number)).data or b"")
