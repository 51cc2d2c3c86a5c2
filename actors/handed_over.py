"""Commands that another master decides: kept until the log, or that master's word, answers them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.deferred import Deferred
from actors.idempotency import check_same
from actors.refusal import Rejected, Stopped
from actors.remote import Answer, Unchanged
from events.base import Command
from events.record import Committed

MAX_WAITING = 10_000
"""Commands kept, as many as a mailbox holds."""
MAX_UNDER_WAY = 1_000
"""Commands at the leader at a time: a link breaks where more messages than twice that wait for it."""
LOST_S = 3.0
"""After so long without a word a command goes again: it was lost on the way, or the word was."""


@dataclass(slots=True)
class Waiting:
    """A command that is decided elsewhere, or will be."""

    command: Command
    reply: Deferred[Committed | Unchanged]
    until: float
    unchanged: Unchanged | None = None
    """The leader's answer, while the log here is not as far as that."""


class HandedOver:
    """What a master that follows has passed on. ``head`` tells the seq of the newest event here."""

    def __init__(self, head: Callable[[], int]) -> None:
        self._head = head
        self._waiting: dict[str, Waiting] = {}
        self._queue: deque[Waiting] = deque()
        self._under_way: dict[str, float] = {}
        """Since when, monotonic seconds."""

    def __len__(self) -> int:
        return len(self._waiting)

    def refuses(self, command: Command) -> bool:
        """Whether one more is too many, and whoever asks for it is to try again later."""
        return len(self._waiting) >= MAX_WAITING and self.find(command) is None

    def find(self, command: Command) -> Waiting | None:
        """The command, if it waits already. Raises `Rejected` where its id is another command's."""
        waiting = self._waiting.get(command.command_id)
        if waiting is not None:
            check_same(waiting.command, command, "which is being decided")
        return waiting

    def add(self, command: Command, until: float) -> Waiting:
        """Keep a command until it is answered, or until ``until``, monotonic seconds."""
        waiting = Waiting(command, Deferred(), until)
        self._waiting[command.command_id] = waiting
        self._queue.append(waiting)
        return waiting

    def pass_on(self, take: Callable[[Waiting], bool]) -> None:
        """Have ``take`` send what is due, until enough is under way or it returns False: there is no room."""
        while self._queue and len(self._under_way) < MAX_UNDER_WAY:
            waiting = self._queue.popleft()
            if self._waiting.get(waiting.command.command_id) is waiting and not take(waiting):
                return

    def sent(self, waiting: Waiting, now: float) -> None:
        """It is under way until `returned`, also where the log answers it earlier."""
        self._under_way[waiting.command.command_id] = now

    def returned(self, command_id: str) -> None:
        """The leader has spoken, or can't be heard: what it has not answered goes again with `expire`."""
        self._under_way.pop(command_id, None)

    def remove(self, waiting: Waiting) -> None:
        """It is decided here after all."""
        self._waiting.pop(waiting.command.command_id, None)

    def begin_anew(self) -> None:
        """All go to another leader: what the last one said of them is void."""
        for waiting in self._waiting.values():
            waiting.unchanged = None
        self._under_way.clear()
        self._queue = deque(self._waiting.values())

    def expire(self, now: float) -> None:
        """Those that have waited long enough fail with `Stopped`; what came back, or is lost, goes again."""
        for waiting in [each for each in self._waiting.values() if each.until <= now]:
            self.remove(waiting)
            waiting.reply.fail(Stopped("the cluster", "has no master that answers"))
        self._under_way = {each: since for each, since in self._under_way.items() if now - since < LOST_S}
        self._queue = deque(
            waiting
            for command_id, waiting in self._waiting.items()
            if waiting.unchanged is None and command_id not in self._under_way
        )

    def answered(self, command_id: str, answer: Answer) -> None:
        """The leader's word. What it has committed is answered when the log here has it."""
        waiting = self._waiting.get(command_id)
        if waiting is None:
            return  # settled by the log meanwhile
        if answer.outcome == "nothing":
            waiting.unchanged = Unchanged(answer.seq)
            self._settle_unchanged()
        elif answer.outcome == "rejected" and answer.cause is not None:
            self.remove(waiting)
            waiting.reply.fail(Rejected(answer.cause))

    def learn(self, committed: Sequence[Committed]) -> None:
        """The log has grown: what was passed on and is in it now is answered."""
        for decision in committed:
            waiting = self._waiting.pop(decision.command_id, None)
            if waiting is None:
                continue
            if decision.rejection is not None:
                waiting.reply.fail(Rejected(decision.rejection))
            else:
                waiting.reply.resolve(decision)
        self._settle_unchanged()

    def _settle_unchanged(self) -> None:
        """Pass on the leader's word on reports without news as far as the log has come."""
        unchanged = [each for each in self._waiting.values() if each.unchanged is not None]
        head = self._head() if unchanged else 0
        for waiting in unchanged:
            if waiting.unchanged is not None and waiting.unchanged.seq <= head:
                self.remove(waiting)
                waiting.reply.resolve(waiting.unchanged)
