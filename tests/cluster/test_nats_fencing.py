"""A master of whole nodes on NATS that is one no longer: what it still wants to write is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

import nats
from nats.js import JetStreamContext
from support.chats import Request, chat_body
from support.served import ServedNode, eventually
from test_master_killed import place
from test_nats import DECIDED, SHORT, OnNats, equal_logs, on_nats
from test_worker_killed import chat

from actors.jetstream.lease import KEY
from actors.jetstream.messages import epoch_of
from actors.net.greeting import tag_of
from actors.ordering.epochs import Epoch
from events.reader import LogReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TAG = tag_of("stage").hex()
NOT_DECIDED = (502, 503, 504)
ROUNDS = 8


def ask(node: ServedNode, key: str) -> Request:
    """A command of this id, which leaves a record and changes nothing."""
    return Request(node, "DELETE", "/instance/none", None, Idempotency_Key=key)


class Load:
    """Commands through one node, one after the other on each of some threads, until `stop`."""

    def __init__(self, node: ServedNode, name: str, threads: int = 8) -> None:
        self.answers: dict[str, int] = {}
        self._node = node
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(f"{name}-{n}",), daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            key = f"{name}-{number}"
            self.answers[key] = ask(self._node, key).answer()[0]

    def stop(self) -> dict[str, int]:
        self._ends.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        return self.answers


def once_at_most(node: ServedNode, answers: dict[str, int]) -> None:
    """What was answered was done once; what got an error is done once when it is asked for again."""
    assert set(answers.values()) <= {DECIDED, *NOT_DECIDED}, Counter(answers.values())
    known = _decisions(node)
    for key, status in answers.items():
        assert known[key] <= 1
        assert status != DECIDED or known[key] == 1, key
        if status != DECIDED:
            assert ask(node, key).answer()[0] == DECIDED
    known = _decisions(node)
    assert {known[key] for key in answers} == {1}


def _decisions(node: ServedNode) -> Counter[str]:
    """How often each command was decided on."""
    with LogReader.open(node.log) as reader:
        return Counter(decision.command_id for decision in reader.decisions())


def epoch(node: ServedNode) -> int:
    return node.get("/state")["epoch"]


def said(node: ServedNode) -> str:
    """The node's log file."""
    return (node.home / "logs" / "node.log").read_text()


def refusals(node: ServedNode) -> list[str]:
    """What the node has told of being refused."""
    return [line for line in said(node).splitlines() if "wrong last sequence" in line]


async def _epochs(urls: tuple[str, ...]) -> list[Epoch]:
    """In which epoch each message of the stream was published, in their order."""
    async with await nats.connect(list(urls)) as client:
        js = JetStreamContext(client)
        last = (await js.stream_info(f"cuebook_{TAG}")).state.last_seq
        found = [await js.get_msg(f"cuebook_{TAG}", number) for number in range(1, last + 1)]
    return [epoch_of(message.subject or "") for message in found]


def in_order(net: OnNats, stale: ServedNode) -> None:
    """Epochs follow each other in the stream: nothing of a deposed master is in it after what deposed it."""
    epochs = asyncio.run(_epochs(net.servers.urls))
    assert epochs == sorted(epochs, key=lambda each: each.n)
    owners = {each.n: each.node_id for each in epochs}
    assert len(set(epochs)) == len(owners), "two masters published in one epoch"
    assert owners[max(owners)] != net.node_id(stale)


async def _take_the_lease(urls: tuple[str, ...]) -> None:
    """Take it away right after it was renewed: who has it does not look at it for a second."""
    async with await nats.connect(list(urls)) as client:
        bucket = await JetStreamContext(client).key_value(f"cuebook_{TAG}_lease")
        first = (await bucket.get(KEY)).revision
        while (await bucket.get(KEY)).revision == first:
            await asyncio.sleep(0.01)
        await bucket.delete(KEY)


def test_a_master_that_was_held_up_is_fenced(tmp_path: Path) -> None:
    """It stops for longer than its lease and its links last, with work under way, and then goes on."""
    with on_nats(tmp_path, 3) as net:
        instances = {node.port: place(net, node) for node in net.nodes}
        runners = [node.runner_pids() for node in net.nodes]
        stale = net.master(net.nodes[0])
        others = [node for node in net.nodes if node is not stale]
        before = epoch(others[0])
        load = Load(stale, "under-way")
        eventually(lambda: len(load.answers) > 40)
        os.kill(stale.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        keys = [f"both-{n}" for n in range(8)]
        asked = [(key, ask(node, key)) for key in keys for node in (stale, others[0])]
        chats = [
            Request(node, "POST", "/v1/chat/completions", chat_body(instances[others[0].port], SHORT))
            for node in net.nodes
        ]
        eventually(lambda: epoch(others[0]) > before)
        led = time.monotonic() - stopped
        net.together(*others)
        for node in others:
            chat(node, instances[node.port])

        os.kill(stale.pid, signal.SIGCONT)
        resumed = time.monotonic()
        net.together(*net.nodes)
        back = time.monotonic() - resumed
        under_way = load.stop()
        print(
            f"\nheld up: another leads after {led:.1f} s; who was follows {back:.1f} s after it goes on; "
            f"{len(under_way)} of its commands: {Counter(under_way.values())}"
        )
        assert net.master(others[0]) is not stale
        in_order(net, stale)
        fenced = ("The lease could not be renewed in time", "The lease of term", "is under way in term")
        assert any(each in said(stale) for each in fenced)
        once_at_most(others[0], under_way)
        for key, request in asked:
            once_at_most(others[0], {key: request.answer()[0]})
        for request in chats:
            status, _, body = request.answer()
            assert status in (200, *NOT_DECIDED), body
        for node in net.nodes:
            node.ready(instances[node.port])
            chat(node, instances[node.port])
        assert [node.runner_pids() for node in net.nodes] == runners, "a model was unloaded"
        equal_logs(*net.nodes)


def test_a_master_whose_lease_was_taken_is_refused_by_the_stream(tmp_path: Path) -> None:
    """It does not know yet that another leads, and goes on: one of both is refused, in some round it."""
    with on_nats(tmp_path, 3) as net:
        for node in net.nodes:
            place(net, node)
        runners = [node.runner_pids() for node in net.nodes]
        refused: list[str] = []
        for round_ in range(ROUNDS):
            if refused:
                break
            stale = net.master(net.nodes[0])
            others = [node for node in net.nodes if node is not stale]
            before, known = epoch(others[0]), refusals(stale)
            load = Load(stale, f"round-{round_}")
            eventually(lambda load=load: len(load.answers) > 40)
            asyncio.run(_take_the_lease(net.servers.urls))
            taken = time.monotonic()
            eventually(lambda others=others, before=before: epoch(others[0]) > before)
            led = time.monotonic() - taken
            net.together(*net.nodes)
            answers = load.stop()
            print(
                f"\nlease taken: another leads after {led:.2f} s; {len(answers)} commands: "
                f"{Counter(answers.values())}"
            )
            assert net.master(others[0]) is not stale
            refused = refusals(stale)[len(known) :]
            in_order(net, stale)
            once_at_most(others[0], answers)
        assert refused
        print(*refused, sep="\n")
        assert [node.runner_pids() for node in net.nodes] == runners, "a model was unloaded"
        equal_logs(*net.nodes)
