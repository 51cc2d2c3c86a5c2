"""The router: the network edge of a node. It owns the transport and sorts what comes in.

log       to the journal, which keeps the order
command   to this node's master, answered when it is committed
base      to the archive: what a new log may begin with
past      to the archive: decisions for a log that began so
stream    to the token hub
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.address import Address
from actors.archive import BaseWanted, decode_wanted, encode_wanted
from actors.clock import Timer
from actors.deferred import Deferred
from actors.journal import Attach, FromPeer, PeerDown, PeerUp
from actors.net.transport import STREAM, LinkLost, Peer, Transport
from actors.refusal import MailboxFull, Rejected, Stopped
from actors.remote import decode_command, encode_answer
from actors.reporter import Reporter
from actors.streams import TokenHub
from events import commands as cmd
from events.ids import fresh
from events.values import LinkReading

LOG = "log"
COMMAND = "command"
BASE = "base"
PAST = "past"
ARCHIVE_TIMEOUT_S = 30.0
"""Seconds that another node's archive may take; a base costs it the reading of some 20,000 events."""
LINKS_EVERY_S = 5.0
"""Seconds between two readings of the links; the log keeps only what changed enough."""
LINKS_SOON_S = 1.0
SETTLING_S = 15.0
"""For so long after a peer has come there is a reading every `LINKS_SOON_S`. No group of ranks is placed over
links that are not in the log, and a link is not measured, nor a new node in the log, when the peer comes."""

logger = logging.getLogger("cuebook.router")


class Forward(NamedTuple):
    """Ask another node's master; answered by the bytes of an `actors.remote.Answer`."""

    node_id: str
    payload: bytes
    timeout: float


class AskPast(NamedTuple):
    """Ask another node's archive for decisions up to ``upto``; the next ``choice`` asks the next node.

    Answered by bytes for `actors.archive.decode_past`; fails with `LinkLost` where no node is there.
    """

    upto: int
    choice: int


class _Read(NamedTuple):
    """Time to read the links."""


class _PeerCame(NamedTuple):
    """There is a link that the log does not have yet."""


class Router(Actor):
    """One for each node of a cluster. Implements `actors.net.transport.Handlers`."""

    def __init__(
        self,
        me: Peer,
        transport: Transport,
        journal: Address,
        master: Address,
        archive: Address,
        hub: TokenHub,
        reporter: Reporter,
    ) -> None:
        super().__init__()
        self._me = me
        self._transport = transport
        self._journal = journal
        self._master = master
        self._archive = archive
        self._hub = hub
        self._reporter = reporter
        self._timer: Timer | None = None
        self._settled_at = 0.0

    def started(self) -> None:
        """Open the network. Raises where the port is taken or the address can't be used."""
        self._hub.connect(lambda node_id, payload: self._transport.send(node_id, STREAM, payload))
        self._journal.tell(Attach(self._send_log, self._ask_base))
        self._transport.start(self._me, self)
        self._read_in(LINKS_EVERY_S)

    def stopping(self) -> None:
        """Leave the network: nobody is there any more."""
        self._hub.connect(None)
        peers = self._transport.peers()
        self._transport.stop()
        for peer in peers:
            self._tell(PeerDown(peer.node_id, "this node's router stopped"))

    def receive(self, message: Any) -> Any:
        """Ask another node, or read the links."""
        match message:
            case Forward():
                return self._transport.request(message.node_id, COMMAND, message.payload, message.timeout)
            case AskPast():
                return self._ask_past(message)
            case _Read():
                self._read_links()
            case _PeerCame():
                self._settled_at = self.clock.monotonic() + SETTLING_S
                self._read_in(LINKS_SOON_S)
            case _:
                raise TypeError(f"the router takes no {type(message).__name__}")
        return None

    def _read_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.after(seconds, _Read())

    def _read_links(self) -> None:
        settling = self.clock.monotonic() < self._settled_at
        self._read_in(LINKS_SOON_S if settling else LINKS_EVERY_S)
        links = [
            LinkReading(node_id=node_id, latency_s=stats.latency_s, bandwidth=stats.bandwidth_bytes_s or 0.0)
            for node_id, stats in sorted(self._transport.links().items())
            if stats.latency_s is not None
        ]
        self._reporter.send(cmd.ReportLinks(command_id=fresh("report"), origin=self._me.node_id, links=links))

    # What the transport says, on its own thread

    def peer_up(self, peer: Peer) -> None:
        """Tell journal and master."""
        self._hub.link_opened(peer.node_id)
        self._tell(PeerUp(peer.node_id))
        self.mailbox.put_system(_PeerCame())

    def peer_down(self, node_id: str, why: str) -> None:
        """Tell journal and master: one may have lost its leader, the other a node."""
        logger.info("node %s is gone: %s", node_id, why)
        self._tell(PeerDown(node_id, why))

    def stream_lost(self, node_id: str, why: str) -> None:
        """What was under way on the stream link is lost; both sides count from the start again."""
        logger.info("the stream link with node %s broke: %s", node_id, why)
        self._hub.link_opened(node_id)

    def message(self, node_id: str, topic: str, payload: bytes) -> None:
        """Sort by topic."""
        if topic == STREAM:
            self._hub.arrived(node_id, payload)
        elif topic == LOG:
            self._journal.tell_system(FromPeer(node_id, payload))
        else:
            logger.warning("%s sent something on the unknown topic %r", node_id, topic)

    def request(self, node_id: str, topic: str, payload: bytes) -> Deferred[bytes]:  # noqa: ARG002
        """Have this node's master decide another node's command, or its archive give of the log."""
        if topic == BASE:
            return self._archive.ask_future(BaseWanted())
        if topic == PAST:
            return self._archive.ask_future(decode_wanted(payload))
        return self._decide(payload)

    def _decide(self, payload: bytes) -> Deferred[bytes]:
        answer = Deferred[bytes]()
        try:
            decided = self._master.ask_future(decode_command(payload))
        except (MailboxFull, Stopped, Rejected) as error:
            answer.resolve(encode_answer(None, error))
        else:
            decided.add_done_callback(
                lambda done: answer.resolve(
                    encode_answer(done.get() if done.error is None else None, done.error)
                )
            )
        return answer

    def _send_log(self, node_id: str, payload: bytes) -> bool:
        return self._transport.send(node_id, LOG, payload)

    def _ask_base(self, node_id: str) -> Deferred[bytes]:
        return self._transport.request(node_id, BASE, b"", ARCHIVE_TIMEOUT_S)

    def _ask_past(self, message: AskPast) -> Deferred[bytes]:
        peers = self._transport.peers()
        if not peers:
            answer = Deferred[bytes]()
            answer.fail(LinkLost("No other node is there."))
            return answer
        node_id = peers[message.choice % len(peers)].node_id
        return self._transport.request(node_id, PAST, encode_wanted(message.upto), ARCHIVE_TIMEOUT_S)

    def _tell(self, message: PeerUp | PeerDown) -> None:
        self._journal.tell_system(message)
        self._master.tell_system(message)

    def refused(self, host: str, why: str) -> None:
        """Put on the record, and before the operator's eyes, who was turned away."""
        logger.warning("%s: %s", host, why)
        report = cmd.ReportRefusedPeer(
            command_id=fresh("report"), origin=self._me.node_id, host=host, reason=why
        )
        self._reporter.send(report)
