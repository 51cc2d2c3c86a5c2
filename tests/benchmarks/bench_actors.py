"""Messages through the layer against plain Pykka, and the asyncio bridge against a thread for each waiter.

Run ``python tests/benchmarks/bench_actors.py``. The compared cases alternate within one run; a ratio is a
median over the rounds, above 1.0 where the layer is faster.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pykka
import pytest

from actors.actor import Actor, spawn
from actors.address import Address
from actors.deferred import awaitable

ROUNDS = 9
TELLS = 50_000
ASKS = 3_000
AWAITS = 1_280


class PlainCounter(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_receive(self, message: Any) -> int:
        self.seen += 1
        return self.seen


class Counter(Actor):
    MAILBOX_BOUND = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def receive(self, message: Any) -> int:
        self.seen += 1
        return self.seen


def rate(work: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def tell_all(tell: Callable[[int], None], ask: Callable[[int], object], producers: int) -> None:
    def produce() -> None:
        for number in range(TELLS // producers):
            tell(number)

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask(0)


def ask_all(ask: Callable[[int], object]) -> None:
    for number in range(ASKS):
        ask(number)


def await_all(answer: Callable[[], Any], in_flight: int) -> None:
    async def client() -> None:
        for _ in range(AWAITS // in_flight):
            await answer()

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(in_flight)))

    asyncio.run(clients())


def bridged(address: Address) -> Callable[[], Any]:
    return lambda: awaitable(address.ask_future(0), asyncio.get_running_loop())


def threaded(address: Address, pool: ThreadPoolExecutor) -> Callable[[], Any]:
    return lambda: asyncio.get_running_loop().run_in_executor(pool, address.ask_future(0).get)


def compare(name: str, count: int, ours: Callable[[], object], reference: Callable[[], object]) -> float:
    pairs = [(rate(ours, count), rate(reference, count)) for _ in range(ROUNDS)]
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    mine = statistics.median(mine for mine, _ in pairs)
    print(f"{name:<44} {mine:>10,.0f}/s   ratio {ratio:.2f}")
    return ratio


@pytest.mark.benchmark
@pytest.mark.slow
def test_layer_against_pykka_and_bridge_against_executor() -> None:
    main()


def main() -> None:
    address = spawn(Counter(), "counter")
    ref = PlainCounter.start()
    for producers in (1, 4):
        compare(
            f"tell, {producers} producers, against Pykka",
            TELLS,
            lambda n=producers: tell_all(address.tell, lambda m: address.ask(m, 60), n),
            lambda n=producers: tell_all(ref.tell, ref.ask, n),
        )
    compare(
        "ask against Pykka",
        ASKS,
        lambda: ask_all(lambda m: address.ask(m, 60)),
        lambda: ask_all(lambda m: ref.ask(m, timeout=60)),
    )
    for in_flight in (1, 64):
        with ThreadPoolExecutor(in_flight) as pool:
            compare(
                f"await, {in_flight} in flight, against run_in_executor",
                AWAITS,
                lambda n=in_flight: await_all(bridged(address), n),
                lambda n=in_flight, p=pool: await_all(threaded(address, p), n),
            )
    ref.stop()


if __name__ == "__main__":
    main()
