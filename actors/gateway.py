"""The gateway: the cluster as the HTTP API sees it. It lives on the API's event loop.

It has its own copy of the state, asks the master, and joins each request with the tokens of its runner and
with its end in the log. A stream ends with the terminal event of its task, never with a runner's word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from actors.address import Address
from actors.deferred import awaitable
from actors.downloader import Describe
from actors.generation import Generation, Item, TaskEnd
from actors.refusal import MailboxFull, Rejected, Stopped
from actors.replica import Paths, fold, follow
from actors.settings import Settings
from actors.streams import PromptFor, PromptShelf, Said, TokenHub
from engines.contract import Prompt
from engines.wire import Admitted, Progress, TaskDone
from events import catalogue as ev
from events import commands as cmd
from events.base import Command
from events.commands import SamplingRequest
from events.feed import CommitFeed
from events.ids import fresh
from events.reader import LogReader
from events.record import Committed
from events.values import NO_TOKENS, Cause, PlacementSettings, TaskKind
from projections.state import ClusterState

T = TypeVar("T")

ANSWER_TIMEOUT_S = 30.0
"""Seconds that a command may wait for its commit; the log's disk is stuck where it takes longer."""
START_WAIT_S = 60.0
CANCEL_RETRY_S = 0.2
LAST_TOKENS_S = 5.0
"""Seconds that the last tokens of another node's answer may come after its end in the log."""
EARLY_TASKS = 1024
"""Tasks whose first words are kept though the log does not have them yet."""

logger = logging.getLogger("cuebook.gateway")


class Gateway:
    """Made anywhere; `open` it on the event loop that is to use it. All its methods belong on that loop."""

    def __init__(
        self,
        node_id: str,
        incarnation: str,
        settings: Settings,
        paths: Paths,
        feed: CommitFeed,
        master: Address,
        downloader: Address,
        shelf: PromptShelf,
        hub: TokenHub,
    ) -> None:
        self.node_id = node_id
        self._incarnation = incarnation
        self.settings = settings
        self.state = ClusterState()
        self._paths = paths
        self._feed = feed
        self._master = master
        self._downloader = downloader
        self._shelf = shelf
        self._hub = hub
        self._inbox: deque[Any] = deque()
        self._scheduled = False
        self._requests: dict[str, Generation] = {}
        self._tasks: dict[str, Generation] = {}
        self._early: dict[str, list[Item]] = {}
        self._away: dict[str, str] = {}
        self._drained: set[str] = set()
        self._held: dict[str, ev.TaskFinished] = {}
        self._waiters: dict[Callable[[], None], None] = {}
        self._past_complete = False

    async def open(self) -> None:
        """Rebuild the state and follow the log and the runners' tokens."""
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Fails when this gateway can't follow the log any more."""
        self._scheduled = True  # what arrives from now on waits until the state that it follows is here
        self.state, self._follower = await asyncio.to_thread(
            follow, self._paths, self._feed, self._arrived, self._arrived
        )
        self._hub.attach(self._arrived, self._arrived)
        self._drain()

    def close(self) -> None:
        """Follow no more."""
        self._hub.attach(None)
        self._follower.close()

    def reader(self) -> LogReader:
        """A new reading connection to the log; use and close it on one thread."""
        return self._paths.reader()

    def past_complete(self) -> bool:
        """False while the log lacks what came before this node joined; see `events.ends.Base`."""
        if not self._past_complete:
            with self._paths.reader() as reader:
                self._past_complete = reader.base() is None
        return self._past_complete

    async def ask(self, command: Command) -> Committed:
        """Have a command decided and committed; ``state`` has it when this returns.

        Raises `Rejected` with the cause, `MailboxFull` or `Stopped` where the master can't take it now,
        `TimeoutError` where the log's disk doesn't answer.
        """
        answer = awaitable(self._master.ask_future(command), self._loop)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            committed: Committed = await answer
        if committed.events:
            last = committed.events[-1].seq
            await self.wait_until(lambda state: state.seq >= last, ANSWER_TIMEOUT_S)
        return committed

    async def library(self, message: Any) -> Any:
        """Ask the downloader, see `actors.downloader`. Raises what it raises."""
        return await awaitable(self._downloader.ask_future(message), self._loop)

    @property
    def started(self) -> bool:
        """True once the log has this run of the node, which ends what it says of the one before."""
        node = self.state.nodes.get(self.node_id)
        return node is not None and node.up and node.incarnation == self._incarnation

    async def _when_started(self) -> None:
        """Let what comes early wait: the log may still name a runner that died with the last run."""
        try:
            await self.wait_until(lambda _: self.started, START_WAIT_S)
        except TimeoutError:
            raise Stopped(self.node_id, "is testing its engines, or has no master to report to") from None

    async def place(self, model_id: str, settings: PlacementSettings, command_id: str) -> str:
        """Place an instance; a model that the state doesn't know is looked for first. Returns its id."""
        await self._when_started()
        if model_id not in self.state.models:
            described = await self.library(Describe(model_id))
            model_id = described.card.model_id
            await self.wait_until(lambda state: state.models.get(model_id), ANSWER_TIMEOUT_S)
        command = cmd.PlaceInstance(command_id=command_id, model_id=model_id, settings=settings)
        committed = await self.ask(command)
        return committed.events[0].event.subject

    async def generate(
        self,
        *,
        model_id: str,
        instance_id: str,
        kind: TaskKind,
        count: int,
        sampling: SamplingRequest,
        prompts: Sequence[Prompt],
        command_id: str,
    ) -> Generation:
        """Create the tasks of a request and follow them. Raises what `ask` raises.

        ``prompts`` has one prompt a task. A repeated ``command_id`` is refused: its answer is gone.
        """
        await self._when_started()
        request_id = fresh("request")
        generation = Generation(request_id, self.cancel)
        self._requests[request_id] = generation
        self._shelf.put(request_id, prompts)
        command = cmd.CreateTasks(
            command_id=command_id,
            request_id=request_id,
            model_id=model_id,
            instance_id=instance_id,
            kind=kind,
            count=count,
            sampling=sampling,
            api_node=self.node_id,
        )
        try:
            await self.ask(command)
        except (Rejected, MailboxFull):
            self._forget(request_id, count)
            raise
        except BaseException:
            # The decision may still be made: its tasks are then cancelled as they appear.
            generation.close("nobody waits for the answer")
            self._loop.call_later(ANSWER_TIMEOUT_S, self._forget, request_id, count)
            raise
        return generation

    def cancel(self, task_ids: list[str], reason: str) -> None:
        """Ask for the end of tasks; keeps trying while the master can't take it."""
        command = cmd.CancelTasks(command_id=fresh("cancel"), task_ids=task_ids, reason=reason)
        self._send(command)

    async def wait_until(self, predicate: Callable[[ClusterState], T | None], timeout: float) -> T:
        """The first value other than None and False of ``predicate``, asked anew after every commit.

        Raises `TimeoutError` after ``timeout`` seconds.
        """
        found = predicate(self.state)
        if found:
            return found
        future: asyncio.Future[T] = self._loop.create_future()

        def look() -> None:
            value = predicate(self.state)
            if value and not future.done():
                future.set_result(value)

        self._waiters[look] = None
        try:
            return await asyncio.wait_for(future, timeout)
        finally:
            self._waiters.pop(look, None)

    @asynccontextmanager
    async def tail(self) -> AsyncGenerator[Callable[[int], Any]]:
        """A function to await: returns once the log has an event after the seq given, or was rewound."""
        changed, state = asyncio.Event(), self.state
        self._waiters[changed.set] = None

        async def more(after: int) -> None:
            nonlocal state
            while self.state is state and state.seq <= after:
                changed.clear()
                await changed.wait()
            state = self.state

        try:
            yield more
        finally:
            self._waiters.pop(changed.set, None)

    # What arrives

    def _arrived(self, item: Sequence[Committed] | Said | str | int) -> None:
        """On any thread: queue, and wake the loop once for all that comes until it looks.

        A string is a node whose tokens went missing, a number the decision that the log was rewound to.
        """
        self._inbox.append(item)
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closing: nobody is left to tell
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """What fails here has left the state half told: whoever serves the API must start it anew."""
        try:
            self._take_all()
        except Exception as error:
            if not self.broken.done():
                self.broken.set_exception(error)

    def _take_all(self) -> None:
        self._scheduled = False
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            if isinstance(item, Progress):
                for chunk in item.chunks:
                    self._deliver(chunk.task_id, chunk)
            elif isinstance(item, Admitted):
                self._deliver(item.task_id, item)
            elif isinstance(item, TaskDone):
                self._all_said(item.task_id)
            elif isinstance(item, str):
                self._lost(item)
            elif isinstance(item, int):
                self._rewound()
            else:
                self._learn(item, new=self._follower.take())

    def _deliver(self, task_id: str, item: Item) -> None:
        generation = self._tasks.get(task_id)
        if generation is not None:
            generation.put(task_id, item)
        elif task_id not in self.state.tasks:
            # A runner can be quicker than the feed; its first words wait for the task to appear.
            self._early.setdefault(task_id, []).append(item)
            if len(self._early) > EARLY_TASKS:
                del self._early[next(iter(self._early))]

    def _learn(self, committed: Sequence[Committed], *, new: bool) -> None:
        """Fold, and tell the generations: one by one, for the next decision may end what this one names."""
        for decision in committed:
            if new:
                fold(self.state, [decision])
            for recorded in decision.events:
                event = recorded.event
                if isinstance(event, ev.TaskCreated):
                    self._task_created(event)
                elif isinstance(event, ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled):
                    self._task_ended(event)
        for look in list(self._waiters):
            look()

    def _task_created(self, event: ev.TaskCreated) -> None:
        generation = self._requests.get(event.request_id)
        early = self._early.pop(event.task_id, [])
        if generation is None:
            return  # of an API that is no more
        self._tasks[event.task_id] = generation
        self._send_prompt(event)
        generation.created(event)
        for item in early:
            generation.put(event.task_id, item)

    def _send_prompt(self, event: ev.TaskCreated) -> None:
        """Where the runner is on another node, its prompt goes there.

        After a rewind the state may be ahead of what is told, and the runner be gone: the task's end comes.
        """
        runner = self.state.runners.get(event.runner_id)
        if runner is None or runner.node_id == self.node_id:
            return
        node_id = self._away[event.task_id] = runner.node_id
        prompt = self._shelf.take(event.request_id, event.index)
        if prompt is not None:
            self._hub.ship(node_id, PromptFor(event.request_id, event.index, prompt))

    def _task_ended(self, event: TaskEnd) -> None:
        """A task that ended well on another node ends here when all its tokens have come, too."""
        more_may_come = event.task_id in self._away and event.task_id not in self._drained
        if isinstance(event, ev.TaskFinished) and more_may_come:
            self._held[event.task_id] = event
            self._loop.call_later(LAST_TOKENS_S, self._give_up, event.task_id)
        else:
            self._end(event)

    def _all_said(self, task_id: str) -> None:
        held = self._held.pop(task_id, None)
        if held is not None:
            self._end(held)
        elif task_id in self._away:
            self._drained.add(task_id)

    def _give_up(self, task_id: str) -> None:
        held = self._held.pop(task_id, None)
        if held is not None:
            message = "The answer was complete, and its last tokens were lost between two nodes. Ask again."
            cause = Cause(code="tokens_lost", message=message)
            self._end(ev.TaskFailed(task_id=task_id, cause=cause, usage=held.usage))

    def _rewound(self) -> None:
        """The log is another one: requests that only the lost side knew end, and their clients are told."""
        self._past_complete = False
        self.state = self._follower.load()
        message = "The cluster was divided; this request was decided on the side that gave way. Ask again."
        cause = Cause(code="superseded", message=message)
        for task_id in [task_id for task_id in self._tasks if task_id not in self.state.tasks]:
            self._end(ev.TaskFailed(task_id=task_id, cause=cause, usage=NO_TOKENS))
        self._learn([], new=False)

    def _lost(self, node_id: str) -> None:
        """Tokens of a node went missing: a text with a hole is no answer."""
        hurt = [task_id for task_id, away in self._away.items() if away == node_id and task_id in self._tasks]
        if hurt:
            self.cancel(hurt, f"tokens were lost on the way from node {node_id}")

    def _end(self, event: TaskEnd) -> None:
        self._early.pop(event.task_id, None)
        self._away.pop(event.task_id, None)
        self._drained.discard(event.task_id)
        generation = self._tasks.pop(event.task_id, None)
        if generation is not None:
            self._shelf.take(generation.request_id, generation.index(event.task_id))
            generation.put(event.task_id, event)
            if generation.over:
                self._requests.pop(generation.request_id, None)

    def _forget(self, request_id: str, count: int) -> None:
        self._requests.pop(request_id, None)
        for index in range(count):
            self._shelf.take(request_id, index)

    def _send(self, command: Command) -> None:
        try:
            answer = self._master.ask_future(command)
        except MailboxFull:
            self._loop.call_later(CANCEL_RETRY_S, self._send, command)
            return
        answer.add_done_callback(lambda done: self._sent(command, done.error))

    def _sent(self, command: Command, error: BaseException | None) -> None:
        if isinstance(error, Stopped):
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.call_later, CANCEL_RETRY_S, self._send, command)
        elif error is not None and not isinstance(error, Rejected):
            logger.warning("%s failed: %s", type(command).__name__, error)
