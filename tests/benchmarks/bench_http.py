"""Tokens per second, first-token time and CPU per token through HTTP, and what of them the framework costs.

Run it: ``python tests/benchmarks/bench_http.py [--rounds N]``. Three servers of the same tiny model, which
costs nearly nothing, are up at the same time and take turns, in random order, with the same chats:

- ``cuebook serve``, over HTTP;
- the same engine alone in a process: the runner's builder and generator, stepped in a loop;
- ``mlx_lm.server``, over HTTP.

Every number is a median over the rounds, and a ratio is the median of the rounds' ratios, with its range:
above 1.0 where Cuebook is faster, or cheaper in CPU. The aims are 0.95 of the engine's tokens per second for
one stream and 0.90 for eight, and ahead of mlx_lm.server in everything.

Every engine has one thread. On a machine of two cores an engine, its server and the client compete all the
same, since MLX builds and computes on two threads of its own: the ratios are then those of a machine that is
full. The client counts bytes and parses nothing, see `support.lean_client`. Foreign work shifts all ratios,
so the load average is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.line_process import LineProcess
from support.mlx_server import MlxServer
from support.served import ServedNode
from support.tiny import tiny_model_dir

from actors.orders import CPU_PREFILL_CHUNK
from engines.registry import engine
from events.values import PlacementSettings

MODEL = "acme/endless"
BATCH = PlacementSettings().batch
TOKENS, SHORT = 1000, 8
STREAMS = (1, 8)
FIRST_REQUESTS = 10
"""Short requests, one after the other, in a slice that measures the time to the first token."""
ROUNDS = 9


class Slice(NamedTuple):
    """What one party did in its turn. CPU seconds are of the serving processes, not of the client."""

    tokens_per_s: float
    first_ms: float
    cpu_ms_per_token: float


class Case(NamedTuple):
    """What everybody is asked for in a turn: ``repeats`` times ``streams`` answers of ``tokens`` tokens."""

    streams: int
    tokens: int
    repeats: int


class Party:
    """One of the three. ``serve`` answers prompts at the same time: {seconds, first} in seconds."""

    def __init__(self, name: str, pids: Sequence[int], serve: Callable[[list[str], int], dict]) -> None:
        self.name = name
        self.processes = [psutil.Process(pid) for pid in pids]
        self.serve = serve

    def measure(self, case: Case, prompts: Sequence[list[str]]) -> Slice:
        before = self._cpu()
        answers = [self.serve(texts, case.tokens) for texts in prompts]
        tokens = case.repeats * case.streams * case.tokens
        return Slice(
            tokens_per_s=tokens / sum(answer["seconds"] for answer in answers),
            first_ms=1e3 * statistics.median(first for answer in answers for first in answer["first"]),
            cpu_ms_per_token=1e3 * (self._cpu() - before) / tokens,
        )

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_http_against_the_engine_alone_and_mlx_lm_server() -> None:
    main([])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(argv).rounds
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        parties = start(stack, home)
        print(f"{os.cpu_count()} cores, {rounds} rounds; load average {_load()}")
        for streams in STREAMS:
            report(f"{streams} x {TOKENS} tokens", parties, Case(streams, TOKENS, 1), rounds)
            report(f"{streams} x {SHORT} tokens", parties, Case(streams, SHORT, FIRST_REQUESTS), rounds)
        print(f"load average {_load()}")


def start(stack: ExitStack, home: Path) -> list[Party]:
    """Cuebook, the engine alone, and mlx_lm.server, all with one thread and the same BLAS."""
    path = tiny_model_dir(home / "models" / MODEL, endless=True)
    environment = engine("mlx").environment(1)
    node = stack.enter_context(ServedNode(home, offline=True, threads=1))
    node.ready(node.place(MODEL))
    arguments = (str(path), str(BATCH), str(CPU_PREFILL_CHUNK))
    alone = stack.enter_context(LineProcess("support.engine_alone", *arguments, environment=environment))
    theirs = stack.enter_context(MlxServer(path, home / "mlx_server.txt", environment))
    client = stack.enter_context(LineProcess("support.lean_client"))
    return [
        Party("cuebook", [node.pid, *node.runner_pids()], _over_http(client, node.port, MODEL)),
        Party(
            "the engine alone",
            [alone.process.pid],
            lambda prompts, tokens: alone.ask({"prompts": prompts, "tokens": tokens}),
        ),
        Party("mlx_lm.server", [theirs.pid], _over_http(client, theirs.port, "default_model")),
    ]


def _over_http(client: LineProcess, port: int, model: str) -> Callable[[list[str], int], dict]:
    def serve(prompts: list[str], tokens: int) -> dict:
        answer = client.ask({"port": port, "bodies": [_body(model, text, tokens) for text in prompts]})
        for last in answer["last"]:
            assert json.loads(last.split("data: ")[-2])["usage"]["completion_tokens"] == tokens
        return answer

    return serve


def _body(model: str, text: str, tokens: int) -> str:
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


_serial = count()


def _prompts(case: Case) -> list[list[str]]:
    """Chats that no prompt cache has seen, each of the same number of tokens."""
    return [[f"Stand by, cue {next(_serial):06}." for _ in range(case.streams)] for _ in range(case.repeats)]


def report(title: str, parties: Sequence[Party], case: Case, rounds: int) -> None:
    """Let all take turns (the first round only warms up) and print what came of it."""
    slices: dict[str, list[Slice]] = {party.name: [] for party in parties}
    for _ in range(rounds + 1):
        prompts = _prompts(case)
        for party in random.sample(parties, len(parties)):
            slices[party.name].append(party.measure(case, prompts))
            time.sleep(0.1)
    print(f"\n{title:<28}{'tokens/s':>10}{'first token ms':>16}{'CPU ms/token':>14}")
    for name, found in slices.items():
        rate, first, cpu = (statistics.median(column) for column in zip(*found[1:], strict=True))
        print(f"{name:<28}{rate:>10,.0f}{first:>16.2f}{cpu:>14.3f}")
    ours = slices["cuebook"][1:]
    for name in list(slices)[1:]:
        _compare(name, list(zip(ours, slices[name][1:], strict=True)))


def _compare(name: str, pairs: Sequence[tuple[Slice, Slice]]) -> None:
    rate = [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs]
    cpu = [theirs.cpu_ms_per_token / mine.cpu_ms_per_token for mine, theirs in pairs]
    first = [mine.first_ms - theirs.first_ms for mine, theirs in pairs]
    print(
        f"against {name:<20}{_ratio(rate)}, first token {statistics.median(first):+.2f} ms, "
        f"CPU {statistics.median(cpu):.2f}"
    )


def _ratio(ratios: Sequence[float]) -> str:
    return f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


if __name__ == "__main__":
    main()
