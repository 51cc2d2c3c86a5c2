"""What a follower's log promises, whatever SQLite library it is kept with; `log_conformance` has the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_samples import NODE, T0, draft, facts, finish, history, query, reading, refuse, request, start

from events import replication
from events.chain import Row, link
from events.check import check
from events.codec import encode
from events.commands import DeleteInstance
from events.drivers import Driver
from events.ends import _STARTS, Tail
from events.errors import EntriesRefused, LogTooNew, Unreadable
from events.log import EventLog
from events.proposals import propose
from events.reader import LogReader
from events.record import Draft
from events.replication import DecisionColumns, Entry, encode_entry
from events.to_rows import EncodedDraft

ALL = 10**9
DECISIONS = "SELECT * FROM decisions ORDER BY decision_id"
EVENTS = "SELECT * FROM events ORDER BY seq"


def entries(log: EventLog, driver: Driver, after: int = 0) -> list[bytes]:
    with LogReader.open(log.path, driver=driver) as reader:
        return reader.entries(after, ALL, ALL)


def rows(log: EventLog) -> tuple[list[tuple], list[tuple]]:
    return query(log._connection, DECISIONS), query(log._connection, EVENTS)


class Pair:
    """Two logs."""

    @pytest.fixture
    def master(self, tmp_path: Path, driver: Driver) -> Iterator[EventLog]:
        log = EventLog.open(tmp_path / "master.db", driver=driver)
        yield log
        log.close()

    @pytest.fixture
    def follower(self, tmp_path: Path, driver: Driver) -> Iterator[EventLog]:
        log = EventLog.open(tmp_path / "follower.db", driver=driver)
        yield log
        log.close()


class ReplicationConformance(Pair):
    # Append

    def test_a_follower_s_rows_are_the_master_s(self, master: EventLog, follower: EventLog, driver: Driver):
        committed = master.append(history())
        assert follower.append_entries(entries(master, driver)) == committed
        assert rows(follower) == rows(master)
        more = master.append([finish(20), start(2, "again")])
        assert follower.append_entries(entries(master, driver, after=8)) == more
        assert rows(follower) == rows(master)
        assert (follower.head, follower.last_decision) == (master.head, master.last_decision)
        assert check(follower.path, driver=driver).ok

    def test_a_follower_can_lead(self, master: EventLog, follower: EventLog, driver: Driver):
        first = master.append(history())
        follower.append_entries(entries(master, driver))
        assert follower.append([finish(2), start(2, "again")])[0] == first[2]
        assert master.append_entries(entries(follower, driver, after=8))[0].epoch == 2
        assert rows(follower) == rows(master)

    def test_what_was_proposed_is_what_a_log_would_have_written(
        self, master: EventLog, follower: EventLog, driver: Driver
    ):
        before = master.tail
        drafts = [EncodedDraft(each) for each in history()]
        first, tail = propose(drafts[:5], before)
        second, end = propose(drafts[5:], tail)
        assert master.append(history()) == follower.append_entries(first + second)
        assert first + second == entries(master, driver)
        assert end == master.tail == follower.tail
        with LogReader.open(master.path, driver=driver) as reader:
            assert reader.decision_hash(end.decision_id) == end.decision_hash
            assert reader.decision_hash(0) == before.decision_hash == ""

    def test_nothing_is_appended_for_nothing(self, follower: EventLog):
        assert follower.append_entries([]) == []

    def test_entries_are_bounded(self, master: EventLog, driver: Driver):
        master.append([finish(n) for n in range(700)])
        with LogReader.open(master.path, driver=driver) as reader:
            everything = reader.entries(0, ALL, ALL)
            assert len(everything) == 700
            assert reader.entries(0, 450, ALL) == everything[:450]
            assert reader.entries(690, 450, ALL) == everything[690:]
            assert reader.entries(0, ALL, sum(map(len, everything[:300]))) == everything[:300]
            assert reader.entries(0, ALL, 1) == everything[:1]
            assert (
                reader.entries(0, 0, ALL) == reader.entries(700, 9, ALL) == reader.entries(999, 9, ALL) == []
            )
            assert reader.entries_upto(600, 450, ALL) == everything[150:600]
            assert reader.entries_upto(100, 450, ALL) == everything[:100]
            assert reader.entries_upto(600, 450, sum(map(len, everything[500:600]))) == everything[500:600]
            assert reader.entries_upto(600, 450, 1) == everything[599:600]
            assert reader.entries_upto(0, 450, ALL) == []

    def test_little_more_is_read_than_is_given(
        self, master: EventLog, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ):
        made: list[int] = []

        def counted(after: Tail, decision: Sequence[Any], own_hash: str, events: Sequence[Row]) -> bytes:
            made.append(decision[0])
            return encode_entry(after, decision, own_hash, events)

        master.append([finish(n) for n in range(700)])
        monkeypatch.setattr(replication, "encode_entry", counted)
        with LogReader.open(master.path, driver=driver) as reader:
            assert len(reader.entries(0, 700, 1)) == len(reader.entries_upto(700, 700, 1)) == 1
        assert len(made) <= 100

    @pytest.mark.parametrize(
        ("drafts", "synchronous"),
        [([reading(1), reading(2)], 1), ([reading(1), finish(2)], 2), ([refuse(1)], 2)],
        ids=["observations", "one decision among them", "a refusal"],
    )
    def test_it_is_as_durable_as_the_master_s(
        self, master: EventLog, follower: EventLog, driver: Driver, drafts: list[Draft], synchronous: int
    ):
        for others in ([reading(8)], [finish(9)]):
            before = master.last_decision
            master.append(others)
            follower.append_entries(entries(master, driver, before))
            before = master.last_decision
            master.append([msgspec.structs.replace(each, command=_renamed(each, before)) for each in drafts])
            follower.append_entries(entries(master, driver, before))
            assert query(follower._connection, "PRAGMA synchronous") == [(synchronous,)]

    # Refusals

    def refused(
        self, follower: EventLog, given: list[bytes], match: str, error: type = EntriesRefused
    ) -> None:
        before = rows(follower)
        with pytest.raises(error, match=match):
            follower.append_entries(given)
        assert rows(follower) == before
        assert not follower.failed

    def test_gaps_and_repetitions_are_refused(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append(history())
        sent = entries(master, driver)
        self.refused(follower, sent[1:], "Decision 2 came where decision 1 is due")
        self.refused(follower, [*sent[:3], *sent[4:]], "Decision 5 came where decision 4 is due")
        follower.append_entries(sent)
        self.refused(follower, sent[-1:], "Decision 8 came where decision 9 is due")

    def test_another_history_is_refused(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append([start(), finish(1), finish(2)])
        follower.append([start(), finish(3)])
        self.refused(follower, entries(master, driver, after=2), "Decision 3 follows another history")

    @pytest.mark.parametrize("field", Entry.__struct_fields__)
    def test_what_was_changed_on_its_way_is_refused(
        self, master: EventLog, follower: EventLog, driver: Driver, field: str
    ):
        master.append(history())
        sent = entries(master, driver)
        follower.append_entries(sent[:2])
        entry = msgspec.msgpack.decode(sent[2], type=Entry)
        value = getattr(entry, field)
        changed = {
            "decision": lambda: value._replace(at=value.at + 1),
            "events": lambda: [*value[:-1], (*value[-1][:-1], value[-1][-1].replace("stop", "length"))],
        }.get(field, lambda: value[::-1])()
        bad = msgspec.msgpack.encode(msgspec.structs.replace(entry, **{field: changed}))
        self.refused(follower, [bad], "another history" if "before" in field else "was changed on its way")
        if field == "events":
            fewer = msgspec.msgpack.encode(msgspec.structs.replace(entry, events=value[:-1]))
            self.refused(follower, [fewer], "was changed on its way")

    def test_a_falling_epoch_is_refused(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append([start(5), draft(finish(1).command, epoch=5), finish(2)])
        sent = entries(master, driver)
        self.refused(follower, sent, "Decision 3 is of epoch 1, after one of 5")
        follower.append_entries(sent[:2])
        self.refused(follower, sent[2:], "Decision 3 is of epoch 1, after one of 5")

    def test_bytes_that_are_no_decision_are_refused(self, follower: EventLog):
        for junk in (b"", b"junk", msgspec.msgpack.encode(["", "", [1], "", []])):
            self.refused(follower, [junk], f"{len(junk)} bytes that came as a decision are none")

    def test_a_known_command_is_refused(self, follower: EventLog):
        follower.append([finish(1)])
        self.refused(follower, [forged(follower, "cmd-finish-1")], "cmd-finish-1 came again: decision 1")

    @pytest.mark.parametrize(
        ("event", "error", "match"),
        [
            (("InstanceDeleted", 2, "i", "{}"), LogTooNew, "Event 1: A InstanceDeleted has version 2"),
            (("Newcomer", 1, "i", "{}"), LogTooNew, "Event 1: This version of Cuebook knows no Newcomer"),
            (("InstanceDeleted", 1, "i", "{}"), Unreadable, "Event 1: A InstanceDeleted of version 1 can't"),
        ],
        ids=["a newer version", "a newer type", "a broken body"],
    )
    def test_what_can_not_be_read_is_named(
        self, follower: EventLog, event: tuple[str, int, str, str], error: type, match: str
    ):
        self.refused(follower, [forged(follower, "cmd", event)], match, error)

    @pytest.mark.parametrize(
        ("column", "value", "error", "match"),
        [
            ("command_version", 2, LogTooNew, "Decision 1: A DeleteInstance has version 2"),
            ("facts", "{}", Unreadable, "Decision 1: its facts or its reason can't be read"),
        ],
    )
    def test_a_decision_that_can_not_be_read_is_named(
        self, follower: EventLog, column: str, value: object, error: type, match: str
    ):
        self.refused(follower, [forged(follower, "cmd", **{column: value})], match, error)

    # Run map

    def test_the_run_map(self, master: EventLog, driver: Driver):
        with LogReader.open(master.path, driver=driver) as reader:
            assert (reader.runs(), reader.last()) == ([], (None, 0))
            master.append([finish(0)])
            assert (reader.runs(), reader.last()) == ([], (None, 1))
            master.append([start(), finish(1), refuse(2), start(3, "b"), start(4, "c"), request(5)])
            master.append([draft(start(9, "d").command, rejection=refuse(0).rejection)])
            node = ("node-1", "inc-1")
            assert reader.runs() == [(1, *node, 2, 4), (3, *node, 5, 5), (4, *node, 6, 8)]
            assert reader.last() == ((4, *node), 8)

    def test_the_run_map_is_found_by_an_index(self, master: EventLog):
        plan = query(master._connection, f"EXPLAIN QUERY PLAN {_STARTS.replace('?', '9')}")
        assert "epoch_starts" in plan[0][3]


def _renamed(each: Draft, n: int):
    return msgspec.structs.replace(each.command, command_id=f"{each.command.command_id}-{n}")


def forged(log: EventLog, command_id: str, *events: tuple[str, int, str, str], **columns: object) -> bytes:
    """An entry that a log's next decision could be, whatever its content, with hashes that hold."""
    tail = log._tail
    command, known = DeleteInstance(command_id=command_id, instance_id="i"), facts()
    decision = DecisionColumns(
        tail.decision_id + 1, command_id, "DeleteInstance", 1, encode(command), encode(known), "cluster", 1,
        1, NODE, None, tail.seq + 1, len(events), T0,
    )._replace(**columns)  # fmt: skip
    entry = Entry(tail.decision_hash, tail.event_hash, decision, "", list(events))
    event_hash = tail.event_hash
    for seq, (name, version, subject, body) in enumerate(events, tail.seq + 1):
        row = (seq, 1, decision.decision_id, name, version, subject, NODE, T0, body)
        event_hash = link(event_hash, row)
    own = link(tail.decision_hash, decision, event_hash if events else "")
    return msgspec.msgpack.encode(msgspec.structs.replace(entry, hash=own))
