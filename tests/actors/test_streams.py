"""Prompts and tokens between nodes: each goes where its runner or its client is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from actors.streams import KEPT_S, PromptFor, PromptShelf, Said, TokenHub
from engines.contract import Prompt
from engines.wire import Admitted, Chunk, Progress, TaskDone
from events.values import Timings, Usage

GO = Prompt(kind="completion", text="Go.")
TIMINGS = Timings(queued_s=0.0, prefill_s=0.1, decode_s=0.2)


def chunk(task_id: str, text: str = "a") -> Chunk:
    return Chunk(task_id=task_id, text=text, tokens=[1])


def done(task_id: str) -> TaskDone:
    return TaskDone(
        task_id=task_id,
        finish_reason="stop",
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        timings=TIMINGS,
    )


def progress(*chunks: Chunk) -> Progress:
    return Progress(chunks=list(chunks), prefilling=["other"], decoding=[c.task_id for c in chunks])


@dataclass
class End:
    """The hub of one node, and what came out of it."""

    hub: TokenHub
    said: list[Said] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    prompts: list[PromptFor] = field(default_factory=list)

    def texts(self) -> list[tuple[str, str]]:
        return [(c.task_id, c.text) for m in self.said if isinstance(m, Progress) for c in m.chunks]


class Net:
    """Hubs of several nodes; what one sends waits in its way until it is let through."""

    def __init__(self, *names: str) -> None:
        self.ways: dict[tuple[str, str], deque[bytes]] = {}
        self.ends = {name: End(TokenHub(name)) for name in names}
        for name, end in self.ends.items():
            end.hub.attach(end.said.append, end.lost.append)
            end.hub.on_prompt(end.prompts.append)
            end.hub.connect(self._sender(name))

    def _sender(self, name: str) -> Callable[[str, bytes], bool]:
        def send(node_id: str, payload: bytes) -> bool:
            self.ways.setdefault((name, node_id), deque()).append(payload)
            return True

        return send

    def let_through(self) -> None:
        for (name, node_id), way in self.ways.items():
            while way:
                self.ends[node_id].hub.arrived(name, way.popleft())


def test_what_is_for_clients_here_stays_here() -> None:
    net = Net("a", "b")
    net.ends["a"].hub.publish(progress(chunk("t1")))
    assert net.ends["a"].said == [progress(chunk("t1"))], "as it came, with what the engine works on"
    assert net.ways == {}


def test_one_step_of_an_engine_is_split_by_the_nodes_of_its_clients() -> None:
    net = Net("a", "b", "c")
    hub = net.ends["a"].hub
    hub.route("t1", "a")
    hub.route("t2", "b")
    hub.route("t3", "c")
    hub.route("t4", "b")
    hub.publish(progress(chunk("t1", "1"), chunk("t2", "2"), chunk("t3", "3"), chunk("t4", "4")))
    net.let_through()
    assert net.ends["a"].texts() == [("t1", "1")]
    assert net.ends["b"].texts() == [("t2", "2"), ("t4", "4")]
    assert net.ends["c"].texts() == [("t3", "3")]
    assert len(net.ends["b"].said) == 1, "one message a node, not one a task"


def test_first_and_last_words_of_a_task_go_the_way_of_its_text() -> None:
    net = Net("a", "b")
    hub = net.ends["a"].hub
    hub.route("t1", "b")
    said: list[Said] = [Admitted(task_id="t1", prompt_tokens=3), progress(chunk("t1")), done("t1")]
    for message in said:
        hub.publish(message)
    net.let_through()
    assert [type(message) for message in net.ends["b"].said] == [Admitted, Progress, TaskDone]
    assert net.ends["a"].said == net.ends["b"].lost == []


def test_a_task_that_has_ended_has_no_way_any_more() -> None:
    net = Net("a", "b")
    hub = net.ends["a"].hub
    hub.route("t1", "b")
    hub.unroute("t1")
    hub.unroute("t-unheard-of")
    hub.publish(progress(chunk("t1")))
    assert net.ways == {}


def test_a_prompt_travels_to_the_node_of_the_runner() -> None:
    net = Net("a", "b")
    prompt = Prompt(kind="chat", messages=({"role": "user", "content": "go"},))
    assert net.ends["a"].hub.ship("b", PromptFor("request-1", 0, prompt))
    net.let_through()
    ((request_id, index, arrived),) = [(p.request_id, p.index, p.prompt) for p in net.ends["b"].prompts]
    assert (request_id, index) == ("request-1", 0)
    assert list(arrived.messages) == [{"role": "user", "content": "go"}]
    assert net.ends["b"].said == []


def test_without_a_network_nothing_is_sent() -> None:
    hub = TokenHub("a")
    assert not hub.ship("b", done("t1"))
    hub.publish(done("t1"))  # and nobody serves clients


def test_a_prompt_is_taken_once() -> None:
    shelf = PromptShelf()
    shelf.put("request-1", [Prompt(kind="completion", text="one"), Prompt(kind="completion", text="two")])
    assert len(shelf) == 2
    taken = shelf.take("request-1", 1)
    assert taken is not None
    assert taken.text == "two"
    assert shelf.take("request-1", 1) is None
    assert len(shelf) == 1


def test_a_prompt_whose_task_has_ended_elsewhere_is_not_kept_for_ever() -> None:
    shelf = PromptShelf()
    for number in range(10):
        shelf.put_strange(PromptFor(f"request-{number}", 0, GO), now=100.0 + number)
    assert shelf.take("request-9", 0) == GO
    assert len(shelf) == 9
    shelf.put("ours", [GO])
    shelf.put_strange(PromptFor("later", 0, GO), now=109.0 + KEPT_S)
    assert len(shelf) == 2
    assert shelf.take("ours", 0) is not None
