"""A node's journal and master on NATS, in a process of their own: its code, and `StreamedNode`, which is it.

On standard input it takes command ids, a line each, decides on them and says how: ``<id> decided <decision>
<epoch>``, ``<id> failed <why>``. What else it says: ``role <role>`` and ``branch <fork> <command ids>``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.cluster import POLICY
from support.transports import eventually

import actors.master
from actors.address import Address
from actors.deferred import Deferred
from actors.jetstream.client import JetStream
from actors.journal import Lead
from actors.master import Master
from actors.net.nats import NatsSettings
from actors.ordering.interface import Member
from actors.refusal import MailboxFull, Stopped
from actors.replica import Paths
from actors.streamed_journal import StreamedJournal
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorSystem
from events import commands as cmd
from events.commands import Command
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.ids import fresh
from events.record import Committed


def cancel(command_id: str) -> cmd.CancelTasks:
    """A command that is accepted and changes nothing."""
    return cmd.CancelTasks(command_id=command_id, task_ids=[], reason="for the test")


_saying = threading.Lock()


def say(*words: object) -> None:
    with _saying:  # several threads speak, a line each
        print(*words, flush=True)


class ToldMaster(Master):
    """Says what its role is, and what it tells the cluster of branches."""

    def _hand_over(self, command: Command) -> Any:
        if isinstance(command, cmd.ReportBranch):
            say("branch", command.fork, *command.command_ids)
        return super()._hand_over(command)

    def _take_role(self, role: Any) -> None:
        super()._take_role(role)
        say("role", type(role).__name__, *role)


def main(home: str, node_id: str, cluster: str, servers: str) -> None:
    actors.master.PATIENCE_S = 2.0  # there is no router to pass commands on
    paths = Paths(Path(home) / "log.db", Path(home) / "snapshots", STDLIB)
    feed, nobody = CommitFeed(paths.log), Address("router")
    incarnation = fresh("start")
    settings = NatsSettings(servers=tuple(servers.split(",")), cluster=cluster)
    journal = ChildSpec(
        "journal",
        lambda: StreamedJournal(Member(node_id, incarnation), paths, feed, lambda: JetStream(settings)),
        start_timeout=60,
    )
    master = ChildSpec(
        "master",
        lambda: ToldMaster(node_id, incarnation, journal.address, nobody, paths, feed, POLICY),
        start_timeout=60,
    )
    supervisor = Supervisor([journal, master], strategy="rest_for_one")
    root = Address("root")
    supervisor.launch(root, ActorSystem())
    supervisor.wait_started(60)
    say("up")
    for line in sys.stdin:
        command_id = line.strip()
        try:
            answer = master.address.ask_future(cancel(command_id))
        except (MailboxFull, Stopped) as error:
            say(command_id, "failed", error)
        else:
            answer.add_done_callback(partial(_say_answer, command_id))
    supervisor.stop()
    root.join(30)


def _say_answer(command_id: str, answer: Deferred[Committed]) -> None:
    if answer.error is None:
        say(command_id, "decided", answer.get().decision_id, answer.get().epoch)
    else:
        say(command_id, "failed", answer.error)


class StreamedNode:
    """That process."""

    def __init__(self, root: Path, node_id: str, cluster: str, servers: tuple[str, ...]) -> None:
        self.home = root / node_id
        self.home.mkdir(parents=True, exist_ok=True)
        self.node_id = node_id
        self._arguments = [str(self.home), node_id, cluster, ",".join(servers)]
        self._process: subprocess.Popen[str] | None = None
        self.said: list[str] = []
        self._answers: dict[str, list[list[str]]] = {}

    @property
    def log(self) -> Path:
        return self.home / "log.db"

    def start(self) -> StreamedNode:
        with (self.home / "errors.txt").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.streamed_node", *self._arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        self.said, self._answers = [], {}
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def wait_up(self) -> StreamedNode:
        eventually(lambda: "up" in self.said or self._ended(), 60)
        assert not self._ended(), self.errors()
        return self

    def errors(self) -> str:
        return (self.home / "errors.txt").read_text()[-4000:]

    def ask(self, *command_ids: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command_id}\n" for command_id in command_ids))
        self._process.stdin.flush()

    def answer(self, command_id: str) -> list[str]:
        """What became of a command: ``["decided", id, epoch]`` or ``["failed", ...]``; empty so far."""
        answers = self._answers.get(command_id, [])
        assert len(answers) <= 1, answers
        return answers[0] if answers else []

    def decide(self, *command_ids: str, timeout: float = 60) -> None:
        """Have commands decided, asking again where that failed."""
        deadline = time.monotonic() + timeout
        open_ids = list(command_ids)
        while open_ids:
            assert time.monotonic() < deadline, self.said[-20:]
            for each in open_ids:
                self._answers.pop(each, None)
            self.ask(*open_ids)
            eventually(partial(self._answered, open_ids), timeout)
            open_ids = [each for each in open_ids if self.answer(each)[0] == "failed"]

    def _answered(self, command_ids: list[str]) -> bool:
        return self._answers.keys() >= set(command_ids)

    @property
    def roles(self) -> list[list[str]]:
        return [line.split()[1:] for line in self.said if line.startswith("role ")]

    @property
    def leads(self) -> bool:
        return bool(self.roles) and self.roles[-1][0] == Lead.__name__

    @property
    def epoch(self) -> int:
        """The newest epoch that it led."""
        return max((int(role[1]) for role in self.roles if role[0] == Lead.__name__), default=0)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"the node did not stop:\n{self.errors()}") from None

    def _ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            subject, *rest = line.split()
            if rest and rest[0] in ("decided", "failed"):
                self._answers.setdefault(subject, []).append(rest)
            else:
                self.said.append(line.strip())


@contextmanager
def streamed_nodes(
    root: Path,
    servers: tuple[str, ...],
    node_ids: str = "abc",
    cluster: str = "stage",
    *,
    lead: bool = True,
) -> Iterator[list[StreamedNode]]:
    """Nodes that are up, and with ``lead`` one of them leads."""
    nodes = [StreamedNode(root, f"node-{name}", cluster, servers) for name in node_ids]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_up()
        eventually(lambda: not lead or any(node.leads for node in nodes), 60)
        yield nodes
    finally:
        for node in nodes:
            node.signal(signal.SIGCONT)
            node.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
