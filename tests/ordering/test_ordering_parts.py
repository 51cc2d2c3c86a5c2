"""Fork points, flow control and the codec, each by itself."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mesh import MemoryLog

from actors.ordering import messages as msg
from actors.ordering.epochs import Epoch, Run, fork_point
from actors.ordering.followers import MAX_BYTES, MAX_ENTRIES, MAX_UNACKED, Followers

E1 = Epoch(1, "a", "run")


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[MemoryLog, MemoryLog, int]:
    """Two logs that are the same up to an index, which comes with them."""
    runs = draw(st.lists(st.integers(1, 5), max_size=5))
    common = MemoryLog(*((Epoch(n, "a", "run"), length) for n, length in enumerate(runs, 1)))
    logs: list[MemoryLog] = []
    for side in ("x", "y"):
        log = MemoryLog()
        log.take([body for _, body in common.rows])
        for n, length in enumerate(draw(st.lists(st.integers(1, 5), max_size=3)), len(runs) + 1):
            log.write(Epoch(n, side, "run"), length)
        logs.append(log)
    mine, other = logs
    if draw(st.booleans()) and mine.rows:
        mine.write(mine.last()[0], draw(st.integers(0, 4)))  # one side has more of the common epoch
    return mine, other, len(common.rows)


@given(two_logs())
def test_the_fork_is_where_the_logs_part(logs: tuple[MemoryLog, MemoryLog, int]) -> None:
    mine, other, common = logs
    assert fork_point(mine.runs(), other.runs()) == common
    assert fork_point(other.runs(), mine.runs()) == common
    assert mine.rows[:common] == other.rows[:common]


def test_a_shorter_common_epoch_is_where_the_logs_part() -> None:
    ours = [Run(E1, 1, 10), Run(Epoch(2, "a", "run"), 11, 12)]
    theirs = [Run(E1, 1, 7), Run(Epoch(2, "b", "run"), 8, 20)]
    assert fork_point(ours, theirs) == 7


class TestFlow:
    def test_one_that_is_a_million_behind_gets_all_and_fills_no_link(self) -> None:
        log = MemoryLog((E1, 100_000))
        followers = Followers(E1, log)
        held = len(followers.welcome("c", 0))
        assert held == MAX_ENTRIES
        waiting = [held]
        while held < 100_000 or waiting:
            for _, message in followers.due(100_000):
                waiting.append(message.after + len(message.entries))
                assert len(message.entries) <= MAX_ENTRIES
            assert len(waiting) <= MAX_UNACKED
            held = waiting.pop(0)
            assert followers.acknowledge("c", held)
        assert followers.holders(100_000) == 2

    def test_messages_are_bounded_in_bytes_unless_one_entry_is_more(self) -> None:
        class Big(MemoryLog):
            def entries(self, after: int, limit: int) -> list[bytes]:
                return [bytes(size) for size in (MAX_BYTES // 2, MAX_BYTES // 2, 1)][after:]

        assert [len(e) for e in Followers(E1, Big()).welcome("c", 0)] == [MAX_BYTES // 2] * 2

        class Huge(MemoryLog):
            def entries(self, after: int, limit: int) -> list[bytes]:
                return [bytes(2 * MAX_BYTES), b"x"]

        assert len(Followers(E1, Huge()).welcome("c", 0)) == 1

    def test_a_slow_follower_holds_up_nobody(self) -> None:
        log = MemoryLog((E1, 1))
        followers = Followers(E1, log)
        for node_id in ("quick", "slow"):
            followers.welcome(node_id, 0)
        got: list[str] = []
        for _ in range(3 * MAX_UNACKED):
            log.write(E1)
            for node_id, message in followers.due(len(log.rows)):
                got.append(node_id)
                if node_id == "quick":
                    followers.acknowledge(node_id, message.after + len(message.entries))
        assert got.count("quick") == 3 * MAX_UNACKED
        assert got.count("slow") == MAX_UNACKED - 1

    def test_old_words_take_nothing_back(self) -> None:
        followers = Followers(E1, MemoryLog((E1, 9)))
        followers.welcome("c", 0)
        assert followers.acknowledge("c", 9)
        assert not followers.acknowledge("c", 4)
        assert followers.holders(9) == 2


@pytest.mark.parametrize(
    "message",
    [
        msg.Status(
            number=1,
            promised=2,
            epoch=E1,
            genesis=E1,
            last_epoch=E1,
            index=3,
            followers=0,
            seniority=0.5,
        ),
        msg.Join(ticket="t", promised=3, runs=[Run(E1, 1, 5)]),
        msg.Welcome(ticket="t", epoch=E1, fork=2, entries=[b"\x00\xff"], index=3),
        msg.Entries(epoch=E1, after=2, entries=[b"", b"x"]),
        msg.Ack(epoch=E1, index=3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_come_back_as_they_were(message: msg.Message) -> None:
    again = msg.decode(msg.encode(message))
    assert again == message
    assert type(again) is type(message)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        msg.decode(b"\x01")
