"""What `cuebook replay` can't do it says in a sentence, and it harms no file that others need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from support.histories import History, logged

from api.cli import replay_commands
from api.cli.main import main
from events.check import check
from events.lock import WriterLock
from events.log import EventLog
from projections.difference import difference

HUGE = "99999999999999999999"

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    logged(tmp_path, History(3).take(40)).close()
    return tmp_path / "log.db"


@pytest.fixture
def ask(log: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str) -> tuple[int, str, str]:
        code = main(["replay", *words, "--log", str(log)])
        return code, *capsys.readouterr()

    return ask


def test_nothing_is_verified_after_a_number_beyond_all_logs(ask: Ask) -> None:
    code, out, _ = ask("verify", "--after", HUGE)
    assert (code, "0 decisions" in out) == (0, True)


def test_all_is_verified_after_a_number_before_all_logs(ask: Ask) -> None:
    code, out, _ = ask("verify", "--after", f"-{HUGE}")
    assert (code, "40 decisions" in out) == (0, True)


@pytest.mark.parametrize(
    "words", [["state", "--at"], ["diff"], ["timeline", "--after"], ["why"]], ids=lambda words: words[0]
)
def test_what_is_no_number_that_python_reads_is_not_there(ask: Ask, words: list[str]) -> None:
    code, _, err = ask(*words, "9" * 5000)
    assert (code, "no event" in err or "nothing on" in err) == (1, True)


def test_an_epoch_that_python_does_not_read_as_a_number(ask: Ask) -> None:
    code, _, err = ask("why", "instance-1@" + "9" * 5000)
    assert (code, "nothing on" in err) == (1, True)


def test_the_tables_never_take_the_log_s_place(ask: Ask, log: Path) -> None:
    for path in (log, log.parent / "." / "other" / ".." / "log.db"):
        code, _, err = ask("rebuild", "--to", str(path))
        assert (code, "is the log itself" in err) == (1, True)
    assert check(log).decisions == 40


def test_the_tables_of_a_running_node_stay_whoever_names_them(ask: Ask, log: Path) -> None:
    tables = log.with_name("projections.db")
    assert ask("rebuild")[0] == 0
    made = tables.stat().st_ino
    lock = WriterLock(log)
    for words in ((), ("--to", str(tables))):
        code, _, err = ask("rebuild", *words)
        assert (code, "is being written" in err) == (1, True)
    assert ask("rebuild", "--to", str(log.with_name("elsewhere.db")))[0] == 0
    lock.release()
    assert tables.stat().st_ino == made
    assert difference(tables, log.with_name("elsewhere.db")) == []


def test_tables_that_a_node_is_writing_are_compared_as_far_as_they_go(ask: Ask, log: Path) -> None:
    _, made, _ = ask("rebuild")
    node = EventLog.open(log)
    node.append(History(3).take(60)[40:])
    node.close()
    code, out, _ = ask("rebuild", "--compare")
    assert (code, "every row of every table is equal" in out) == (0, True)
    assert f"anew from {made.split()[-2]} events" in out
    with sqlite3.connect(log.with_name("projections.db")) as tables:
        tables.execute("UPDATE timeline SET sentence = 'Nothing happened' WHERE seq = 3")
    tables.close()
    code, out, _ = ask("rebuild", "--compare")
    assert (code, "Nothing happened" in out) == (1, True)


def test_what_are_no_tables_can_not_be_compared(ask: Ask, log: Path) -> None:
    log.with_name("notes.txt").write_text("no database " * 400)
    code, out, _ = ask("rebuild", "--compare", "--to", str(log.with_name("notes.txt")))
    assert (code, "notes.txt was made by another version of Cuebook, or is not ours" in out) == (1, True)


def test_a_log_where_nothing_can_be_written(ask: Ask, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path) -> WriterLock:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(replay_commands, "WriterLock", read_only)
    code, _, err = ask("rebuild")
    assert (code, "can't be written: Permission denied" in err) == (1, True)
    assert ask("rebuild", "--to", str(log.with_name("elsewhere.db")))[0] == 0


def test_tables_that_can_not_be_where_they_should(ask: Ask, log: Path) -> None:
    (log.parent / "directory").mkdir()
    for place in ("directory", "log.db/tables.db"):
        code, _, err = ask("rebuild", "--to", str(log.parent / place))
        assert (code, "can't be written" in err) == (1, True)
