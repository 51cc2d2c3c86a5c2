from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.deferred import Deferred
from actors.mailbox import Letter, Mailbox
from actors.refusal import MailboxFull, Stopped


class Box(Mailbox):
    def __init__(self, bound: int = 100) -> None:
        super().__init__("box", bound, self.count)
        self.dead: list[tuple[int, Any]] = []

    def count(self, number: int, first: Any) -> None:
        self.dead.append((number, first))


def test_system_lane_overtakes_and_is_never_refused() -> None:
    box = Box(bound=2)
    box.put(Letter("a"))
    box.put(Letter("b"))
    for number in range(5):
        box.put_system(number)
    assert [box.get().message for _ in range(7)] == [0, 1, 2, 3, 4, "a", "b"]
    assert box.empty()


def test_nothing_is_kept_that_nobody_will_read() -> None:
    box = Box()
    box.put_system("a stop, say")
    box.close()
    box.put_system("a timer")
    assert box.get().message == "a stop, say", "behind a closed door the reader may still be at work"
    box.end()
    box.put_system("a decision of the feed")
    assert box.empty()


def test_full_says_who_and_when_to_come_again_and_takes_letters_after_a_read() -> None:
    box = Box(bound=1)
    box.put(Letter("a"))
    with pytest.raises(MailboxFull) as full:
        box.put(Letter("b"))
    assert full.value.actor == "box"
    assert full.value.retry_after > 0
    box.get()
    box.put(Letter("c"))
    assert box.get().message == "c"


def test_high_water_is_the_most_that_ever_waited() -> None:
    box = Box()
    for _ in range(3):
        box.put(Letter("x"))
    for _ in range(3):
        box.get()
    box.put(Letter("x"))
    assert box.high_water == 3
    assert len(box) == 1


def test_close_bounces_asks_and_counts_tells() -> None:
    box = Box()
    waiting, late = Deferred[Any](), Deferred[Any]()
    box.put(Letter("first tell"))
    box.put(Letter("ask", waiting))
    box.put(Letter("second tell"))
    box.close()
    box.put(Letter("late ask", late))
    box.put(Letter("late tell"))
    for answer in (waiting, late):
        assert isinstance(answer.error, Stopped)
        assert answer.error.actor == "box"
    assert box.dead == [(2, "first tell"), (1, "late tell")]


def test_closing_wakes_nobody_but_a_system_message_still_arrives() -> None:
    box = Box()
    got = Deferred[Any]()
    threading.Thread(target=lambda: got.resolve(box.get().message), daemon=True).start()
    box.close()
    assert not got.wait(0.05)
    box.put_system("stop")
    assert got.get(timeout=5) == "stop"


@given(st.lists(st.sampled_from(["user", "system", "get"]), max_size=60))
def test_each_lane_keeps_its_order(steps: list[str]) -> None:
    box, user, system = Box(bound=1000), list[int](), list[int]()
    for number, step in enumerate(steps):
        if step == "user":
            box.put(Letter(number))
            user.append(number)
        elif step == "system":
            box.put_system(number)
            system.append(number)
        elif not box.empty():
            expected = system.pop(0) if system else user.pop(0)
            assert box.get().message == expected
    assert [box.get().message for _ in system + user] == system + user


def test_many_senders_one_reader_lose_nothing_and_keep_each_senders_order() -> None:
    box, senders, each = Box(bound=10**6), 4, 5_000

    def send(sender: int) -> None:
        for number in range(each):
            box.put(Letter((sender, number)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=send, args=(n,)) for n in range(senders)]
        for thread in threads:
            thread.start()
        got = [box.get().message for _ in range(senders * each)]
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for sender in range(senders):
        assert [number for who, number in got if who == sender] == list(range(each))
    assert box.empty()
