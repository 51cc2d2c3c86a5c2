"""The windows that a log's decisions weighed, and what another policy would have made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from actors.deciding.balancing import Question, question
from actors.eplb.policy import POLICIES
from actors.eplb.what_if import Logged, what_if
from events.expert_events import RebalanceDecided
from events.experts import EplbPolicy
from events.reader import LogReader
from projections.deciding import decisions_with_state
from projections.state import ClusterState, Experts, LoadReading


class Outcome(msgspec.Struct, frozen=True):
    """What a policy saw in a window and did after it: ``balance`` is under the placement before."""

    balance: float
    moves: int
    bytes_total: int
    bytes_busiest: int
    adopted: bool
    reason: str


class Row(msgspec.Struct, frozen=True):
    """One weighed window: as it was, and with the other policy ever since the first one."""

    at: float
    window: int
    epoch: int
    policy: EplbPolicy
    was: Outcome
    would_be: Outcome


class Comparison(msgspec.Struct, frozen=True):
    """One instance under another policy. A placement on other ranks or slots begins another comparison."""

    instance_id: str
    policy: EplbPolicy
    ranks: int
    rows: list[Row]


def mean_balance(outcomes: Sequence[Outcome]) -> float:
    """Over all windows but the first, which no decision came before."""
    seen = outcomes[1:] or outcomes
    return sum(outcome.balance for outcome in seen) / len(seen)


class _Weighed(NamedTuple):
    """What a decision rested on, and what it was."""

    at: float
    experts: Experts
    load: LoadReading
    question: Question
    decided: RebalanceDecided


def compare(reader: LogReader, policy: EplbPolicy) -> list[Comparison]:
    """Every instance with weighed windows, from its first placement on, under ``policy`` and the gate it had.

    The loads are as logged, whatever a better placement would have made of the traffic.
    """
    runs: dict[str, list[list[_Weighed]]] = {}
    for weighed in _weighed(reader):
        of_instance = runs.setdefault(weighed.experts.instance_id, [])
        if of_instance and _goes_on(of_instance[-1][-1], weighed):
            of_instance[-1].append(weighed)
        else:
            of_instance.append([weighed])
    return [_comparison(run, policy) for of_instance in runs.values() for run in of_instance]


def _goes_on(before: _Weighed, weighed: _Weighed) -> bool:
    """Whether two decisions were about the same slots on the same ranks."""
    one, other = before.experts, weighed.experts
    return (one.ranks, len(one.maps[0])) == (other.ranks, len(other.maps[0]))


def _comparison(run: Sequence[_Weighed], policy: EplbPolicy) -> Comparison:
    first = run[0]
    asked = first.question
    windows = (Logged(loads=each.question.loads, window=each.question.window) for each in run)
    steps = what_if(windows, asked.old, POLICIES[policy], asked.topology, asked.budget, asked.gate)
    rows = [
        Row(
            at=each.at,
            window=each.load.window,
            epoch=each.load.epoch,
            policy=each.decided.policy,
            was=_was(each.decided),
            would_be=Outcome(
                balance=step.balance,
                moves=step.moved,
                bytes_total=step.bytes_total,
                bytes_busiest=step.bytes_busiest,
                adopted=step.verdict is not None and step.verdict.adopted,
                reason=step.verdict.reason if step.verdict else "",
            ),
        )
        for each, step in zip(run, steps, strict=True)
    ]
    return Comparison(first.experts.instance_id, policy, first.experts.ranks, rows)


def _was(decided: RebalanceDecided) -> Outcome:
    moved = decided.adopted
    return Outcome(
        balance=decided.balance.now,
        moves=decided.moves if moved else 0,
        bytes_total=decided.bytes_total if moved else 0,
        bytes_busiest=decided.bytes_busiest if moved else 0,
        adopted=moved,
        reason=decided.reason,
    )


def _weighed(reader: LogReader) -> Iterator[_Weighed]:
    for decision, state in decisions_with_state(reader):
        for recorded in decision.events:
            if isinstance(recorded.event, RebalanceDecided):
                found = _rested_on(state, recorded.at, recorded.event)
                if found is not None:
                    yield found


def _rested_on(state: ClusterState, at: float, decided: RebalanceDecided) -> _Weighed | None:
    experts, instance = state.experts[decided.instance_id], state.instances[decided.instance_id]
    placement, card = instance.placement, state.models[instance.model_id].card
    if experts.load is None or placement is None or placement.eplb is None:
        return None
    return _Weighed(
        at=at,
        experts=experts,
        load=experts.load,
        question=question(experts, experts.load, card, placement, placement.eplb),
        decided=decided,
    )
