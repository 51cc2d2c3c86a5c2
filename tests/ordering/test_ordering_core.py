"""The rules of `actors.ordering.core`, each as inputs and what must follow."""

from __future__ import annotations

import pytest
from support.mesh import Lone, MemoryLog, of, sent, status

from actors.ordering import interface as io
from actors.ordering import messages as msg
from actors.ordering.epochs import Epoch, Run

OLD = Epoch(1, "a", "run")
LEADS = Epoch(4, "m", "run")
TIMING = io.Timing()


def leading(node_id: str = "b", log: MemoryLog | None = None, promised: int = 0) -> Lone:
    """A core that leads, alone, and has begun its epoch in the log."""
    node = Lone(node_id, log, promised)
    node.wait(TIMING.settle + TIMING.lone + (TIMING.patience if node.log.base else 0.0))
    node.commit()
    return node


def following(log: MemoryLog, entries: int = 0) -> Lone:
    """A core that follows ``m`` in `LEADS`, whose log goes on with ``entries``."""
    node = Lone("b", log)
    node.put(io.PeerUp("m"))
    leader = status(1, epoch=LEADS, last_epoch=OLD, genesis=OLD, index=len(log.rows) + entries, promised=4)
    ((_, join),) = sent(node.hear("m", leader), msg.Join)
    node.hear("m", welcome(join, len(log.rows), entries, index=len(log.rows) + entries))
    return node


def welcome(join: msg.Join, fork: int, entries: int = 0, *, index: int = 0) -> msg.Welcome:
    bodies = bodies_after(fork, entries)
    return msg.Welcome(ticket=join.ticket, epoch=LEADS, fork=fork, entries=bodies, index=index)


def bodies_after(after: int, count: int, epoch: Epoch = LEADS) -> list[bytes]:
    log = MemoryLog((OLD, after))
    log.write(epoch, count)
    return log.entries(after, count)


def entries(after: int, count: int, epoch: Epoch = LEADS) -> msg.Entries:
    return msg.Entries(epoch=epoch, after=after, entries=bodies_after(after, count))


class TestElection:
    def test_a_lone_node_leads_after_it_has_looked_for_others(self) -> None:
        node = Lone("b")
        assert of(node.wait(TIMING.settle + TIMING.lone - 0.01), io.Lead) == []
        assert of(node.wait(0.02), io.Persist, io.Lead) == [io.Persist(1), io.Lead(Epoch(1, "b", "run"))]

    def test_the_epoch_is_beyond_every_promise(self) -> None:
        node = Lone("b", promised=7)
        node.put(io.PeerUp("a"))
        node.hear("a", status(1, promised=11))
        assert of(node.wait(1.0), io.Persist, io.Lead) == [io.Persist(12), io.Lead(Epoch(12, "b", "run"))]

    @pytest.mark.parametrize(
        ("other", "leads"),
        [
            (status(1, genesis=OLD, last_epoch=OLD, index=4), False),
            (status(1, genesis=OLD, last_epoch=OLD, index=2), True),
            (status(1, genesis=OLD, last_epoch=Epoch(2, "c", "run"), index=1), False),
            (status(1, genesis=OLD, last_epoch=OLD, index=3, seniority=1.0), False),
            (status(1, genesis=OLD, last_epoch=OLD, index=3), False),
            (status(1, genesis=Epoch(9, "c", "run"), last_epoch=Epoch(9, "c", "run"), index=2), True),
            (status(1), True),
        ],
        ids=["longer", "shorter", "later epoch", "senior", "greater id", "other history", "empty"],
    )
    def test_the_longest_log_leads(self, other: msg.Status, leads: bool) -> None:
        node = Lone("b", MemoryLog((OLD, 3)))
        node.put(io.PeerUp("c"))
        node.hear("c", other)
        assert bool(of(node.wait(5.0), io.Lead)) is leads

    def test_a_node_that_hears_of_a_master_waits_for_it(self) -> None:
        node = Lone("b", MemoryLog((OLD, 9)))
        node.put(io.PeerUp("c"))
        node.hear("c", status(1, epoch=LEADS, genesis=OLD, last_epoch=OLD, index=3))
        assert of(node.wait(30.0), io.Lead) == []

    def test_a_node_does_not_stand_before_the_others_have_spoken(self) -> None:
        node = Lone("b")
        node.wait(0.7)
        node.put(io.PeerUp("c"))
        assert of(node.wait(0.2), io.Lead) == []
        assert of(node.wait(TIMING.settle), io.Lead) != []

    def test_who_lost_its_master_while_far_behind_is_patient(self) -> None:
        node = Lone("b")
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=1000)
        ((_, join),) = sent(node.hear("m", leader), msg.Join)
        node.hear("m", welcome(join, 0, 5, index=1000))
        node.put(io.PeerDown("m"))
        assert of(node.wait(TIMING.patience), io.Lead) == []
        assert of(node.wait(5.0), io.Lead) != []

    def test_a_lone_master_without_its_past_gives_way_to_those_who_went_another_way(self) -> None:
        """They follow it, as the one master there is, and it could never welcome them."""
        lacking = MemoryLog((OLD, 9))
        lacking.base = 8
        node = leading(log=lacking)
        node.put(io.PeerUp("a"))
        other = msg.Join(ticket="t", promised=1, runs=[Run(OLD, 1, 5), Run(LEADS, 6, 7)])
        assert of(node.hear("a", other), io.SetAside) == []
        node.wait(TIMING.patience)
        assert of(node.hear("a", other), io.SetAside) != []

    def test_a_lone_master_without_its_past_is_patient_with_each_who_comes(self) -> None:
        lacking = MemoryLog((OLD, 9))
        lacking.base = 8
        node = leading(log=lacking)
        other = msg.Join(ticket="t", promised=1, runs=[Run(OLD, 1, 5), Run(LEADS, 6, 7)])
        for _ in range(2):
            node.put(io.PeerUp("a"))
            assert of(node.hear("a", other), io.SetAside) == []
            node.put(io.PeerDown("a"))
            node.wait(TIMING.patience)

    def test_a_lone_master_without_its_past_waits_for_it_where_others_only_lag(self) -> None:
        lacking = MemoryLog((OLD, 9))
        lacking.base = 8
        node = leading(log=lacking)
        node.put(io.PeerUp("a"))
        behind = msg.Join(ticket="t", promised=1, runs=[Run(OLD, 1, 5)])
        node.hear("a", behind)
        node.wait(TIMING.patience)
        assert of(node.hear("a", behind), io.SetAside) == []

    def test_who_lacks_the_past_is_patient_and_yields_to_an_equal_log_that_has_it(self) -> None:
        lacking = MemoryLog((OLD, 9))
        lacking.base = 5
        node = Lone("b", lacking)
        ((_, said),) = sent(node.put(io.PeerUp("a")), msg.Status)
        assert not said.whole
        node.hear("a", status(1, genesis=OLD, last_epoch=OLD, index=9, seniority=-1.0))
        assert of(node.wait(TIMING.patience + 5.0), io.Lead) == []
        assert of(node.put(io.PeerDown("a")), io.Lead) != [], "the only one that is there leads in the end"
        whole = Lone("a", MemoryLog((OLD, 9)))
        whole.put(io.PeerUp("b"))
        whole.hear("b", status(1, genesis=OLD, last_epoch=OLD, index=9, seniority=1.0, whole=False))
        assert of(whole.wait(5.0), io.Lead) != []


class TestJoining:
    def test_a_returning_node_joins_the_working_master_however_long_its_log(self) -> None:
        node = Lone("b", MemoryLog((OLD, 9)))
        node.put(io.PeerUp("m"))
        effects = node.hear("m", status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=4))
        ((to, join),) = sent(effects, msg.Join)
        assert (to, join.runs) == ("m", [Run(OLD, 1, 9)])

    def test_what_lies_beyond_the_fork_is_moved_away_in_one_step_with_what_replaces_it(self) -> None:
        node = Lone("b", MemoryLog((OLD, 9)))
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=6)
        ((_, join),) = sent(node.hear("m", leader), msg.Join)
        effects = node.hear("m", welcome(join, 4, 2, index=6))
        persist, follow, rewind = of(effects, io.Persist, io.Follow, io.Rewind, io.Append)
        assert (persist, follow) == (io.Persist(4), io.Follow("m", LEADS))
        assert isinstance(rewind, io.Rewind)
        assert (rewind.fork, rewind.winner, len(rewind.entries)) == (4, LEADS, 2)
        assert sent(effects, msg.Ack) == [("m", msg.Ack(epoch=LEADS, index=6))]

    def test_the_status_after_a_welcome_tells_of_the_new_log(self) -> None:
        node = Lone("b", MemoryLog((OLD, 9)))
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=6)
        ((_, join),) = sent(node.hear("m", leader), msg.Join)
        ((_, said),) = sent(node.hear("m", welcome(join, 4, 2, index=6)), msg.Status)
        assert (said.epoch, said.index, said.last_epoch) == (LEADS, 6, LEADS)

    def test_an_old_welcome_is_no_welcome(self) -> None:
        node = Lone("b", MemoryLog((OLD, 9)))
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=6)
        ((_, first),) = sent(node.hear("m", leader), msg.Join)
        ((_, second),) = sent(node.wait(TIMING.retry), msg.Join)
        assert of(node.hear("m", welcome(first, 0)), io.Follow) == []
        assert of(node.hear("m", welcome(second, 9)), io.Follow) != []
        assert of(node.hear("m", welcome(second, 0)), io.Follow, io.Rewind) == []

    def test_a_late_welcome_is_no_welcome(self) -> None:
        """Its sender waits so long before it steps down, and no longer."""
        node = Lone("b", MemoryLog((OLD, 5)))
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=4)
        ((_, join),) = sent(node.hear("m", leader), msg.Join)
        node.now += TIMING.retry
        assert of(node.hear("m", welcome(join, 3, 1, index=4)), io.Follow, io.Rewind) == []

    def test_a_run_map_has_what_was_appended_just_before(self) -> None:
        """The welcome comes in an epoch that is over by then, so the node joins again at once."""
        node = Lone("b", MemoryLog((OLD, 3)))
        node.put(io.PeerUp("m"))
        leader = status(1, epoch=LEADS, genesis=OLD, last_epoch=LEADS, index=5)
        ((_, join),) = sent(node.hear("m", leader), msg.Join)
        later = Epoch(5, "m", "run")
        node.hear("m", status(2, epoch=later, genesis=OLD, last_epoch=later, index=6))
        ((_, again),) = sent(node.hear("m", welcome(join, 3, 2, index=5)), msg.Join)
        assert again.runs == [Run(OLD, 1, 3), Run(LEADS, 4, 5)]

    def test_a_log_of_another_history_is_not_given_up_for_a_shorter_one(self) -> None:
        node = Lone("b", MemoryLog((OLD, 1000)))
        node.put(io.PeerUp("m"))
        node.put(io.PeerUp("c"))
        node.hear("m", status(1, epoch=LEADS, genesis=LEADS, last_epoch=LEADS, index=9, followers=1))
        node.hear("c", status(1, epoch=LEADS, genesis=LEADS, last_epoch=LEADS, index=9))
        effects = node.wait(1.0)
        assert sent(effects, msg.Join) == []
        assert of(effects, io.Lead) != []


class TestFollowing:
    def test_the_next_entries_are_appended_and_acknowledged(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        effects = node.hear("m", entries(3, 2))
        assert [len(append.entries) for append in of(effects, io.Append)] == [2]  # pyright: ignore
        assert sent(effects, msg.Ack) == [("m", msg.Ack(epoch=LEADS, index=5))]

    def test_what_came_before_is_acknowledged_and_not_appended_again(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        node.hear("m", entries(3, 2))
        effects = node.hear("m", entries(3, 2))
        assert of(effects, io.Append) == []
        assert sent(effects, msg.Ack) == [("m", msg.Ack(epoch=LEADS, index=5))]
        node.hear("m", entries(3, 4))
        assert len(node.log.rows) == 7

    def test_a_gap_is_never_bridged(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        effects = node.hear("m", entries(4, 1))
        assert of(effects, io.Append) == []
        assert len(sent(effects, msg.Join)) == 1

    def test_nothing_is_appended_between_asking_and_the_welcome(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        node.hear("m", entries(4, 1))
        assert of(node.hear("m", entries(3, 1)), io.Append) == []

    @pytest.mark.parametrize(
        ("sender", "epoch"), [("m", Epoch(3, "m", "run")), ("m", Epoch(5, "m", "run")), ("c", LEADS)]
    )
    def test_entries_of_another_epoch_or_node_are_left(self, sender: str, epoch: Epoch) -> None:
        node = following(MemoryLog((OLD, 3)))
        node.put(io.PeerUp("c"))
        assert of(node.hear(sender, entries(3, 1, epoch)), io.Append, io.Follow) == []

    def test_lost_entries_are_noticed_by_the_master_s_next_words(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        behind = {"epoch": LEADS, "genesis": OLD, "last_epoch": LEADS, "index": 5}
        assert sent(node.hear("m", status(2, **behind)), msg.Join) == []
        node.wait(TIMING.retry + 0.1)
        assert len(sent(node.hear("m", status(3, **behind)), msg.Join)) == 1

    def test_a_master_that_leads_no_longer_is_left(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        other = Epoch(5, "z", "run")
        effects = node.hear("m", status(2, epoch=other, genesis=OLD, last_epoch=OLD, index=3))
        assert of(effects, io.Masterless) == [io.Masterless()]

    def test_an_old_status_that_was_overtaken_is_no_news(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        assert of(node.hear("m", status(1)), io.Masterless) == []

    def test_a_new_link_begins_from_nothing(self) -> None:
        node = following(MemoryLog((OLD, 3)))
        assert of(node.put(io.PeerUp("m")), io.Masterless) == [io.Masterless()]


class TestLeading:
    def test_a_joiner_gets_the_fork_and_what_follows(self) -> None:
        node = leading(log=MemoryLog((OLD, 3)))
        node.put(io.PeerUp("c"))
        ((to, answer),) = sent(node.hear("c", _join(OLD, 5)), msg.Welcome)
        assert (to, answer.ticket, answer.fork, len(answer.entries), answer.index) == ("c", "t", 3, 1, 4)

    def test_a_joiner_that_lacks_what_has_yet_to_come_here_has_to_wait(self) -> None:
        log = MemoryLog((OLD, 9))
        log.base = 5
        node = leading("b", log)
        node.put(io.PeerUp("c"))
        ask = msg.Join(ticket="t", promised=1, runs=[Run(OLD, 1, 4)])
        assert sent(node.hear("c", ask), msg.Welcome) == []
        log.base = 4
        ((_, answer),) = sent(node.hear("c", ask), msg.Welcome)
        assert (answer.fork, len(answer.entries)) == (4, 6)

    def test_who_has_promised_more_is_welcomed_in_a_newer_epoch(self) -> None:
        node = leading()
        node.put(io.PeerUp("c"))
        effects = node.hear("c", _join(OLD, 0, promised=6))
        assert of(effects, io.Persist, io.Lead) == [io.Persist(7), io.Lead(Epoch(7, "b", "run"))]
        assert [answer.epoch.n for _, answer in sent(effects, msg.Welcome)] == [7]

    def test_commits_go_to_the_followers_and_their_word_counts(self) -> None:
        node = leading()
        node.put(io.PeerUp("c"))
        node.hear("c", _join(OLD, 0))
        ((to, message),) = sent(node.commit(), msg.Entries)
        assert (to, message.after, len(message.entries)) == ("c", 1, 1)
        assert node.core.holders(2) == 1
        epoch = node.core.epoch
        assert epoch is not None
        assert of(node.hear("c", msg.Ack(epoch=epoch, index=2)), io.Held) == [io.Held("c", 2)]
        assert node.core.holders(2) == 2

    def test_the_word_of_another_epoch_does_not_count(self) -> None:
        node = leading()
        node.put(io.PeerUp("c"))
        node.hear("c", _join(OLD, 0))
        assert of(node.hear("c", msg.Ack(epoch=LEADS, index=1)), io.Held) == []

    def test_a_greater_side_is_joined_and_served_until_it_welcomes(self) -> None:
        node = leading(log=MemoryLog((OLD, 3)))
        node.put(io.PeerUp("m"))
        effects = node.hear("m", _master(followers=2, index=3))
        assert [to for to, _ in sent(effects, msg.Join)] == ["m"]
        node.commit()
        assert node.core.master == "b"
        ((_, join),) = sent(effects, msg.Join)
        effects = node.hear("m", welcome(join, 3, 1, index=4))
        assert of(effects, io.Follow, io.Rewind)[0] == io.Follow("m", LEADS)
        assert node.core.master == "m"

    def test_it_steps_down_only_when_nobody_takes_anything_out_on_its_word(self) -> None:
        """What "c" has beyond 3 may be in the greater log too: "c" must not drop it once we have that one."""
        node = leading(log=MemoryLog((OLD, 3)))
        node.put(io.PeerUp("c"))
        assert sent(node.hear("c", _join(OLD, 5)), msg.Welcome) != []
        node.put(io.PeerUp("m"))
        assert sent(node.hear("m", _master(followers=2, index=5)), msg.Join) == []
        assert sent(node.hear("c", _join(OLD, 5)), msg.Welcome) == [], "it is about to step down"
        assert sent(node.wait(TIMING.retry - 0.01), msg.Join) == []
        node.wait(TIMING.beat)
        assert [to for to, _ in sent(node.effects, msg.Join)] == ["m"]

    def test_a_lesser_side_is_left_to_come(self) -> None:
        node = leading(log=MemoryLog((OLD, 30)))
        node.put(io.PeerUp("m"))
        assert sent(node.hear("m", _master(followers=0, index=3)), msg.Join) == []

    @pytest.mark.parametrize(("other", "accepts"), [("a", True), ("m", False)])
    def test_where_two_ask_each_other_the_greater_id_accepts(self, other: str, accepts: bool) -> None:
        node = leading(log=MemoryLog((OLD, 3)))
        node.put(io.PeerUp(other))
        epoch = Epoch(4, other, "run")
        effects = node.hear(other, _master(followers=2, index=3, epoch=epoch))
        assert len(sent(effects, msg.Join)) == 1
        assert bool(sent(node.hear(other, _join(OLD, 3)), msg.Welcome)) is accepts

    def test_a_master_without_followers_goes_on(self) -> None:
        node = leading()
        node.put(io.PeerUp("c"))
        node.hear("c", _join(OLD, 0))
        node.put(io.PeerDown("c"))
        assert of(node.wait(60.0), io.Masterless) == []


def _join(epoch: Epoch, length: int, promised: int = 0) -> msg.Join:
    runs = [Run(epoch, 1, length)] if length else []
    return msg.Join(ticket="t", promised=promised, runs=runs)


def _master(followers: int, index: int, epoch: Epoch = LEADS) -> msg.Status:
    return status(1, epoch=epoch, genesis=OLD, last_epoch=OLD, index=index, followers=followers, promised=4)


def test_an_idle_node_says_one_word_a_beat() -> None:
    node = leading()
    node.put(io.PeerUp("c"))
    node.hear("c", status(1))
    assert len(of(node.wait(60.0), io.Send)) == pytest.approx(60, abs=1)


def test_messages_of_strangers_are_left() -> None:
    node = Lone("b")
    assert of(node.hear("m", _master(followers=2, index=3)), io.Send) == []
