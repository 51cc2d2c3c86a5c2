from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.clock import ManualClock, SystemClock

DELAYS = st.lists(st.floats(min_value=0, max_value=100), max_size=30)


@given(DELAYS, st.lists(st.floats(min_value=0, max_value=30), max_size=10))
def test_manual_clock_fires_what_is_due_in_order_and_at_its_time(
    delays: list[float], steps: list[float]
) -> None:
    clock, fired = ManualClock(), list[tuple[float, int]]()
    for number, delay in enumerate(delays):
        clock.call_later(delay, lambda n=number: fired.append((clock.monotonic(), n)))
    for step in [0.0, *steps]:
        clock.advance(step)
    due = sorted((delay, number) for number, delay in enumerate(delays) if delay <= clock.monotonic())
    assert fired == due


def test_manual_clock_fires_timers_that_callbacks_set_within_the_same_advance() -> None:
    clock, fired = ManualClock(), list[float]()

    def again() -> None:
        fired.append(clock.now())
        clock.call_later(2, again)

    clock.call_later(2, again)
    clock.advance(7)
    assert fired == [2, 4, 6]
    assert clock.now() == 7
    assert clock.next_due() == 8


def test_cancelled_timer_does_not_fire() -> None:
    clock, fired = ManualClock(), list[int]()
    timer = clock.call_later(1, lambda: fired.append(1))
    clock.call_later(1, lambda: fired.append(2))
    timer.cancel()
    clock.advance(1)
    assert fired == [2]


def test_system_clock_serves_timers_in_the_order_of_their_times_all_on_one_thread() -> None:
    clock, fired, done = SystemClock(), list[tuple[int, str, int]](), threading.Event()

    def fire(number: int) -> None:
        thread = threading.current_thread()
        fired.append((number, thread.name, thread.native_id or 0))
        if len(fired) == 3:
            done.set()

    timers = {
        number: clock.call_later(0.1 + number / 1000, lambda n=number: fire(n)) for number in (30, 10, 20)
    }
    assert done.wait(5)
    assert [number for number, *_ in fired] == sorted(timers, key=lambda number: timers[number].due)
    assert {name for _, name, _ in fired} == {"timers"}
    assert len({thread for _, _, thread in fired}) == 1


def test_a_sooner_timer_does_not_wait_for_a_later_one() -> None:
    clock, done = SystemClock(), threading.Event()
    clock.call_later(3600, lambda: None)
    time.sleep(0.01)  # the thread sleeps until the later one
    clock.call_later(0.01, done.set)
    assert done.wait(5)


def test_failing_callback_is_logged_and_later_ones_still_fire(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = SystemClock(), threading.Event()
    clock.call_later(0.001, lambda: 1 / 0)
    clock.call_later(0.002, done.set)
    assert done.wait(5)
    assert "ZeroDivisionError" in caplog.text


def test_waiting_for_a_far_timer_uses_no_processor() -> None:
    clock = SystemClock()
    clock.call_later(1e9, lambda: None)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1
