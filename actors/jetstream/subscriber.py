"""Following the stream: every message once, in order, a bounded batch at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from actors.jetstream.messages import decode, epoch_of
from actors.jetstream.store import UNREACHABLE, Store, root_of, told
from actors.ordering.leased import Delivered

logger = logging.getLogger("cuebook.jetstream")

MAX_BYTES = 1024 * 1024
"""Bytes that are delivered at a time, unless a single message has more."""
_BEAT_S = 1.0
_SILENCE_S = 3.2
_PAUSE_S = 0.25
_ABANDONED_S = 10.0
_LOST_S = 5.0  # a server that is behind may speak for the others for a moment


class StreamChanged(Exception):
    """The stream has not what it had: the log must be compared with it again."""


class _Broken(Exception):
    """The consumer must be made anew, later."""


class Subscriber:
    """``deliver`` is awaited with each batch, of one epoch; the next one comes when it returns.

    The stream is followed from the message after number ``after`` on.
    """

    def __init__(self, store: Store, after: int, deliver: Callable[[Delivered], Awaitable[None]]) -> None:
        self._store = store
        self._after = after
        self._deliver = deliver
        self._left: list[Msg] = []
        self._now = asyncio.get_running_loop().time
        self._less_since = 0.0

    async def run(self) -> None:
        """Follow the stream, for ever, over whatever breaks."""
        while True:
            try:
                await self._follow()
            except (_Broken, *UNREACHABLE) as error:
                logger.info("The stream is taken up again after message %d: %s", self._after, told(error))
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self) -> None:
        client, inbox = self._store.client, self._store.client.new_inbox()
        await self._check_stream()
        subscription = await client.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
        self._left = []
        try:
            consumer = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._after + 1,
                deliver_subject=inbox,
                ack_policy=AckPolicy.NONE,
                max_deliver=1,
                flow_control=True,
                idle_heartbeat=_BEAT_S,
                inactive_threshold=_ABANDONED_S,
                mem_storage=True,
                num_replicas=1,
            )
            await self._store.js.add_consumer(self._store.stream, consumer)  # pyright: ignore[reportUnknownMemberType]
            while True:
                batch = await self._batch(subscription)
                await self._deliver(batch)
                self._after = batch.upto
        finally:
            with contextlib.suppress(*UNREACHABLE):
                await subscription.unsubscribe()

    async def _check_stream(self) -> None:
        """Raises `StreamChanged` where it is another one, or has had less than before for a while."""
        try:
            info = await self._store.js.stream_info(self._store.stream)
        except NotFoundError:
            last = -1
        else:
            last = info.state.last_seq
            if root_of(info.config) != self._store.root:
                raise StreamChanged("the NATS stream was made anew")
        if last >= self._after:
            self._less_since = 0.0
            return
        self._less_since = self._less_since or self._now()
        what = f"the NATS stream ends at message {last}" if last >= 0 else "the NATS stream is gone"
        if self._now() - self._less_since > _LOST_S:
            raise StreamChanged(f"{what}, and had {self._after} before")
        raise _Broken(what)

    async def _batch(self, subscription: Subscription) -> Delivered:
        """What has come: at least one message, all of one epoch."""
        batch = self._left
        self._left = []
        size = 0
        while not batch or (subscription.pending_msgs and size < MAX_BYTES):
            message = await subscription.next_msg(timeout=_SILENCE_S)
            if await self._is_of_the_server(message) or not self._is_due(
                message, self._after + len(batch) + 1
            ):
                continue
            if batch and message.subject != batch[0].subject:
                self._left = [message]
                break
            batch.append(message)
            size += len(message.data)
        entries = [entry for message in batch for entry in decode(message.data)]
        return Delivered(epoch_of(batch[0].subject), self._after + len(batch), entries)

    async def _is_of_the_server(self, message: Msg) -> bool:
        """Heart-beats, and questions whether we keep up, which are answered."""
        headers = message.headers or {}
        if "Status" not in headers:
            return False
        answer_to = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if answer_to:
            await self._store.client.publish(answer_to)
        return True

    def _is_due(self, message: Msg, due: int) -> bool:
        """False for a message that is known: a server that is behind itself begins with where it is."""
        number = message.metadata.sequence.stream
        if number > due:
            raise _Broken(f"message {number} came where {due} is due")
        return number == due
