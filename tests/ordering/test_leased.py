"""The rules of a log whose order a stream gives, without a stream: real logs, inputs by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import decider
from actors.log_view import OrderedLog
from actors.ordering import interface as io
from actors.ordering.epochs import Epoch
from actors.ordering.leased import (
    Common,
    Delivered,
    Effect,
    Granted,
    Holder,
    Input,
    Leased,
    Lost,
    Publish,
    Resign,
)
from events import commands as cmd
from events.commands import Facts
from events.drivers import STDLIB
from events.ends import EMPTY, Tail
from events.log import EventLog
from events.proposals import propose
from events.reader import LogReader
from events.record import Draft
from events.to_rows import EncodedDraft

ME = io.Member("node-a", "start-1")
OTHER = Epoch(4, "node-b", "start-2")


def entries(names: str, after: Tail = EMPTY, epoch: int = 1) -> tuple[list[bytes], Tail]:
    """Decisions on a command for each letter."""
    drafts = [
        Draft(
            command=cmd.CancelTasks(command_id=name, task_ids=[], reason="test"),
            facts=Facts(now=1.0, seed="s", epoch=epoch, node_id="node-b"),
            decider=decider.NAME,
            decider_version=decider.VERSION,
            events=[],
        )
        for name in names
    ]
    return propose([EncodedDraft(each) for each in drafts], after)


class Node:
    """The machine with its log; `told` carries the effects out."""

    def __init__(self, path: Path, names: str = "", common: Common | None = None) -> None:
        self.log = EventLog.open(path)
        self.log.append_entries(entries(names)[0])
        self.view = OrderedLog(self.log, STDLIB)
        self.machine = Leased(ME, self.view, common or Common(0, 0))

    def told(self, event: Input) -> list[Effect]:
        effects = self.machine.handle(event)
        for effect in effects:
            match effect:
                case io.Append(entries):
                    self.log.append_entries(entries)
                case io.Rewind():
                    self.log.rewind(effect.fork, "winner", effect.reason, effect.entries, at=1.0)
                case _:
                    pass
        return effects

    def names(self) -> str:
        with_events = self.view._reader.decisions()
        return "".join(decision.command_id for decision in with_events)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "log.db")
    yield node
    node.log.close()


def test_who_is_granted_the_lease_leads_once_it_has_what_the_stream_has(node: Node) -> None:
    assert node.told(Holder("")) == []
    assert node.told(Granted(7, upto=2)) == []
    first, tail = entries("ab")
    assert node.told(Delivered(OTHER, 1, first)) == [io.Append(first)]
    second, _ = entries("c", tail)
    assert node.told(Delivered(OTHER, 2, second)) == [
        io.Append(second),
        io.Lead(Epoch(7, "node-a", "start-1")),
    ]
    assert node.names() == "abc"


def test_an_epoch_is_greater_than_any_in_the_stream(node: Node) -> None:
    node.told(Delivered(OTHER, 1, entries("a")[0]))
    assert node.told(Granted(2, upto=1)) == [io.Lead(Epoch(5, "node-a", "start-1"))]


def test_roles_follow_the_lease_and_are_told_once(node: Node) -> None:
    (follow,) = node.told(Holder("node-b"))
    assert isinstance(follow, io.Follow)
    assert follow.node_id == "node-b"
    assert node.told(Holder("node-b")) == []
    assert node.told(Holder("")) == [io.Masterless()]
    node.told(Granted(1, upto=0))
    assert node.told(Lost(1)) == [io.Masterless()]
    assert node.told(Lost(1)) == []


def test_news_of_an_earlier_term_is_old(node: Node) -> None:
    node.told(Granted(1, upto=0))
    node.told(Lost(1))
    node.told(Granted(2, upto=0))
    assert node.told(Lost(1)) == []
    assert node.machine.publication([b"x"]).term == 2


def test_a_master_that_sees_another_write_resigns_before_it_takes_that_in(node: Node) -> None:
    node.told(Granted(9, upto=0))
    own = node.machine.publication([]).epoch
    mine, tail = entries("a")
    assert node.told(Delivered(own, 1, mine)) == [io.Append(mine)]
    theirs, _ = entries("b", tail)
    assert node.told(Delivered(OTHER, 2, theirs)) == [
        Resign(9, "node node-b has written into the stream, in epoch 4"),
        io.Masterless(),
        io.Append(theirs),
    ]
    with pytest.raises(RuntimeError):
        node.machine.publication([])


def test_a_log_that_knows_more_is_published_before_its_node_leads(tmp_path: Path) -> None:
    node = Node(tmp_path / "log.db", "abcd", Common(2, 1))
    ours = node.view.entries(2, 10)
    (publish,) = node.told(Granted(3, upto=1))
    assert isinstance(publish, Publish)
    assert publish.entries == ours
    assert node.told(Holder("")) == []
    assert node.told(Delivered(publish.epoch, 2, ours)) == [io.Lead(publish.epoch)]
    assert node.names() == "abcd"
    node.log.close()


def test_what_the_stream_went_on_without_is_rejected(tmp_path: Path) -> None:
    node = Node(tmp_path / "log.db", "abcd", Common(1, 1))
    shared, tail = entries("ab")
    theirs, _ = entries("xy", tail)
    (rewind,) = node.told(Delivered(OTHER, 2, [shared[1], *theirs]))
    assert isinstance(rewind, io.Rewind)
    assert (rewind.fork, rewind.winner, rewind.entries) == (2, OTHER, theirs)
    assert node.names() == "abxy"
    assert node.told(Granted(3, upto=2)) == [io.Lead(Epoch(5, "node-a", "start-1"))]
    node.log.close()


def test_a_stream_that_lost_something_gets_it_again(node: Node) -> None:
    node.told(Granted(1, upto=0))
    own = node.machine.publication([]).epoch
    mine, _ = entries("abcd")
    node.told(Delivered(own, 3, mine))
    assert node.told(Common(2, 1)) == [
        Resign(1, "the log was compared with the stream again"),
        io.Masterless(),
    ]
    (publish,) = node.told(Granted(5, upto=1))
    assert isinstance(publish, Publish)
    assert publish.entries == mine[2:]
    assert node.told(Delivered(publish.epoch, 2, mine[2:])) == [io.Lead(publish.epoch)]
    assert node.names() == "abcd"


def test_nobody_leads_on_a_stream_that_has_less_than_it_had(node: Node) -> None:
    node.told(Delivered(OTHER, 3, entries("ab")[0]))
    assert node.told(Granted(9, upto=2)) == [Resign(9, "the stream has less than it had")]
    assert node.told(Common(0, 0)) == []
    (publish,) = node.told(Granted(10, upto=0))
    assert isinstance(publish, Publish)
    assert publish.entries == entries("ab")[0]


def based(path: Path, at: int, names: str, common: Common) -> Node:
    """A node whose log of these decisions begins after number ``at``."""
    whole = Node(path.with_name("whole.db"), names)
    whole.log.close()
    with LogReader.open(path.with_name("whole.db")) as reader:
        base, tail = reader.base_at(at), reader.entries(at, 100, 10**6)
    log = EventLog.open(path)
    log.begin_after(base)
    log.close()
    node = Node(path, common=common)
    node.log.append_entries(tail)
    return node


def test_a_log_begins_in_the_middle_of_a_message(tmp_path: Path) -> None:
    """What comes before its base is taken as the log's, what comes after it is appended."""
    node = based(tmp_path / "log.db", 3, "abc", Common(1, 1, ends=5))
    rest = entries("abcde")[0][1:]
    assert node.told(Delivered(OTHER, 2, rest)) == [io.Append(rest[2:])]
    assert [each.command_id for each in node.view._reader.decisions(after=3)] == ["d", "e"]
    node.log.close()


def test_a_stream_that_has_another_base_parts_before_it(tmp_path: Path) -> None:
    node = based(tmp_path / "log.db", 3, "abc", Common(0, 0, ends=5))
    others = entries("abxyz")[0]
    (rewind,) = node.machine.handle(Delivered(OTHER, 1, others))
    assert isinstance(rewind, io.Rewind)
    assert (rewind.fork, rewind.entries) == (2, others[2:])
    node.log.close()


def test_who_lacks_the_past_does_not_lead_on_a_stream_that_ends_before_it(tmp_path: Path) -> None:
    node = based(tmp_path / "log.db", 3, "abc", Common(0, 0))
    assert node.told(Granted(7, upto=0)) == [Resign(7, "the stream ends before this log begins")]
    assert node.told(Delivered(OTHER, 1, entries("abc")[0])) == []
    (lead,) = node.told(Granted(8, upto=1))
    assert isinstance(lead, io.Lead)
    node.log.close()


def test_a_log_that_began_after_a_base_is_compared_anew(node: Node, tmp_path: Path) -> None:
    other = based(tmp_path / "other.db", 3, "abc", Common(0, 0))
    base = other.view._reader.base()
    assert base is not None
    other.log.close()
    node.log.begin_after(base)
    assert node.told(Common(3, 2, ends=3)) == []
    more = entries("abcd")[0][3:]
    assert node.told(Delivered(OTHER, 3, more)) == [io.Append(more)]
