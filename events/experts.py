"""Values of expert parallelism and of its load balancer (EPLB): settings, moves between slots, checksums.

A layer has E logical experts and P = E + redundant physical slots; slot p lives on rank ``p // (P / ranks)``.
A *map* of a layer is a list of P logical experts, one a slot. The *epoch* of an instance's experts counts the
placements that were committed; it has nothing to do with the master's.
"""

from __future__ import annotations

from typing import Literal

from events.base import Value

LoadPhase = Literal["all", "prefill", "decode"]
"""Whose tokens count as load. A batch with any prefill is prefill."""
ExpertDispatch = Literal["shared", "all_to_all"]
"""How tokens reach experts: all ranks see all of them, or each sends its own to where the experts are."""
ExpertFormat = Literal["plain", "int8"]
"""How expert weights are held: in the placement's dtype, or as int8 with a scale for each output row."""
EplbPolicy = Literal["static", "greedy", "movement"]
Communicator = Literal["gloo", "nccl", "hccl"]
MigrationStage = Literal["staging", "committed"]
"""Of the layer at hand: its rows are on their way, or the log names its new map and ranks are to apply it."""


class EplbSettings(Value, frozen=True, forbid_unknown_fields=True):
    """What the user wants of the load balancer. Checked when the instance is placed."""

    redundant_experts: int = 0
    """Physical slots of a layer beyond its logical experts."""
    window: int = 100
    """Engine steps whose load is counted for a decision; at most ``interval``."""
    interval: int = 300
    """Engine steps from a decision to the next."""
    phase: LoadPhase = "all"
    policy: EplbPolicy = "movement"
    min_tokens: int = 256
    """Tokens that a window must have seen for a decision."""
    horizon_s: float = 600.0
    """Seconds of serving in which a move must pay for itself."""
    max_bytes: int = 0
    """Bytes that the busiest rank may receive in one migration; 0 for no limit."""
    stage_timeout_s: float = 30.0
    apply_timeout_s: float = 30.0
    communicator: Communicator | Literal[""] = ""
    """What carries expert weights; empty for the one that goes with the device."""
    use_async: bool = False
    """Moving weights beside a running forward pass. Refused: no rank may see half a move."""


class SlotMove(Value, frozen=True):
    """Fill ``slot`` with ``expert``, from the slot ``source``, which holds it now."""

    slot: int
    expert: int
    source: int


class LayerMoves(Value, frozen=True):
    """What changes in one layer: its new ``map`` and the moves that make it so."""

    layer: int
    map: list[int]
    moves: list[SlotMove]


class StagedSlot(Value, frozen=True):
    """Checksums of a moved expert, over every tensor that the kernel reads: at its source and as received."""

    slot: int
    sent: str
    staged: str


class Balance(Value, frozen=True):
    """Mean rank load by the hottest rank's, each summed over the layers: 1.0 is perfect.

    ``now`` is what the window saw, ``predicted`` what the proposal would have made of it, ``bound`` the best
    that any placement with these slots could.
    """

    now: float
    predicted: float
    bound: float
