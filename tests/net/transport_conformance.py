"""What every transport has to do. A test module subclasses `TransportConformance` and gives it a `World`."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest
from support.transports import Recorder, eventually, peer

from actors.deferred import Deferred
from actors.net.transport import LinkLost, RequestFailed, Transport

MIB = 1024 * 1024


class World(ABC):
    """Nodes of one kind of transport, and the ways to hurt them."""

    queue_messages = 2_000

    def __init__(self) -> None:
        self.transports: dict[str, Transport] = {}
        self.recorders: dict[str, Recorder] = {}

    @abstractmethod
    def make(self, node_id: str, queue_messages: int) -> Transport:
        """A transport that isn't started."""

    @abstractmethod
    def break_link(self, one: str, other: str) -> None:
        """Break the links of two nodes, so that they can come back."""

    def stall(self, node_id: str) -> None:
        self.recorders[node_id].stalled.clear()

    def release(self, node_id: str) -> None:
        self.recorders[node_id].stalled.set()

    def start(self, *node_ids: str, queue_messages: int = 2_000) -> list[Transport]:
        for node_id in node_ids:
            self.recorders[node_id] = Recorder()
            self.transports[node_id] = self.make(node_id, queue_messages)
            self.transports[node_id].start(peer(node_id), self.recorders[node_id])
        for node_id in self.transports:
            eventually(
                lambda node_id=node_id: self.recorders[node_id].up == self.transports.keys() - {node_id}
            )
        return [self.transports[node_id] for node_id in node_ids]

    def stop(self) -> None:
        for recorder in self.recorders.values():
            recorder.stalled.set()
        for transport in self.transports.values():
            transport.stop()


class TransportConformance:
    @pytest.fixture
    def world(self) -> World:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def kept_promises(self, world: World) -> Iterator[None]:
        yield
        world.stop()
        assert {node_id: recorder.wrong for node_id, recorder in world.recorders.items()} == {
            node_id: [] for node_id in world.recorders
        }

    def test_peers_find_each_other(self, world: World) -> None:
        a, b, c = world.start("a", "b", "c")
        assert [p.node_id for p in a.peers()] == ["b", "c"]
        assert [p.node_id for p in c.peers()] == ["a", "b"]
        assert b.peers()[0].name == "name-of-a"
        assert b.peers()[0].api_url == "http://a:1"

    def test_messages_keep_their_order_in_each_lane(self, world: World) -> None:
        a, b = world.start("a", "b")
        payloads = [b"%d" % number for number in range(700)]

        def send_all(topic: str) -> None:
            for payload in payloads:
                assert a.send("b", topic, payload)

        threads = [threading.Thread(target=send_all, args=(topic,)) for topic in ("log", "stream")]
        for payload in payloads[:300]:
            assert b.send("a", "report", payload)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        heard = world.recorders["b"].heard
        eventually(lambda: len(heard.get(("a", "stream"), [])) == len(heard.get(("a", "log"), [])) == 700)
        assert heard["a", "log"] == heard["a", "stream"] == payloads
        eventually(lambda: world.recorders["a"].heard.get(("b", "report")) == payloads[:300])

    def test_topics_of_one_lane_keep_their_common_order(self, world: World) -> None:
        a, _ = world.start("a", "b")
        for number in range(200):
            a.send("b", ("log", "election", "report")[number % 3], b"%d" % number)
        a.request("b", "command", b"", 5).get(timeout=10)
        order = [entry[0] for entry in world.recorders["b"].of("message", "request")]
        assert order == ["message"] * 200 + ["request"]

    @pytest.mark.parametrize("topic", ["log", "stream"])
    def test_large_and_empty_messages_arrive_whole(self, world: World, topic: str) -> None:
        a, b = world.start("a", "b")
        large = bytes(range(256)) * (8 * MIB // 256)
        sent = [b"before", large, b"", b"x" * (64 * 1024), large[:70_000], b"after"]
        for payload in sent:
            assert a.send("b", topic, payload)
        assert b.send("a", topic, large)
        eventually(lambda: len(world.recorders["b"].heard.get(("a", topic), [])) == len(sent))
        assert world.recorders["b"].heard["a", topic] == sent
        eventually(lambda: world.recorders["a"].heard.get(("b", topic)) == [large])

    def test_broadcast_reaches_all(self, world: World) -> None:
        a, _, _ = world.start("a", "b", "c")
        a.broadcast("log", b"to all")
        for node_id in ("b", "c"):
            heard = world.recorders[node_id].heard
            eventually(lambda heard=heard: heard.get(("a", "log")) == [b"to all"])

    def test_a_message_can_be_sent_as_soon_as_the_peer_is_up(self, world: World) -> None:
        world.start("a")
        recorder = world.recorders["a"]
        recorder.on_up = lambda peer: world.transports["a"].send(peer.node_id, "log", b"welcome")
        world.start("b")
        eventually(lambda: world.recorders["b"].heard.get(("a", "log")) == [b"welcome"])

    def test_requests_are_answered(self, world: World) -> None:
        a, b = world.start("a", "b")
        assert a.request("b", "command", b"1", 5).get(timeout=10) == b"command:1"
        answers = [b.request("a", "log", b"%d" % number, 5) for number in range(100)]
        assert [answer.get(timeout=10) for answer in answers] == [b"log:%d" % n for n in range(100)]
        large = bytes(8 * MIB)
        assert a.request("b", "log", large, 20).get(timeout=30) == b"log:" + large

    def test_an_answer_may_come_later_and_from_another_thread(self, world: World) -> None:
        a, _ = world.start("a", "b")
        later: Deferred[bytes] = Deferred()
        world.recorders["b"].answer = lambda topic, payload: later
        answer = a.request("b", "command", b"", 10)
        assert not answer.wait(0.1)
        later.resolve(b"at last")
        assert answer.get(timeout=10) == b"at last"

    def test_a_failure_of_the_handler_comes_back_as_a_sentence(self, world: World) -> None:
        a, _ = world.start("a", "b")

        def fail(topic: str, payload: bytes) -> Deferred[bytes]:
            answer: Deferred[bytes] = Deferred()
            answer.fail(ValueError("No model of that name."))
            return answer

        world.recorders["b"].answer = fail
        with pytest.raises(RequestFailed, match=r"No model of that name\."):
            a.request("b", "command", b"", 5).get(timeout=10)

    def test_a_handler_that_raises_answers_too(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        a, _ = world.start("a", "b")

        def fail(topic: str, payload: bytes) -> Deferred[bytes]:
            raise ValueError("a bug")

        world.recorders["b"].answer = fail
        with pytest.raises(RequestFailed, match="a bug"):
            a.request("b", "command", b"", 5).get(timeout=10)
        assert a.send("b", "log", b"the link is well")
        eventually(lambda: world.recorders["b"].heard.get(("a", "log")))
        assert "failed" in caplog.text

    def test_a_request_without_an_answer_times_out(self, world: World) -> None:
        a, _ = world.start("a", "b")
        world.recorders["b"].answer = lambda topic, payload: Deferred()
        with pytest.raises(TimeoutError, match=r"b did not answer 'command' within 0\.3 s"):
            a.request("b", "command", b"", 0.3).get(timeout=30)

    def test_no_link_no_message(self, world: World) -> None:
        (a,) = world.start("a")
        assert not a.send("nobody", "log", b"")
        with pytest.raises(LinkLost, match="no link to node nobody"):
            a.request("nobody", "log", b"", 60).get(timeout=5)

    def test_a_broken_link_fails_its_requests_and_comes_back(self, world: World) -> None:
        a, b = world.start("a", "b")
        world.recorders["b"].answer = lambda topic, payload: Deferred()
        answer = a.request("b", "command", b"", 60)
        eventually(lambda: world.recorders["b"].of("request"))
        world.break_link("a", "b")
        with pytest.raises(LinkLost):
            answer.get(timeout=15)
        for node_id in ("a", "b"):
            ups = world.recorders[node_id]
            eventually(lambda ups=ups: [entry[0] for entry in ups.of("up", "down")] == ["up", "down", "up"])
        assert a.send("b", "log", b"again")
        assert b.send("a", "stream", b"again")
        eventually(lambda: world.recorders["b"].heard.get(("a", "log")) == [b"again"])
        eventually(lambda: world.recorders["a"].heard.get(("b", "stream")) == [b"again"])

    def test_what_arrives_around_breaks_is_in_order_and_of_one_life(self, world: World) -> None:
        a, _ = world.start("a", "b")
        done = threading.Event()

        def send_on() -> None:
            number = 0
            while not done.is_set():
                number += 1
                a.send("b", "log", b"%d" % number)
                time.sleep(0.0005)

        thread = threading.Thread(target=send_on)
        thread.start()
        try:
            for _ in range(2):
                seen = len(world.recorders["b"].of("up"))
                world.break_link("a", "b")
                eventually(lambda seen=seen: len(world.recorders["b"].of("up")) > seen)
                time.sleep(0.1)
        finally:
            done.set()
            thread.join()
        numbers = [int(payload) for payload in world.recorders["b"].heard["a", "log"]]
        assert numbers == sorted(set(numbers))

    def test_a_peer_that_is_too_slow_loses_its_link_and_nobody_else_does(self, world: World) -> None:
        a, _, _ = world.start("a", "b", "c", queue_messages=200)
        world.stall("b")
        payload = bytes(64 * 1024)
        deadline = time.monotonic() + 60
        while a.send("b", "log", payload):
            assert time.monotonic() < deadline, "the queue never overflowed"
        eventually(lambda: ("down", "b") in [entry[:2] for entry in world.recorders["a"].of("down")])
        why = world.recorders["a"].of("down")[0][2]
        assert "too slowly" in why
        for number in range(100):
            assert a.send("c", "log", b"%d" % number)
        eventually(lambda: len(world.recorders["c"].heard.get(("a", "log"), [])) == 100)
        assert not [entry for entry in world.recorders["a"].of("down") if entry[1] == "c"]
        world.release("b")
        eventually(lambda: "b" in world.recorders["a"].up and "a" in world.recorders["b"].up)

    def test_a_slow_stream_leaves_control_alone(self, world: World) -> None:
        a, _ = world.start("a", "b", queue_messages=50)
        world.stall("b")
        payload = bytes(256 * 1024)
        deadline = time.monotonic() + 60
        while a.send("b", "stream", payload):
            assert time.monotonic() < deadline, "the queue never overflowed"
        eventually(lambda: world.recorders["a"].of("stream lost"))
        world.release("b")
        eventually(lambda: "b" in world.recorders["a"].up and a.send("b", "stream", b"the last"))
        eventually(lambda: world.recorders["b"].heard.get(("a", "stream"), [b""])[-1] == b"the last")

    def test_a_peer_that_leaves_is_missed_at_once(self, world: World) -> None:
        a, b = world.start("a", "b")
        assert b.send("a", "log", b"my last words")
        b.stop()
        eventually(lambda: world.recorders["a"].of("down"))
        assert world.recorders["a"].of("down")[0][2] == "it left the cluster"
        assert world.recorders["a"].heard["b", "log"] == [b"my last words"]
        assert a.peers() == []
        assert not a.send("b", "log", b"")

    def test_stop_is_final_and_may_be_repeated(self, world: World) -> None:
        a, b = world.start("a", "b")
        a.stop()
        told = len(world.recorders["a"].log)
        a.stop()
        eventually(lambda: not b.send("a", "log", b""))
        time.sleep(0.2)
        assert len(world.recorders["a"].log) == told
        assert not a.send("b", "log", b"")
        assert a.peers() == []
