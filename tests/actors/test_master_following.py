"""A master that does not lead: commands go to the one that does, and are answered once, by the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cluster import NODE, POLICY

from actors import handed_over
from actors.actor import Actor, spawn
from actors.address import Address
from actors.clock import ManualClock
from actors.deferred import Deferred
from actors.journal import Follow, Listen, Masterless, Rewound, Role, Standing
from actors.master import PATIENCE_S, RESEND_S, Master
from actors.refusal import MailboxFull, Rejected, Stopped
from actors.remote import Unchanged, decode_command, encode_answer
from actors.replica import Paths
from actors.router import Forward
from actors.system import ActorSystem
from events import catalogue as ev
from events import commands as cmd
from events.base import Command, Event
from events.commands import Facts
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.record import Committed, Draft
from events.values import Cause

LEADER, OTHER = "node-l", "node-m"
GONE = cmd.ReportModelGone(command_id="gone", origin=NODE, model_id="unheard-of")
REFUSAL = Cause(code="not_failed", message="There is nothing to retry.")


class Journal(Actor):
    """Says who leads."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self._role = role
        self.say: Callable[[Any], object] = lambda message: None

    def receive(self, message: Listen) -> Standing:
        self.say = message.listener
        return Standing(self._role, frozenset({LEADER, OTHER}))


class Router(Actor):
    """Keeps what is to be sent; the test answers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Forward, Deferred[bytes]]] = []

    def receive(self, message: Forward | None) -> Deferred[bytes] | None:
        if message is None:
            return None
        answer = Deferred[bytes]()
        self.sent.append((message, answer))
        return answer

    def commands(self, node_id: str = LEADER) -> list[Command]:
        return [decode_command(sent.payload) for sent, _ in self.sent if sent.node_id == node_id]

    def answer(self, said: object = None, error: BaseException | None = None) -> None:
        """What the leader says to the newest."""
        self.sent[-1][1].resolve(encode_answer(said, error))


@dataclass
class Follower:
    """The master under test, and everything around it."""

    master: Address
    journal: Journal
    router: Router
    clock: ManualClock
    log: EventLog
    feed: CommitFeed

    def ask(self, command: Command) -> Deferred[Any]:
        """Ask; back once the master has it."""
        answer = self.master.ask_future(command)
        self.settle()
        return answer

    def settle(self) -> None:
        """Wait until all messages so far are handled. A command that is known already tells so at once."""
        with pytest.raises(Rejected):
            self.master.ask(cmd.DeleteInstance(command_id="known", instance_id="another"), 20)
        self.router.address.ask(None, 20)

    def arrives(
        self, command: Command, *, events: Sequence[Event] = (), rejection: Cause | None = None
    ) -> Committed:
        """The leader's decision comes with the log."""
        facts = Facts(now=1.0, seed="s", epoch=1, node_id=LEADER)
        draft = Draft(
            command=command,
            facts=facts,
            decider="cluster",
            decider_version=1,
            events=list(events),
            rejection=rejection,
        )
        (committed,) = self.log.append([draft])
        self.feed.publish([committed])
        return committed

    def leads(self, role: Role) -> None:
        self.journal.say(role)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.settle()


@pytest.fixture
def follower(tmp_path: Path, clock: ManualClock, system: ActorSystem) -> Iterator[Follower]:
    log = EventLog.open(tmp_path / "log.db")
    paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
    feed = CommitFeed(paths.log)
    journal, router = Journal(Follow(LEADER)), Router()
    addresses = spawn(journal, "journal", system), spawn(router, "router", system)
    master = Master(NODE, "run-1", *addresses, paths, feed, POLICY)
    follower = Follower(Address("master"), journal, router, clock, log, feed)
    follower.arrives(cmd.DeleteInstance(command_id="known", instance_id="instance-0"))
    master.launch(follower.master, system)
    master.wait_started(10)
    yield follower
    master.stop()
    follower.master.join(10)
    log.close()


def retry(command_id: str = "retry-1", instance_id: str = "instance-1") -> cmd.RetryInstance:
    return cmd.RetryInstance(command_id=command_id, instance_id=instance_id, by="a user")


def test_a_command_goes_to_the_leader_and_its_answer_comes_with_the_log(follower: Follower) -> None:
    answer = follower.ask(retry())
    assert follower.router.commands() == [retry()]
    follower.router.answer(object())
    follower.settle()
    assert not answer.done, "committed there is not yet here"
    decision = follower.arrives(retry())
    assert answer.get(timeout=10) == decision


def test_the_log_may_be_quicker_than_the_leaders_word(follower: Follower) -> None:
    answer = follower.ask(retry())
    decision = follower.arrives(retry())
    assert answer.get(timeout=10) == decision
    follower.router.answer(object())
    follower.pass_time(2 * RESEND_S)
    assert len(follower.router.sent) == 1


def test_a_refusal_comes_either_way(follower: Follower) -> None:
    first = follower.ask(retry("retry-1"))
    follower.arrives(retry("retry-1"), rejection=REFUSAL)
    second = follower.ask(retry("retry-2"))
    follower.router.answer(error=Rejected(REFUSAL))
    for answer in (first, second):
        with pytest.raises(Rejected) as refused:
            answer.get(timeout=10)
        assert refused.value.cause == REFUSAL


def test_a_report_that_changes_nothing_is_answered(follower: Follower) -> None:
    answer = follower.ask(GONE)
    follower.router.answer(Unchanged(0))
    assert answer.get(timeout=10) == Unchanged(0)


def test_a_report_is_no_news_only_once_the_log_here_says_so_too(follower: Follower) -> None:
    """Until then the leader may be lost, and with it what had made the report no news."""
    answer = follower.ask(GONE)
    follower.router.answer(Unchanged(1))
    follower.pass_time(3 * RESEND_S)
    assert not answer.done
    assert len(follower.router.sent) == 1, "the leader has answered"
    follower.arrives(retry(), events=[ev.EpochStarted(epoch=1, node_id=LEADER, incarnation="run-1")])
    assert answer.get(timeout=10) == Unchanged(1)


def test_a_report_that_was_no_news_to_a_lost_leader_goes_to_the_next(follower: Follower) -> None:
    answer = follower.ask(GONE)
    follower.router.answer(Unchanged(1))
    follower.leads(Follow(OTHER))
    follower.arrives(retry(), events=[ev.EpochStarted(epoch=1, node_id=OTHER, incarnation="run-1")])
    follower.settle()
    assert not answer.done
    assert follower.router.commands(OTHER) == [GONE]
    follower.arrives(GONE)
    assert answer.get(timeout=10).command == GONE


def test_a_leader_that_was_left_has_no_word_any_more(follower: Follower) -> None:
    answer = follower.ask(GONE)
    follower.leads(Follow(OTHER))
    follower.router.sent[0][1].resolve(encode_answer(Unchanged(0), None))
    follower.settle()
    assert not answer.done


def test_what_the_log_has_already_is_not_passed_on(follower: Follower) -> None:
    decision = follower.arrives(retry())
    assert follower.master.ask(retry(), 10) == decision
    assert follower.router.sent == []


def test_what_is_asked_twice_goes_once_and_both_are_answered(follower: Follower) -> None:
    answers = [follower.ask(retry()) for _ in range(3)]
    assert len(follower.router.sent) == 1
    with pytest.raises(Rejected, match="being decided"):
        follower.master.ask(retry(instance_id="instance-2"), 10)
    decision = follower.arrives(retry())
    assert [answer.get(timeout=10) for answer in answers] == [decision] * 3


@pytest.mark.parametrize("error", [Stopped("the master"), OSError("a bug")])
def test_what_the_leader_could_not_take_is_sent_again(follower: Follower, error: Exception) -> None:
    answer = follower.ask(retry())
    follower.router.answer(error=error)
    follower.pass_time(RESEND_S)
    assert follower.router.commands() == [retry(), retry()]
    follower.arrives(retry())
    assert answer.get(timeout=10).command == retry()
    follower.pass_time(5 * RESEND_S)
    assert len(follower.router.sent) == 2


def test_a_broken_link_is_no_answer(follower: Follower) -> None:
    answer = follower.ask(retry())
    follower.router.sent[-1][1].fail(ConnectionError("the link broke"))
    follower.pass_time(RESEND_S)
    assert not answer.done
    assert follower.router.commands() == [retry(), retry()]


def test_what_was_lost_on_the_way_is_sent_again(follower: Follower) -> None:
    answer = follower.ask(retry())
    for _ in range(5):
        follower.pass_time(RESEND_S)
    assert follower.router.commands() == [retry(), retry()]
    follower.arrives(retry())
    assert answer.get(timeout=10).command == retry()


def test_of_many_only_some_are_under_way_at_a_time(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More at once than a link takes would break it, and all of them would go again with the next one."""
    monkeypatch.setattr(handed_over, "MAX_UNDER_WAY", 2)
    answers = [follower.ask(retry(f"retry-{n}")) for n in range(4)]
    follower.pass_time(2 * RESEND_S)
    assert follower.router.commands() == [retry("retry-0"), retry("retry-1")]
    follower.router.answer(object())  # the answer to retry-1
    follower.settle()
    assert follower.router.commands()[2:] == [retry("retry-2")]
    follower.router.answer(error=Stopped("the master"))
    follower.settle()
    assert follower.router.commands()[3:] == [retry("retry-3")], "the one that failed goes after a while"
    decisions = [follower.arrives(retry(f"retry-{n}")) for n in range(4)]
    assert [answer.get(timeout=10) for answer in answers] == decisions


def test_who_asks_while_too_many_wait_is_told(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_over, "MAX_WAITING", 2)
    follower.leads(Masterless())
    answers = [follower.ask(retry(f"retry-{n}")) for n in range(3)]
    assert [answer.done for answer in answers] == [False, False, True]
    assert isinstance(answers[2].error, MailboxFull)
    assert not follower.ask(retry("retry-0")).done, "it waits already"
    follower.arrives(retry("retry-0"))
    assert not follower.ask(retry("retry-2")).done


def test_a_new_leader_gets_at_once_what_the_old_one_owes(follower: Follower) -> None:
    answers = [follower.ask(retry(f"retry-{n}")) for n in range(3)]
    follower.router.answer(object())
    follower.leads(Masterless())
    assert len(follower.router.sent) == 3
    follower.leads(Follow(OTHER))
    assert follower.router.commands(OTHER) == [retry(f"retry-{n}") for n in range(3)]
    decisions = [follower.arrives(retry(f"retry-{n}")) for n in range(3)]
    assert [answer.get(timeout=10) for answer in answers] == decisions


def test_without_a_leader_a_command_waits_for_one(follower: Follower) -> None:
    follower.leads(Masterless())
    answer = follower.ask(retry())
    follower.pass_time(PATIENCE_S - 2 * RESEND_S)
    assert follower.router.sent == []
    assert not answer.done
    follower.leads(Follow(OTHER))
    assert follower.router.commands(OTHER) == [retry()]


def test_it_does_not_wait_for_ever(follower: Follower) -> None:
    follower.leads(Masterless())
    answer = follower.ask(retry())
    follower.pass_time(PATIENCE_S + RESEND_S)
    with pytest.raises(Stopped, match="no master that answers"):
        answer.get(timeout=10)
    follower.leads(Follow(OTHER))
    assert follower.router.sent == []


def gives_up(follower: Follower, *commands: Command) -> None:
    """This node's log goes back to where it was before these commands."""
    fork = follower.log.last_decision
    for command in commands:
        follower.arrives(command)
    follower.log.rewind(fork, "3/node-l/run-1", "it has more followers", [], at=2.0)
    follower.feed.rewound(fork, [])
    follower.journal.say(Rewound())
    follower.settle()


def test_what_its_side_gave_up_is_told_to_the_leader(follower: Follower) -> None:
    gives_up(follower, retry())
    (report,) = follower.router.commands()
    assert isinstance(report, cmd.ReportBranch)
    assert (report.origin, report.fork, report.command_ids) == (NODE, 1, ["retry-1"])
    assert (report.winner, report.reason) == ("3/node-l/run-1", "it has more followers")


def test_it_is_told_to_each_leader_until_the_log_has_it(follower: Follower) -> None:
    """The first leader, or this node, may be gone before anybody has heard of it."""
    follower.leads(Masterless())
    gives_up(follower, retry())
    assert follower.router.sent == []
    follower.leads(Follow(OTHER))
    (report,) = follower.router.commands(OTHER)
    follower.leads(Follow(LEADER))
    assert follower.router.commands() == [report]
    follower.arrives(report)
    follower.leads(Follow(OTHER))
    assert follower.router.commands(OTHER) == [report]


def test_it_is_told_again_where_the_log_that_had_it_lost_in_its_turn(follower: Follower) -> None:
    gives_up(follower, retry())
    (report,) = follower.router.commands()
    gives_up(follower, report)
    again, second = follower.router.commands()[1:]
    assert again == report
    assert isinstance(second, cmd.ReportBranch)
    assert second.command_ids == [report.command_id]


def test_what_the_router_has_no_room_for_goes_later(follower: Follower) -> None:
    """Many requests wait for a leader; the first moment of one must not be the master's end."""
    follower.leads(Masterless())
    answer = follower.ask(retry())
    mailbox = follower.router.mailbox
    mailbox.bound, bound = 0, mailbox.bound
    follower.journal.say(Follow(LEADER))
    with pytest.raises(Rejected):
        follower.master.ask(cmd.DeleteInstance(command_id="known", instance_id="another"), 20)
    mailbox.bound = bound
    assert follower.router.commands() == []
    follower.pass_time(RESEND_S)
    assert follower.router.commands() == [retry()]
    assert not answer.done


def test_what_can_not_be_passed_on_is_refused(follower: Follower) -> None:
    """As a model's directory whose name is no UTF-8: the leader would refuse to record it as well."""
    answer = follower.ask(retry(instance_id="instance-\udcff"))
    with pytest.raises(Rejected) as refused:
        answer.get(timeout=10)
    assert refused.value.cause.code == "not_recordable"
    assert follower.router.sent == []
