"""A served mixture whose experts move all the time: clients that compare answers, and looks at its log."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.command import Cuebook
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir
from support.upcycled import upcycle

from actors.decider import VERSION, decide
from actors.refusal import Rejected
from engines.experts import maps
from events.expert_events import ExpertsPlaced, LayerApplied, LayerCommitted
from events.reader import LogReader
from projections.invariants import violations
from projections.snapshot import load_state
from projections.state import Experts
from projections.verify import verify

MIXTURE = "mixture"
LAYERS = 12
TOKENS = 60
PROMPTS = ["The stage is dark", "Stand by, cue twelve", "Señor Müller naïvely"]
RESTLESS = {"redundant_experts": 2, "window": 10, "interval": 12, "min_tokens": 8, "horizon_s": 1e6}
"""Of the balancer: every window of a second or less may move experts of many layers."""

SPREAD = {"shard_strategy": "expert", "context": 512, "batch": 4, "dtype": "float32"}
"""In float32: in bfloat16 the order in which ranks sum up may turn a token that was nearly another."""

_HANG_S = 90.0


def restless_mixture(root: Path) -> Path:
    """A mixture with a skewed router, whose experts differ, in a directory of models; that directory."""
    dense = tiny_model_dir(root / "dense", layers=LAYERS, endless=True)
    upcycle(dense, root / "models" / MIXTURE, skew=3.0, noise=0.5)
    return root / "models"


def truth(node: ServedNode, **settings: object) -> dict[str, str]:
    """What the mixture answers where one rank has all experts, by prompt."""
    alone = node.place(MIXTURE, ranks=1, context=512, batch=4, dtype="float32", **settings)
    node.ready(alone, 120)
    said: dict[str, str] = {}
    for prompt in PROMPTS:
        status, answered = node.request("POST", "/v1/completions", _asked(alone, prompt))
        assert status == 200, answered
        said[prompt] = answered["choices"][0]["text"]
    assert node.request("DELETE", f"/instance/{alone}")[0] == 200
    return said


def _asked(model: str, prompt: str) -> dict[str, object]:
    return {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}


class Answer(NamedTuple):
    """How a stream ended: with a finish reason, with an error, or cut off with neither."""

    prompt: str
    text: str
    finish: str
    error: str


class Traffic:
    """Clients that stream completions through an API, one after the other, as long as the block runs.

    Each prompt has a client. None may hang; when the block ends, what was said must be the beginning of the
    truth, and all of it where the answer finished.
    """

    def __init__(self, url: str, model: str, truth: dict[str, str]) -> None:
        self.answers: list[Answer] = []
        self._url = url
        self._model = model
        self._truth = truth
        self._over = threading.Event()
        self._clients = [threading.Thread(target=self._go_on, args=(p,), daemon=True) for p in PROMPTS]

    def __enter__(self) -> Traffic:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        deadline = time.monotonic() + _HANG_S
        for client in self._clients:
            client.join(max(0.0, deadline - time.monotonic()))
        if kind is None:
            assert not any(client.is_alive() for client in self._clients), "an answer hangs"
            self._check()

    @property
    def finished(self) -> int:
        """Answers that are whole."""
        return sum(bool(answer.finish) for answer in self.answers)

    @property
    def errors(self) -> list[str]:
        """Sentences of those that ended with one."""
        return [answer.error for answer in self.answers if answer.error]

    @property
    def cut(self) -> int:
        """Answers whose connection broke."""
        return sum(not answer.finish and not answer.error for answer in self.answers)

    def _check(self) -> None:
        for answer in self.answers:
            right = self._truth[answer.prompt]
            assert right.startswith(answer.text), (answer, right)
            assert not answer.finish or answer.text == right, (answer, right)

    def _go_on(self, prompt: str) -> None:
        while not self._over.is_set():
            answer = self._ask(prompt)
            self.answers.append(answer)
            if not answer.finish:
                self._over.wait(0.2)

    def _ask(self, prompt: str) -> Answer:
        text = finish = error = ""
        body = json.dumps({**_asked(self._model, prompt), "stream": True}).encode()
        request = urllib.request.Request(
            f"{self._url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_HANG_S) as said:
                for chunk in _data(said):
                    error = chunk.get("error", {}).get("message", "")
                    for choice in chunk.get("choices", []):
                        text += choice["text"]
                        finish = choice["finish_reason"] or ""
        except urllib.error.HTTPError as refused:
            error = json.loads(refused.read())["error"]["message"]
        except TimeoutError:
            raise
        except OSError:
            pass
        return Answer(prompt, text, finish, error)


def _data(said: Any) -> Iterator[Any]:
    for line in said:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def happened(
    url: str, instance_id: str, types: str, *, after: int = 0, layers: int = 1, timeout: float = 60
) -> dict[str, Any]:
    """The next event of these types, as the API streams it; planned migrations have so many layers."""
    deadline = time.monotonic() + timeout
    with urllib.request.urlopen(
        f"{url}/events?follow=1&after={after}&subject={instance_id}&type={types}", timeout=timeout
    ) as said:
        for recorded in _data(said):
            assert time.monotonic() < deadline
            event = recorded["event"]
            if event["type"] != "MigrationPlanned" or len(event["layers"]) >= layers:
                return recorded
    raise AssertionError(f"the stream ended without {types}")


def head(node: ServedNode) -> int:
    """The number of the last event."""
    seq: int = node.get("/state")["seq"]
    return seq


def experts(node: ServedNode, instance_id: str) -> Experts:
    with LogReader.open(node.log) as reader:
        return load_state(reader).experts[instance_id]


def pids(node: ServedNode, instance_id: str) -> list[int]:
    """Of the instance's runners, by rank."""
    with LogReader.open(node.log) as reader:
        state = load_state(reader)
    return [runner.pid for runner in state.instance_runners(state.instances[instance_id])]


def committed(node: ServedNode, instance_id: str) -> list[list[int]]:
    """The maps, from the events alone. Each digest that all ranks answered is that of the committed map."""
    found: list[list[int]] = []
    with LogReader.open(node.log) as reader:
        for recorded in reader.events(subject=instance_id):
            match recorded.event:
                case ExpertsPlaced() as event:
                    found = [list(layer) for layer in event.maps]
                case LayerCommitted() as event:
                    found[event.layer] = event.map
                case LayerApplied() as event:
                    layer = found[event.layer]
                    assert event.digest == maps.digest(layer, maps.lookup_table(layer, max(layer) + 1))
                case _:
                    pass
    return found


def ends(node: ServedNode, instance_id: str, after: int = 0) -> dict[str, str]:
    """What became of each migration planned after that number: ``sealed``, ``aborted``, or empty so far."""
    found: dict[str, str] = {}
    with LogReader.open(node.log) as reader:
        for recorded in reader.events(subject=instance_id, after=after):
            name = type(recorded.event).__name__
            migration_id = getattr(recorded.event, "migration_id", "")
            match name:
                case "MigrationPlanned":
                    found[migration_id] = ""
                case "ExpertEpochSealed" | "MigrationAborted" if migration_id in found:
                    assert not found[migration_id], "a migration ended twice"
                    found[migration_id] = "sealed" if name == "ExpertEpochSealed" else "aborted"
                case _:
                    pass
    return found


class Struck(NamedTuple):
    """A migration that something is about to hit."""

    instance_id: str
    migration_id: str
    before: int
    """The number of the event before it."""

    def is_of(self, event: dict[str, Any]) -> bool:
        """Whether an event tells of it."""
        return event["migration_id"] == self.migration_id

    def end(self, node: ServedNode) -> str:
        """What became of it, as soon as the node's log says."""
        found: list[str] = []

        def over() -> str:
            found[:] = [ends(node, self.instance_id, self.before).get(self.migration_id, "")]
            return found[0]

        eventually(over, 90, node.output)
        return found[0]


def in_mid_migration(node: ServedNode, instance_id: str, at: str, *, layers: int) -> Struck:
    """Wait until a migration of so many layers begins: ``staging`` or, one committed, ``applying``."""
    planned = happened(node.url, instance_id, "MigrationPlanned", after=head(node), layers=layers)
    if at == "applying":
        happened(node.url, instance_id, "LayerCommitted", after=planned["seq"])
    return Struck(instance_id, planned["event"]["migration_id"], planned["seq"] - 1)


def check_log(node: ServedNode) -> None:
    """Every decision comes out the same again, and the state keeps its invariants."""
    with LogReader.open(node.log) as reader:
        report = verify(reader, decide, refusal=Rejected, decider_version=VERSION)
        assert report.ok, report.render()
        assert violations(load_state(reader)) == []


def check_moves(node: ServedNode, instance_id: str, traffic: Traffic) -> None:
    """Traffic goes on, experts too: a migration that begins now is applied alike by all ranks.

    The state's maps are those of the events, and the tool tells the same.
    """
    before, after = traffic.finished, head(node)
    sealed = happened(node.url, instance_id, "ExpertEpochSealed", after=after, timeout=90)
    eventually(lambda: traffic.finished > before + len(PROMPTS), 60, node.output)
    epoch = sealed["event"]["epoch"]
    committed(node, instance_id)
    told = Cuebook(node.home)("replay", "why", f"{instance_id}@{epoch}")
    assert told.code == 0, told.err
    verified = Cuebook(node.home)("replay", "verify")
    assert verified.code == 0, verified.out + verified.err


def at_rest(node: ServedNode, instance_id: str) -> Experts:
    """The experts when traffic is over and nothing moves any more; its maps are those of the events."""
    found: list[Experts] = []

    def still() -> bool:
        found[:] = [experts(node, instance_id)]
        return found[0].migration is None and found[0].load is None

    eventually(still, 60, node.output)
    assert found[0].maps == committed(node, instance_id)
    return found[0]
