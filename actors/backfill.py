"""The backfiller: brings the past to a log that began after a base, from any node or stream that has it.

Nobody waits for it: one request is on its way at a time, and the journal gets a few decisions at a time.
Where it was, the log itself knows; so a restart goes on from there.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.address import Address
from actors.archive import PastWanted, decode_past
from actors.deferred import Deferred
from actors.journal import Backfill
from actors.refusal import MailboxFull
from actors.replica import Paths
from actors.router import AskPast
from events.ends import Base

BATCH = 100
"""Decisions in one transaction: the journal is busy with them for some milliseconds."""
RETRY_S = 1.0
"""Seconds until another node is asked, and between looks at a log that has not begun."""

logger = logging.getLogger("cuebook.backfill")


class _Look(NamedTuple):
    """See what is missing, and ask for it."""


class _Came(NamedTuple):
    """A node's answer."""

    answer: Deferred[bytes]


class _Stored(NamedTuple):
    """The journal's answer: what the log begins after now."""

    answer: Deferred[Base | None]


class Backfiller(Actor):
    """One for each node of a cluster; idle for ever once the log has its past.

    With ``streamed`` the journal's stream has it too, and is asked after each node that failed.
    """

    def __init__(self, paths: Paths, journal: Address, router: Address, *, streamed: bool = False) -> None:
        super().__init__()
        self._paths = paths
        self._journal = journal
        self._router = router
        self._streamed = streamed
        self._page: list[bytes] = []
        self._choice = 0

    def started(self) -> None:
        """Begin."""
        self._reader = self._paths.reader()
        self.after(0.0, _Look())

    def stopping(self) -> None:
        """Close the file."""
        self._reader.close()

    def receive(self, message: Any) -> None:
        """Take the next step."""
        match message:
            case _Look():
                self._look()
            case _Came():
                self._came(message.answer)
            case _Stored():
                self._stored(message.answer)
            case _:
                raise TypeError(f"the backfiller takes no {type(message).__name__}")

    def _look(self) -> None:
        """An empty log may still begin after a base; one that began with decision 1 never lacks anything."""
        base = self._reader.base()
        if base is not None:
            self._ask(base)
        elif self._reader.last_decision() == 0:
            self.after(RETRY_S, _Look())

    def _ask(self, base: Base) -> None:
        try:
            answer = self._asked(base.decision_id)
        except MailboxFull as error:
            self._try_another(error)
        else:
            answer.add_done_callback(lambda done: self.mailbox.put_system(_Came(done)))

    def _asked(self, upto: int) -> Deferred[bytes]:
        if not self._streamed:
            return self._router.ask_future(AskPast(upto, self._choice))
        node, of_stream = divmod(self._choice, 2)
        if of_stream:
            return self._journal.ask_future(PastWanted(upto))
        return self._router.ask_future(AskPast(upto, node))

    def _came(self, answer: Deferred[bytes]) -> None:
        try:
            self._page = decode_past(answer.get())
        except Exception as error:
            self._try_another(error)
            return
        if self._page:
            self._store()
        else:
            self._try_another("it lacks the same part of the log")

    def _store(self) -> None:
        """The newest of the page first: the base moves down."""
        batch, self._page = self._page[-BATCH:], self._page[:-BATCH]
        try:
            answer = self._journal.ask_future(Backfill(batch))
        except MailboxFull as error:
            self._try_another(error)
        else:
            answer.add_done_callback(lambda done: self.mailbox.put_system(_Stored(done)))

    def _stored(self, answer: Deferred[Base | None]) -> None:
        if answer.error is not None:
            self._try_another(answer.error)
        elif self._page:
            self._store()
        elif (base := answer.get()) is not None:
            self._ask(base)
        else:
            logger.info("The log has its whole past now")

    def _try_another(self, why: object) -> None:
        logger.info("The past did not come, asking another node in %g s: %s", RETRY_S, why)
        self._page = []
        self._choice += 1
        self.after(RETRY_S, _Look())
