"""The answers of `cuebook replay`: each reads a log and prints, as text or as JSON."""

from __future__ import annotations

import sqlite3
import tempfile
from argparse import Namespace
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from actors.decider import VERSION, decide, make_decider
from actors.placement import PREFERENCES
from actors.refusal import Rejected
from actors.settings import Settings
from api.cli import replay_experts
from api.cli.console import print_json, say
from api.cli.errors import CliError
from api.cli.positions import seq_of
from api.cli.state_tables import show_state
from api.state_view import state_view
from events.chain import Break, verify_chain
from events.errors import LogLocked
from events.lock import WriterLock
from events.reader import LogReader
from projections import mirror, replay, schema, whatif, why_experts
from projections import timeline as timelines
from projections import verify as verifying
from projections import why as whys
from projections.difference import difference


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, and the open log to answer it from."""

    args: Namespace
    settings: Settings
    reader: LogReader

    @property
    def log(self) -> Path:
        """Path of the log."""
        return Path(self.args.log).expanduser() if self.args.log else self.settings.log_path

    @property
    def as_json(self) -> bool:
        """True where a program asks."""
        return self.args.json


def state(question: Question) -> int:
    """`replay state`."""
    seq = seq_of(question.reader, question.args.at)
    view = state_view(replay.state_at(question.reader, seq))
    if question.as_json:
        print_json(view)
    else:
        show_state(view)
    return 0


def diff(question: Question) -> int:
    """`replay diff`."""
    reader, args = question.reader, question.args
    before, after = seq_of(reader, args.before), seq_of(reader, args.after)
    changes = replay.diff(replay.state_at(reader, before), replay.state_at(reader, after))
    if question.as_json:
        print_json({"before": before, "after": after, "changes": changes})
        return 0
    say(f"From event {before} to event {after}:")
    for change in changes:
        name = f"{change.entity} {change.id}".rstrip()
        if change.field:
            say(f"  ~ {name}  {change.field}: {_short(change.before)} -> {_short(change.after)}")
        else:
            say(f"  {'+' if change.before is None else '-'} {name}")
    if not changes:
        say("  nothing changed")
    return 0


def why(question: Question) -> int:
    """`replay why`."""
    try:
        story = _story(question.reader, question.args.id)
    except whys.Unknown as error:
        raise CliError(str(error)) from error
    if question.as_json:
        print_json(story)
    else:
        say(whys.render_text(story))
    return 0


def _story(reader: LogReader, entity_id: str) -> whys.Story:
    epoch = why_experts.split(entity_id)
    return why_experts.why_epoch(reader, *epoch) if epoch else whys.why(reader, entity_id)


def timeline(question: Question) -> int:
    """`replay timeline`."""
    reader, args = question.reader, question.args
    lines = timelines.timeline(
        reader,
        after=seq_of(reader, args.after),
        upto=seq_of(reader, args.upto),
        types=args.type,
        subject=args.about,
        failures=args.failures,
    )
    if question.as_json:
        print_json(list(lines))
        return 0
    for line in lines:
        say(line.render())
    return 0


def verify(question: Question) -> int:
    """`replay verify`: the hash chain first, then every decision."""
    broken = verify_chain(question.log)
    start = max(0, min(question.args.after, question.reader.last_decision()))
    report = verifying.verify(question.reader, decide, refusal=Rejected, decider_version=VERSION, start=start)
    if question.as_json:
        print_json({"ok": broken is None and report.ok, "chain_break": broken, "decisions": report})
    else:
        say("The hash chain holds." if broken is None else _chain_break(broken))
        say(report.render())
    return 0 if broken is None and report.ok else 1


def _chain_break(broken: Break) -> str:
    return f"The hash chain breaks at {broken.table} {broken.position}: {broken.problem}."


def what_if(question: Question) -> int:
    """`replay what-if`: today's decider with another placement policy, against today's with its own.

    With a policy of the load balancer: its own experts, window by window, beside those that were.
    """
    if question.args.policy not in PREFERENCES:
        return replay_experts.what_if(question)
    other = make_decider(PREFERENCES[question.args.policy])
    report = whatif.what_if(question.reader, decide, other, refusal=Rejected)
    if question.as_json:
        print_json(report)
    else:
        say(f"With the placement policy {question.args.policy}:")
        say(report.render())
    return 0


def rebuild(question: Question) -> int:
    """`replay rebuild`: refused where a node may have the tables open."""
    args, beside = question.args, question.log.with_name("projections.db")
    target = Path(args.to).expanduser() if args.to else beside
    if args.compare:
        return _compare(question, target)
    if target.resolve() == question.log.resolve():
        raise CliError(f"{target} is the log itself: name another file for the tables.")
    lock = _lock(question.log) if target.resolve() == beside.resolve() else None
    try:
        position = mirror.rebuild(question.log, target)
    except (OSError, sqlite3.OperationalError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CliError(f"{target} can't be written: {reason}.") from error
    finally:
        if lock is not None:
            lock.release()
    if question.as_json:
        print_json({"path": str(target), "decisions": position.decision_id, "events": position.seq})
    else:
        say(f"{target} holds {position.decision_id} decisions and {position.seq} events.")
    return 0


def _lock(log: Path) -> WriterLock:
    """Keep nodes away from the log whose own tables are made anew."""
    try:
        return WriterLock(log)
    except LogLocked as error:
        raise CliError(f"{error} Or make the tables elsewhere with --to PATH.") from error
    except OSError as error:
        message = (
            f"{log.parent} can't be written: {error.strerror}. Make the tables elsewhere with --to PATH."
        )
        raise CliError(message) from error


def _compare(question: Question, existing: Path) -> int:
    if not existing.exists():
        raise CliError(f"There are no tables at {existing} to compare with; name them with --to PATH.")
    with tempfile.TemporaryDirectory(prefix="cuebook-") as directory:
        fresh = Path(directory) / "projections.db"
        grown = _copy(existing, Path(directory) / "grown.db")
        position = mirror.rebuild(question.log, fresh, as_far_as=grown)
        differences = difference(grown, fresh)
    if question.as_json:
        print_json({"path": str(existing), "events": position.seq, "differences": differences})
    else:
        say(f"{existing} and tables made anew from {position.seq} events:")
        for each in differences or ["every row of every table is equal"]:
            say(f"  {each}")
    return 1 if differences else 0


def _copy(tables: Path, copy: Path) -> Path:
    """A copy of tables that a node may be writing; the file itself where it has no tables of this version."""
    with (
        closing(sqlite3.connect(f"{tables.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy)) as dest,
    ):
        try:
            source.backup(dest)
            known = schema.stored_version(dest) == schema.version()
        except sqlite3.DatabaseError:
            known = False
    return copy if known else tables


_SHOWN = 160
"""Characters of a changed value that a line shows; `--json` has all of it."""


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
