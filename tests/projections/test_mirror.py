"""projections.db: grown live, restarted, rebuilt, always the same, and always what the state says."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import History, drafts, logged, write_log

from events.log import EventLog
from events.reader import LogReader
from events.record import Committed, Draft
from projections import schema, snapshot
from projections.difference import difference
from projections.evolve import OutOfOrder
from projections.mirror import Mirror, rebuild
from projections.snapshot import load_state


def rows(path: Path, query: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query, parameters).fetchall()


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def mirrored(directory: Path, history: Sequence[Draft]) -> Path:
    reader = logged(directory, list(history))
    mirror = Mirror.open(directory / "projections.db", reader)
    mirror.catch_up(reader)
    mirror.close()
    return directory / "projections.db"


@settings(max_examples=15, deadline=None)
@given(drafts(150), st.integers(0, 1 << 16))
def test_live_grown_restarted_and_rebuilt_are_equal(history: list[Draft], seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        live, snapshots = directory / "projections.db", directory / "snapshots"
        log = EventLog.open(directory / "log.db")
        reader = LogReader.open(directory / "log.db")
        mirror = Mirror.open(live, reader, snapshots)
        position = 0
        while position < len(history):
            batch = history[position : position + chance.randrange(1, 20)]
            mirror.apply(log.append(batch))
            position += len(batch)
            if chance.random() < 0.2:
                mirror.close()
                if chance.random() < 0.5:
                    snapshot.save(reader, snapshots, reader.head())
                mirror = Mirror.open(live, reader, snapshots)
        mirror.close()
        log.close()
        rebuild(directory / "log.db", directory / "rebuilt.db")
        assert difference(live, directory / "rebuilt.db") == []


@settings(max_examples=15, deadline=None)
@given(drafts(150))
def test_tables_say_what_the_state_says(history: list[Draft]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = mirrored(Path(name), history)
        state = load_state(LogReader.open(Path(name) / "log.db"))
        assert rows(path, "SELECT node_id, status, memory_available_bytes FROM nodes ORDER BY 1") == sorted(
            (n.node_id, "up" if n.up else "down", n.memory_available) for n in state.nodes.values()
        )
        wanted = "SELECT instance_id, status, failed_attempts, cause FROM instances WHERE status <> 'deleted'"
        assert sorted(rows(path, wanted)) == sorted(
            (i.instance_id, i.status, i.attempts, i.cause.message if i.cause else None)
            for i in state.instances.values()
        )
        current = "SELECT runner_id, status FROM runners WHERE current ORDER BY 1"
        assert rows(path, current) == sorted(
            (r.runner_id, type(r.status).__name__) for r in state.runners.values() if r.current
        )
        assert rows(path, "SELECT task_id FROM tasks WHERE ended_at IS NULL ORDER BY 1") == sorted(
            (task_id,) for task_id in state.tasks
        )
        running = "SELECT node_id, model_id, done_bytes FROM downloads WHERE status = 'running' ORDER BY 1, 2"
        assert rows(path, running) == sorted(
            (d.node_id, d.model_id, d.done_bytes) for d in state.downloads.values() if d.status == "running"
        )
        stored = "SELECT model_id, node_id, path FROM model_locations WHERE gone_at IS NULL ORDER BY 1, 2"
        assert rows(path, stored) == sorted(
            (m.model_id, node, path) for m in state.models.values() for node, path in m.paths.items()
        )
        places = "SELECT instance_id, runner_id FROM instances JOIN ranks USING (placement_id) ORDER BY 1, 2"
        assert rows(path, places) == sorted(
            (i.instance_id, rank.runner_id)
            for i in state.instances.values()
            for rank in (i.placement.ranks if i.placement else ())
        )
        experts = "SELECT instance_id, layer, slot, expert, rank FROM expert_placements ORDER BY 1, 2, 3"
        assert rows(path, experts) == sorted(
            (e.instance_id, layer, slot, expert, slot // (len(slots) // e.ranks))
            for e in state.experts.values()
            for layer, slots in enumerate(e.maps)
            for slot, expert in enumerate(slots)
        )
        moving = "SELECT instance_id, migration_id, layers_applied FROM migrations WHERE status = 'open'"
        assert sorted(rows(path, moving)) == sorted(
            (e.instance_id, e.migration.migration_id, e.migration.position)
            for e in state.experts.values()
            if e.migration is not None
        )


def test_foreign_keys_hold(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(11).take(1500))
    assert rows(path, "PRAGMA foreign_key_check") == []
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_every_table_and_view_is_filled_by_a_long_history(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(11).take(1500))
    empty = [e.name for e in schema.catalogue() if not rows(path, f"SELECT 1 FROM {e.name} LIMIT 1")]
    assert empty == []


def test_failures_and_decisions_are_found_by_their_words(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(11).take(1500))
    matches = "SELECT rowid FROM failures_fts WHERE failures_fts MATCH ?"
    found = rows(path, f"SELECT sentence FROM failures WHERE rowid IN ({matches})", "killed")
    assert found
    assert all("killed" in str(sentence) for (sentence,) in found)
    assert rows(path, "SELECT 1 FROM decisions_fts WHERE decisions_fts MATCH 'delete'")


def test_a_failure_within_a_batch_leaves_whole_decisions(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(60))
    decisions = list(reader.decisions())
    mirror = Mirror.open(tmp_path / "projections.db", reader)
    mirror.apply(decisions[:20])
    with_gap = [d for d in decisions[20:] if d.events][1:]
    with pytest.raises(OutOfOrder):
        mirror.apply(with_gap)
    mirror.close()
    assert rows(tmp_path / "projections.db", "SELECT max(decision_id) FROM decisions") == [(20,)]
    again = Mirror.open(tmp_path / "projections.db", reader)
    again.catch_up(reader)
    again.close()
    rebuild(tmp_path / "log.db", tmp_path / "rebuilt.db")
    assert difference(tmp_path / "projections.db", tmp_path / "rebuilt.db") == []


def test_decisions_that_are_there_already_are_passed_over(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(60))
    decisions: list[Committed] = list(reader.decisions())
    mirror = Mirror.open(tmp_path / "projections.db", reader)
    mirror.apply(decisions)
    mirror.apply(decisions[-5:])
    mirror.apply([])
    assert mirror.position.decision_id == 60
    mirror.close()


def under_other_ids(history: list[Draft]) -> list[Draft]:
    replace = msgspec.structs.replace
    return [
        replace(draft, command=replace(draft.command, command_id=f"other-{draft.command.command_id}"))
        for draft in history
    ]


@pytest.mark.parametrize(
    "spoil", ["made by other code", "not a database", "of another log", "further than the log"]
)
def test_tables_that_do_not_fit_are_made_anew(tmp_path: Path, spoil: str) -> None:
    path = mirrored(tmp_path, History(3).take(60))
    log = tmp_path / "log.db"
    if spoil == "made by other code":
        execute(path, "PRAGMA user_version = 1")
    elif spoil == "not a database":
        path.write_bytes(b"anything else" * 1000)
    else:
        log = tmp_path / "other.db"
        history = History(3).take(30)
        write_log(log, history if spoil == "further than the log" else under_other_ids(History(3).take(90)))
    reader = LogReader.open(log)
    mirror = Mirror.open(path, reader)
    assert mirror.position == (0, 0)
    mirror.catch_up(reader)
    mirror.close()
    rebuild(log, tmp_path / "rebuilt.db")
    assert difference(path, tmp_path / "rebuilt.db") == []


def test_a_command_sent_again_after_a_rewind_is_another_history(tmp_path: Path) -> None:
    history = History(3).take(60)
    path = mirrored(tmp_path, history)
    log = EventLog.open(tmp_path / "log.db")
    log.rewind(59, "winner", "it had more followers", [], at=1.0)
    facts = msgspec.structs.replace(history[-1].facts, now=history[-1].facts.now + 5)
    (again,) = log.append([msgspec.structs.replace(history[-1], facts=facts)])
    log.close()
    assert again.decision_id == 60
    mirror = Mirror.open(path, LogReader.open(tmp_path / "log.db"))
    assert mirror.position == (0, 0)
    mirror.close()


def test_difference_names_the_table_and_the_rows(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(3).take(60))
    rebuild(tmp_path / "log.db", tmp_path / "rebuilt.db")
    execute(
        tmp_path / "rebuilt.db",
        "UPDATE nodes SET pid = 7 WHERE node_id = 'node-anna'",
        "DELETE FROM timeline WHERE seq = (SELECT max(seq) FROM timeline)",
    )
    found = difference(path, tmp_path / "rebuilt.db")
    assert [sentence.split(":")[0] for sentence in found] == ["timeline", "nodes"]


def test_difference_says_so_where_there_is_nothing_to_compare(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(3).take(10))
    old, junk = tmp_path / "old.db", tmp_path / "junk.db"
    rebuild(tmp_path / "log.db", old)
    execute(old, "PRAGMA user_version = 1")
    junk.write_bytes(b"anything else" * 1000)
    assert difference(path, old) == [f"{old} was made by another version of Cuebook, or is not ours"]
    assert difference(junk, path) == [f"{junk} was made by another version of Cuebook, or is not ours"]


def test_a_rebuild_replaces_the_old_database(tmp_path: Path) -> None:
    path = mirrored(tmp_path, History(3).take(60))
    execute(path, "DELETE FROM decisions")
    assert rebuild(tmp_path / "log.db", path).decision_id == 60
    assert rows(path, "SELECT count(*) FROM decisions") == [(60,)]
    assert sorted(file.name for file in tmp_path.glob("projections.db*")) == ["projections.db"]
