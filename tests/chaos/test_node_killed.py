"""kill -9 of the whole node at random moments: what was acknowledged is there, the rest is told as it was."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir

from actors.decider import VERSION, decide
from actors.refusal import Rejected
from events.check import check
from events.reader import LogReader
from projections.invariants import violations
from projections.snapshot import catch_up
from projections.state import ClusterState
from projections.verify import verify

MODEL = "tiny"


@dataclass
class Acknowledged:
    """What the node has answered, hence must know for ever."""

    placed: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    finished: dict[str, int] = field(default_factory=dict)
    """Completion id to its number of tokens."""


class Client(threading.Thread):
    """Chats, places and deletes for as long as the node answers; notes what was acknowledged."""

    def __init__(self, node: ServedNode, known: Acknowledged, seed: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._known = known
        self._random = random.Random(seed)
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self._one()
            except OSError:
                return  # killed
            except ValueError:
                return  # cut in the middle of an answer

    def _one(self) -> None:
        if self._random.random() < 0.8:
            self._chat()
        else:
            self._extra_instance()

    def _chat(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "go"}], "max_tokens": 30}
        status, answer = self._node.request("POST", "/v1/chat/completions", body)
        if status == 200:
            self._known.finished[answer["id"]] = answer["usage"]["completion_tokens"]
        else:
            assert status == 503, answer
            time.sleep(0.05)

    def _extra_instance(self) -> None:
        settings = {"context": 64, "batch": 1}
        status, answer = self._node.request(
            "POST", "/instance", {"model_id": MODEL, "placement_settings": settings}
        )
        if status != 200:
            return
        extra = answer["instance_id"]
        self._known.placed.add(extra)
        time.sleep(self._random.random())
        status, _ = self._node.request("DELETE", f"/instance/{extra}")
        if status == 200:
            self._known.deleted.add(extra)


def _check_record(node: ServedNode, known: Acknowledged) -> ClusterState:
    """The file alone: whole, chained, every acknowledged thing in it, every decision re-made."""
    report = check(node.log)
    assert report.ok, report
    with LogReader.open(node.log) as reader:
        state = catch_up(ClusterState(), reader)
        assert violations(state) == []
        verified = verify(reader, decide, refusal=Rejected, decider_version=VERSION)
        assert verified.ok, verified.render()
        events = [recorded.event for recorded in reader.events()]
    requested = {e.subject for e in events if type(e).__name__ == "InstanceRequested"}
    deleted = {e.subject for e in events if type(e).__name__ == "InstanceDeleted"}
    assert known.placed <= requested
    assert known.deleted <= deleted
    created = {e.task_id: e.request_id for e in events if type(e).__name__ == "TaskCreated"}
    finished: dict[str, int] = {}
    ends: list[str] = []
    for event in events:
        name = type(event).__name__
        if name in ("TaskFinished", "TaskFailed", "TaskCancelled"):
            ends.append(event.subject)
        if name == "TaskFinished":
            finished[created[event.subject]] = event.usage.completion_tokens
    assert len(ends) == len(set(ends)), "a task ended twice"
    assert set(ends) == set(created) - set(state.tasks), "a task never ended"
    for completion_id, tokens in known.finished.items():
        request = completion_id.removeprefix("chatcmpl-")
        assert finished.get(request) == tokens, f"{completion_id} was answered and is not in the log"
    return state


def _kills(home: Path, rounds: int) -> None:
    tiny_model_dir(home / "models" / MODEL, endless=True)
    node = ServedNode(home, prefill_chunk=8)
    known = Acknowledged()
    try:
        _survive(node, known, rounds)
    finally:
        node.stop()


def _survive(node: ServedNode, known: Acknowledged, rounds: int) -> None:
    chance = random.Random(rounds)
    node.start()
    main = node.place(MODEL, context=512, batch=4)
    known.placed.add(main)
    for round_ in range(rounds):
        clients = [Client(node, known, seed=100 * round_ + i) for i in range(3)]
        for client in clients:
            client.start()
        # From inside the load (the first second) to well inside generation.
        time.sleep(chance.choice([0.05, 0.3, 1.0, 2.0, 4.0]) * chance.random())
        node.kill()
        for client in clients:
            client.ended.set()
            client.join(30)
        _check_record(node, known)
        node.start()
        _clear(node, known, keep=main)
        if round_ % 5 == 4:
            node.ready(main)
    node.ready(main)
    _check_alive(node, known)
    assert node.stop() == 0


def _clear(node: ServedNode, known: Acknowledged, keep: str) -> None:
    """Delete what the clients could not: it has come back with the node, as it should."""
    for instance in node.get("/instance")["instances"]:
        extra = instance["instance_id"]
        if extra != keep:
            assert node.request("DELETE", f"/instance/{extra}")[0] == 200
            known.deleted.add(extra)


def _check_alive(node: ServedNode, known: Acknowledged) -> None:
    """The running node's state is the replayed one, and its orphans are gone."""
    eventually(lambda: not _open_extras(node, known))
    eventually(lambda: len(node.runner_pids()) == len(node.get("/instance")["instances"]))
    with LogReader.open(node.log) as reader:
        state = catch_up(ClusterState(), reader)

        def same() -> bool:
            live = node.get("/state")
            catch_up(state, reader)
            return (live["seq"], set(live["instances"]), live["runners"].keys()) == (
                state.seq,
                set(state.instances),
                state.runners.keys(),
            )

        eventually(same)


def _open_extras(node: ServedNode, known: Acknowledged) -> list[Any]:
    for instance in node.get("/instance")["instances"]:
        if instance["instance_id"] in known.deleted:
            return [instance]
    return []


def test_five_kills(tmp_path: Path) -> None:
    _kills(tmp_path, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills(tmp_path: Path) -> None:
    _kills(tmp_path, 50)
