from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from actors.deferred import Deferred, awaitable


def test_first_settlement_wins() -> None:
    answer = Deferred[int]()
    assert answer.resolve(1)
    assert not answer.resolve(2)
    assert not answer.fail(ValueError())
    assert answer.get(timeout=0) == 1


def test_failure_raises_for_every_reader() -> None:
    answer = Deferred[int]()
    answer.fail(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            answer.get(timeout=0)


def test_get_times_out_and_can_be_repeated() -> None:
    answer = Deferred[int]()
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.01)
    threading.Timer(0.02, answer.resolve, [5]).start()
    assert answer.get(timeout=5) == 5


def test_callback_before_and_after_settlement_and_a_broken_one_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer, seen = Deferred[int](), list[Any]()
    answer.add_done_callback(lambda _: 1 / 0)
    answer.add_done_callback(lambda each: seen.append(("before", each.get())))
    answer.resolve(3)
    answer.add_done_callback(lambda each: seen.append(("after", each.get())))
    assert seen == [("before", 3), ("after", 3)]
    assert "ZeroDivisionError" in caplog.text


def test_racing_settlers_and_waiters_agree() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            answer, won, got = Deferred[int](), list[int](), list[int]()
            settlers = [
                threading.Thread(target=lambda n=n, a=answer, w=won: a.resolve(n) and w.append(n))
                for n in range(3)
            ]
            reader = threading.Thread(target=lambda a=answer, g=got: g.append(a.get(timeout=10)))
            for thread in [reader, *settlers]:
                thread.start()
            for thread in [reader, *settlers]:
                thread.join()
            assert won == got
    finally:
        sys.setswitchinterval(interval)


def test_await_leaves_the_loop_running() -> None:
    async def client() -> tuple[int, int]:
        answer, ticks = Deferred[int](), 0
        threading.Timer(0.2, answer.resolve, [9]).start()
        future = awaitable(answer, asyncio.get_running_loop())
        while not future.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return await future, ticks

    value, ticks = asyncio.run(client())
    assert value == 9
    assert ticks > 2


def test_await_raises_the_failure() -> None:
    async def client() -> int:
        answer = Deferred[int]()
        threading.Timer(0.01, answer.fail, [ValueError("no")]).start()
        return await awaitable(answer, asyncio.get_running_loop())

    with pytest.raises(ValueError, match="no"):
        asyncio.run(client())


def test_cancelled_await_drops_the_answer_without_an_error_in_the_loop() -> None:
    errors: list[Any] = []

    async def client() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        answer = Deferred[int]()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaitable(answer, loop), 0.01)
        answer.resolve(1)
        await asyncio.sleep(0.01)

    asyncio.run(client())
    assert errors == []


def test_answer_after_the_loop_closed_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    answer = Deferred[int]()

    async def client() -> None:
        awaitable(answer, asyncio.get_running_loop())

    asyncio.run(client())
    answer.resolve(1)
    time.sleep(0.01)
    assert caplog.text == ""
