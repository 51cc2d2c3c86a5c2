"""Moving experts under any order of reports, deadlines, deaths and restarts.

After every step: maps are valid, one migration at most, and replaying the log gives the live state. At the
end deciding everything again gives the same bytes.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.cluster import KILLED
from support.expert_commands import BROKEN, CARD, EVEN, SKEWED
from support.experts import Mixture

from actors.decider import decide
from engines.experts import maps
from events import expert_events as xe
from events.base import Command, Event
from events.codec import encode
from events.commands import Facts
from events.experts import StagedSlot
from projections.evolve import apply
from projections.state import ClusterState, Experts

HOT = [[1.0] * expert + [5000.0] + [1.0] * (7 - expert) for expert in range(8)]
LOADS = [EVEN, SKEWED, *HOT, [0.0] * 8, [None, *EVEN[1:]], [-1.0, *EVEN[1:]]]


class Recorded(Mixture):
    """A mixture that remembers each decision with the state that it was made on."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Command, Facts, bytes, list[Event]]] = []
        self.applied_events: list[tuple[Event, float]] = []
        super().__init__(self._recording)

    def _recording(self, state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        before = msgspec.msgpack.encode(state)
        events = decide(state, command, facts)
        self.decisions.append((command, facts, before, events))
        self.applied_events += [(event, facts.now) for event in events]
        return events


class Experimenter(RuleBasedStateMachine):
    """Sends what rank 0, the controller, users and death may send, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Recorded()
        self.cluster.all_ready()
        self._sent: list[Command] = []
        self._runs = 1

    def _send(self, command: Command) -> list[Event]:
        self._sent.append(command)
        return self.cluster.do(command)

    def _moves(self) -> bool:
        return self.cluster.experts.migration is not None

    @rule(load=st.sampled_from(LOADS), stale=st.booleans(), tokens=st.sampled_from([1, 4096]))
    def window(self, load: list[float | None], stale: bool, tokens: int) -> None:
        epoch = self.cluster.experts.epoch - stale
        self._send(self.cluster.load(load, epoch=epoch, tokens=tokens))

    @rule(back=st.integers(0, 1))
    def rebalance(self, back: int) -> None:
        self.cluster.rebalance(self.cluster.experts.window - back)

    @rule(hot=st.integers(0, 7))
    def skewed_traffic(self, hot: int) -> None:
        self.cluster.window(HOT[hot])
        self.cluster.rebalance()

    @precondition(_moves)
    @rule()
    def staged(self) -> None:
        self._send(self.cluster.staging())

    @precondition(_moves)
    @rule(what=st.sampled_from(["cause", "slots", "checksum"]))
    def badly_staged(self, what: str) -> None:
        slots = self.cluster.staging().slots
        broken = [msgspec.structs.replace(slots[0], staged="?"), *slots[1:]]
        spoilt = {
            "cause": self.cluster.staging(cause=BROKEN),
            "slots": self.cluster.staging(slots=[StagedSlot(slot=99, sent="a", staged="a")]),
            "checksum": self.cluster.staging(slots=broken),
        }
        self._send(spoilt[what])

    @precondition(_moves)
    @rule()
    def applied(self) -> None:
        self._send(self.cluster.applying())

    @precondition(_moves)
    @rule(digests=st.sampled_from([[], ["00", "00"], ["00"]]))
    def badly_applied(self, digests: list[str]) -> None:
        self._send(self.cluster.applying(digests=digests))

    @precondition(_moves)
    @rule(seconds=st.sampled_from([0.0, 4.0, 6.0]))
    def expires(self, seconds: float) -> None:
        command = self.cluster.expiring()
        self.cluster.now += seconds
        self._send(command)

    @precondition(lambda self: self._sent)
    @rule(back=st.integers(1, 8))
    def an_old_word_comes_again(self, back: int) -> None:
        self.cluster.do(self._sent[-min(back, len(self._sent))])

    @precondition(lambda self: self.cluster.runners)
    @rule(rank=st.integers(0, 1))
    def a_rank_dies(self, rank: int) -> None:
        runners = self.cluster.runners
        self.cluster.runner(KILLED, runner_id=runners[rank % len(runners)])

    @rule(lost=st.booleans())
    def the_node_goes_and_comes_back(self, lost: bool) -> None:
        incarnation, self._runs = f"run-{self._runs}", self._runs + 1
        if lost:
            self.cluster.node_lost("node-a", incarnation)
        else:
            self.cluster.node_stops("node-a", incarnation)
        self.cluster.two_devices(f"run-{self._runs}")

    @rule()
    def it_is_deleted_and_wanted_again(self) -> None:
        self.cluster.delete(self.cluster.instance_id)
        self.cluster.instance_id = self.cluster.place_mixture()

    @rule()
    def it_is_placed_and_ready(self) -> None:
        cluster = self.cluster
        instance = cluster.instance(cluster.instance_id)
        if instance.status == "failed":
            cluster.retry(cluster.instance_id)
        cluster.now += 20
        cluster.reconcile(cluster.instance_id)
        cluster.all_ready()

    @invariant()
    def every_layer_is_a_valid_map(self) -> None:
        experts = self.cluster.experts
        for layer in experts.maps:
            maps.check(layer, experts.experts, experts.ranks)
        assert len(experts.maps) == CARD.n_moe_layers

    @invariant()
    def every_migration_has_one_end_or_is_open(self) -> None:
        history = self.cluster.history
        planned = {e.migration_id for e in history if isinstance(e, xe.MigrationPlanned)}
        ends = [e for e in history if isinstance(e, xe.MigrationAborted | xe.ExpertEpochSealed)]
        ended = Counter(event.migration_id for event in ends)
        migration = self.cluster.experts.migration
        assert set(ended.values()) <= {1}
        assert planned == ended.keys() | ({migration.migration_id} if migration else set())

    @invariant()
    def the_maps_are_those_that_were_committed(self) -> None:
        committed: dict[str, Experts | list[list[int]]] = {}
        for event in self.cluster.history:
            if isinstance(event, xe.ExpertsPlaced):
                committed[event.instance_id] = [list(layer) for layer in event.maps]
            elif isinstance(event, xe.LayerCommitted):
                committed[event.instance_id][event.layer] = event.map  # type: ignore[index]
        assert self.cluster.experts.maps == committed[self.cluster.instance_id]

    def teardown(self) -> None:
        """The log, replayed, gives the live state; decided again, the same events."""
        replayed = ClusterState()
        for event, at in self.cluster.applied_events:
            apply(replayed, replayed.seq + 1, self.cluster.state.epoch, at, event)
        assert replayed == self.cluster.state
        for command, facts, before, events in self.cluster.decisions:
            state = msgspec.msgpack.decode(before, type=ClusterState)
            assert encode(decide(state, command, facts)) == encode(events)


TestExperimenter = Experimenter.TestCase
TestExperimenter.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
