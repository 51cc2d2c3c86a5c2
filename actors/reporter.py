"""Reports on their way to the master: in order, each taken exactly once, kept until they are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from actors.address import Address
from actors.clock import Clock
from actors.deferred import Deferred
from actors.refusal import MailboxFull, Rejected
from events.base import Report
from events.record import Committed

RESEND_S = 0.2
"""Seconds before reports are sent again that a restarting or busy master did not take."""


class SayAgain(NamedTuple):
    """Tell an actor to report again what it knows of this node: the log has lost it."""


class Reporter:
    """One for each node. While the master is away, reports wait here; then they go out again, in order.

    What is still in the master's mailbox is not sent a second time: a report that changed nothing leaves no
    record, and would count as news after a later one. One that the master had taken before it crashed is
    answered from the log by its ``command_id``.
    """

    def __init__(self, master: Address, clock: Clock) -> None:
        self._master = master
        self._clock = clock
        self._lock = threading.RLock()
        self._waiting: dict[str, Report] = {}
        self._refused: dict[str, Callable[[], None]] = {}
        self._under_way: set[str] = set()
        self._paused = False
        self._closed = False

    def send(self, report: Report, refused: Callable[[], None] | None = None) -> None:
        """Hand in a report; any thread, never blocks. ``refused`` is called where it is rejected."""
        with self._lock:
            if refused is not None:
                self._refused[report.command_id] = refused
            self._waiting[report.command_id] = report
            if not self._paused:
                self._transmit(report)

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Send nothing again: the master that this one reports to does not come back."""
        self._closed = True

    def _transmit(self, report: Report) -> None:
        try:
            answer = self._master.ask_future(report)
        except MailboxFull:
            self._pause()
            return
        self._under_way.add(report.command_id)
        answer.add_done_callback(partial(self._settled, report.command_id))

    def _settled(self, command_id: str, answer: Deferred[Committed]) -> None:
        with self._lock:
            self._under_way.discard(command_id)
            if answer.error is None or isinstance(answer.error, Rejected):
                self._waiting.pop(command_id, None)
                refused = self._refused.pop(command_id, None)
                if refused is not None and answer.error is not None:
                    refused()
            elif not self._paused:
                self._pause()

    def _pause(self) -> None:
        self._paused = True
        self._clock.call_later(RESEND_S, self._resume)

    def _resume(self) -> None:
        with self._lock:
            self._paused = self._closed
            for report in list(self._waiting.values()):
                if self._paused:
                    break
                if report.command_id not in self._under_way:
                    self._transmit(report)
