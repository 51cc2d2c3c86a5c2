"""Between two hubs: half an answer never passes for a whole one, and a whole one never for half of one."""

from __future__ import annotations

from collections.abc import Callable

from actors.streams import TokenHub
from engines.wire import Admitted


class Way:
    """Two hubs; what is sent waits in `on_its_way` until it is delivered."""

    def __init__(self) -> None:
        self.sender, self.receiver = TokenHub("a"), TokenHub("b")
        self.on_its_way: list[bytes] = []
        self.heard: list[str] = []
        self.lost: list[str] = []
        self.sender.connect(self._send)
        self.receiver.attach(lambda said: self.heard.append(said.task_id), self.lost.append)  # type: ignore[union-attr]

    def _send(self, node_id: str, payload: bytes) -> bool:
        self.on_its_way.append(payload)
        return True

    def say(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.sender.ship("b", Admitted(task_id=task_id, prompt_tokens=1))

    def deliver(self, keep: Callable[[int], bool] = lambda place: True) -> None:
        arriving, self.on_its_way = self.on_its_way, []
        for place, payload in enumerate(arriving):
            if keep(place):
                self.receiver.arrived("a", payload)

    def link(self) -> None:
        self.sender.link_opened("b")
        self.receiver.link_opened("a")


def test_what_comes_in_order_is_heard_and_nothing_is_missed() -> None:
    way = Way()
    way.link()
    way.say("t1", "t2", "t3")
    way.deliver()
    assert (way.heard, way.lost) == (["t1", "t2", "t3"], [])


def test_a_gap_is_told() -> None:
    way = Way()
    way.link()
    way.say("t1", "t2", "t3")
    way.deliver(lambda place: place != 1)
    assert way.lost == ["a"]


def test_a_first_message_that_went_missing_is_told() -> None:
    way = Way()
    way.link()
    way.say("t1", "t2")
    way.deliver(lambda place: place == 1)
    assert way.lost == ["a"]


def test_a_new_link_after_messages_tells_that_some_may_be_lost() -> None:
    way = Way()
    way.link()
    way.say("t1")
    way.deliver()
    way.link()
    assert way.lost == ["a"]
    way.say("t2")
    way.deliver()
    assert way.lost == ["a"]


def test_what_was_lost_with_a_link_that_had_brought_nothing_is_told() -> None:
    way = Way()
    way.link()
    way.say("t1")
    way.on_its_way.clear()
    way.link()
    way.say("t2")
    way.deliver()
    assert way.lost == ["a"]


def test_a_straggler_of_the_old_count_does_not_spoil_the_new_one() -> None:
    way = Way()
    way.link()
    way.say("t1", "t2")
    way.deliver()
    # The runner's thread is quicker than the news of the new link.
    way.receiver.link_opened("a")
    way.say("t3")
    way.sender.link_opened("b")
    way.deliver()
    way.lost.clear()
    way.say("t4", "t5")
    way.deliver()
    assert way.heard[-2:] == ["t4", "t5"]
    assert way.lost == []
