"""The answers of `cuebook replay` on experts and their load balancer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from api.cli.console import print_json, print_table, say
from api.cli.errors import CliError
from projections.heat_map import heat_map as heat_map_of
from projections.heat_svg import render
from projections.phrases import count, size
from projections.why import Unknown

if TYPE_CHECKING:
    from actors.eplb.replayed import Comparison, Outcome
    from api.cli.replay_commands import Question


def heat_map(question: Question) -> int:
    """`replay heat-map`: the numbers as JSON, or a drawing of them in a file."""
    args = question.args
    try:
        heat = heat_map_of(question.reader, args.instance, args.epoch)
    except Unknown as error:
        raise CliError(str(error)) from error
    if question.as_json:
        print_json(heat)
        return 0
    target = Path(args.to or f"{heat.instance_id}-{heat.epoch}.svg").expanduser()
    try:
        target.write_text(render(heat), encoding="utf-8")
    except OSError as error:
        raise CliError(f"{target} can't be written: {error.strerror}.") from error
    panels = (("before", heat.before), ("in", heat.after))
    balances = [f"{panel.balance:.3f} {when} epoch {heat.epoch}" for when, panel in panels if panel]
    say(f"{target}: balance {', '.join(balances)}.")
    return 0


def what_if(question: Question) -> int:
    """`replay what-if` with a policy of the load balancer."""
    from actors.eplb.replayed import compare

    comparisons = compare(question.reader, question.args.policy)
    if question.as_json:
        print_json(comparisons)
        return 0
    if not comparisons:
        say("The log has no decision of a load balancer.")
    for comparison in comparisons:
        _show(comparison)
    return 0


def _show(comparison: Comparison) -> None:
    from actors.eplb.replayed import mean_balance

    was, would_be = [row.was for row in comparison.rows], [row.would_be for row in comparison.rows]
    say(f"{comparison.instance_id}, {count(comparison.ranks, 'rank')}, with the policy {comparison.policy}:")
    rows = [
        (row.window, row.epoch, row.policy, *_cells(row.was), *_cells(row.would_be))
        for row in comparison.rows
    ]
    other = comparison.policy
    columns = ("window", "epoch", "policy", "balance", "experts moved", "bytes")
    print_table((*columns, f"balance ({other})", "experts moved", "bytes"), rows, empty="no window")
    say(
        f"Mean balance {mean_balance(was):.3f} as it was for {_sum(was)}, {mean_balance(would_be):.3f} with "
        f"{other} for {_sum(would_be)}."
    )


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.adopted:
        return f"{outcome.balance:.3f}", "none", ""
    return f"{outcome.balance:.3f}", str(outcome.moves), size(outcome.bytes_total)


def _sum(outcomes: list[Outcome]) -> str:
    moves, moved = sum(each.moves for each in outcomes), sum(each.bytes_total for each in outcomes)
    return f"{count(moves, 'expert')} moved ({size(moved)})"
