"""Experts that move between ranks, on plain tensors: rows, checksums, tickets, and what fails on one rank."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_ranks import TorchRanks, run  # noqa: E402

from engines.contract import MoveFailed  # noqa: E402
from engines.torch.eplb.checksums import checksum  # noqa: E402
from engines.torch.eplb.communicator import Communicator  # noqa: E402
from engines.torch.eplb.movement import Movement  # noqa: E402
from engines.torch.group import TorchGroup  # noqa: E402
from events.experts import LayerMoves, SlotMove  # noqa: E402

LAYERS, EXPERTS, SLOTS = 2, 6, 12
IDENTITY = [slot % EXPERTS for slot in range(SLOTS)]
TIMEOUT_S = 3.0


class Rows:
    """One layer's experts as two tensors whose content says whose they are."""

    def __init__(self, layer: int, rank: int, world: int) -> None:
        self.map = list(IDENTITY)
        per_rank = SLOTS // world
        mine = self.map[rank * per_rank : (rank + 1) * per_rank]
        whole = [truth(layer, expert) for expert in mine]
        self.tensors = [torch.stack(part) for part in zip(*whole, strict=True)]
        self.lookup = torch.tensor(self.map, dtype=torch.int32)

    def remap(self, map: list[int]) -> None:
        self.map = list(map)
        self.lookup.copy_(torch.tensor(map, dtype=torch.int32))

    def digest(self) -> str:
        return self.lookup.numpy().tobytes().hex()


def truth(layer: int, expert: int) -> list[Any]:
    draw = torch.Generator().manual_seed(layer * 100 + expert)
    weights = torch.randint(-128, 127, (5, 7), dtype=torch.int8, generator=draw)
    return [weights, torch.randn(5, dtype=torch.bfloat16, generator=draw)]


def is_true(group: TorchGroup, layers: list[Rows]) -> bool:
    per_rank = SLOTS // group.world
    return all(
        torch.equal(tensor[row], wanted)
        for n, layer in enumerate(layers)
        for row, expert in enumerate(layer.map[group.rank * per_rank : (group.rank + 1) * per_rank])
        for tensor, wanted in zip(layer.tensors, truth(n, expert), strict=True)
    )


def made(group: TorchGroup) -> tuple[list[Rows], Movement]:
    layers = [Rows(layer, group.rank, group.world) for layer in range(LAYERS)]
    return layers, Movement(group, layers, stage_s=TIMEOUT_S, apply_s=TIMEOUT_S)


def moves_to(layer: int, old: list[int], new: list[int]) -> LayerMoves:
    changed = [slot for slot in range(SLOTS) if old[slot] != new[slot]]
    return LayerMoves(layer, new, [SlotMove(slot, new[slot], old.index(new[slot])) for slot in changed])


def shuffled(chance: random.Random) -> list[int]:
    new = [*range(EXPERTS), *(chance.randrange(EXPERTS) for _ in range(SLOTS - EXPERTS))]
    chance.shuffle(new)
    return new


def _migrate(group: TorchGroup, pipe: Connection, rounds: int) -> Any:
    layers, movement = made(group)
    communicator = Communicator(group)
    assert not communicator.needs_reservation  # gloo has no buffers of its own; to reserve does no harm
    communicator.reserve()
    assert movement.staging_bytes == movement.expert_bytes * SLOTS // group.world
    chance = random.Random(4)
    pointers = [[t.data_ptr() for t in (*layer.tensors, layer.lookup)] for layer in layers]
    for n in range(rounds):
        layer = n % LAYERS
        moves = moves_to(layer, layers[layer].map, shuffled(chance))
        before = layers[layer].digest()
        staged = movement.stage(2 * n + 1, moves)
        assert layers[layer].digest() == before
        assert is_true(group, layers)
        assert len(staged.slots) == len(moves.moves)
        assert all(slot.sent == slot.staged for slot in staged.slots)
        digests = movement.apply(2 * n + 2, layer, moves.map)
        assert digests == [layers[layer].digest()] * group.world
        assert is_true(group, layers)
    assert pointers == [[t.data_ptr() for t in (*layer.tensors, layer.lookup)] for layer in layers]
    return "well"


@pytest.mark.parametrize("world", [2, 3])
def test_rows_follow_any_map(world: int) -> None:
    assert run(world, _migrate, 30) == ["well"] * world


def _fail(group: TorchGroup, pipe: Connection) -> Any:
    layers, movement = made(group)
    new = list(reversed(IDENTITY))
    good = moves_to(0, IDENTITY, new)
    found: list[str] = []

    def attempt(ticket: int, moves: LayerMoves) -> None:
        try:
            movement.stage(ticket, moves)
        except MoveFailed as failure:
            found.append(failure.cause.message)

    attempt(1, LayerMoves(0, new, good.moves[:-1]))  # does not make the map
    attempt(2, LayerMoves(0, new, [SlotMove(0, 3, 0)]))  # the source holds another expert
    attempt(3, moves_to(7, IDENTITY, new))
    if group.rank == 1:
        movement._received = _broken  # type: ignore[method-assign,assignment]
    attempt(4, good)
    if group.rank == 1:
        del movement._received
    assert is_true(group, layers)
    assert layers[0].map == IDENTITY
    movement.stage(5, good)
    attempt(6, good)  # neither applied nor dropped
    movement.drop(7)
    movement.stage(8, good)
    movement.apply(9, 0, new)
    assert is_true(group, layers)
    assert layers[0].map == new
    return found


def _broken(moves: LayerMoves) -> Any:
    raise MemoryError("no room")


def test_what_fails_on_one_rank_fails_on_all_and_changes_nothing() -> None:
    found, other = run(2, _fail)
    assert found == other
    assert [message.split(": ", 1)[0] for message in found] == [
        "Rank 0 could not stage its experts",
        "Rank 0 could not stage its experts",
        "Rank 0 could not stage its experts",
        "Rank 1 could not stage its experts",
        "Rank 0 could not stage its experts",
    ]
    assert "MemoryError: no room" in found[3]
    assert "neither applied nor dropped" in found[4]


def _refuse(group: TorchGroup, pipe: Connection) -> Any:
    layers, movement = made(group)
    new = list(reversed(IDENTITY))
    movement.stage(1, moves_to(0, IDENTITY, new))
    told: list[str] = []
    for ticket, attempt in (
        (1, lambda: movement.drop(1)),
        (3, lambda: movement.stage(3, moves_to(1, IDENTITY, new))),
        (2, lambda: movement.apply(2, 1, new)),
        (3, lambda: movement.apply(3, 0, IDENTITY)),
    ):
        with pytest.raises(RuntimeError) as refused:
            attempt()
        told.append(str(refused.value))
        assert is_true(group, layers), ticket
    return told


def test_a_rank_refuses_what_is_out_of_order_before_it_touches_the_group() -> None:
    told, other = run(2, _refuse)
    assert told == other
    assert [("ticket" in text, "is staged" in text) for text in told] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]


def _corrupt(group: TorchGroup, pipe: Connection) -> Any:
    _, movement = made(group)
    new = list(reversed(IDENTITY))
    if group.rank == 1:
        whole = movement._received

        def bent(moves: LayerMoves) -> Any:
            movement._buffers[1].view(torch.uint8)[0, 0] ^= 1  # one bit of one scale
            return whole(moves)

        movement._received = bent  # type: ignore[method-assign]
    staged = movement.stage(1, moves_to(0, IDENTITY, new))
    return [(slot.slot, slot.sent == slot.staged) for slot in staged.slots if slot.sent != slot.staged]


def test_one_bit_shows_in_the_checksums_of_all_ranks() -> None:
    assert run(2, _corrupt) == [[(6, False)]] * 2


def _stop(group: TorchGroup, pipe: Connection, at: str) -> Any:
    _, movement = made(group)
    new = list(reversed(IDENTITY))
    moves = moves_to(0, IDENTITY, new)
    if at == "staging":
        if group.rank == 1:
            pipe.send("here")
            os.kill(os.getpid(), signal.SIGSTOP)
        movement.stage(1, moves)
    movement.stage(1, moves)
    if group.rank == 1:
        pipe.send("here")
        os.kill(os.getpid(), signal.SIGSTOP)
    movement.apply(2, 0, new)
    return "applied"


@pytest.mark.parametrize("at", ["staging", "applying"])
@pytest.mark.parametrize("killed", [True, False])
def test_a_rank_that_hangs_or_dies_ends_the_wait_of_the_others(at: str, killed: bool) -> None:
    with TorchRanks(2, _stop, at) as ranks:
        assert ranks.hear(1) == "here"
        began = time.monotonic()
        if killed:
            os.kill(ranks.processes[1].pid, signal.SIGKILL)
        assert ranks.hear(0, timeout=TIMEOUT_S + 60).startswith("GroupLost: A collective failed")
        assert time.monotonic() - began < (TIMEOUT_S if killed else TIMEOUT_S + 30)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64])
def test_checksums_see_every_bit_and_every_exchange(dtype: Any) -> None:
    draw = torch.Generator().manual_seed(1)
    row = torch.randint(-100, 100, (3, 1013), generator=draw).to(dtype)
    whole = checksum([row])
    assert checksum([row.clone()]) == whole
    assert checksum([torch.cat([torch.zeros(1, 1013, dtype=dtype), row])[1:]]) == whole  # at another offset
    for byte in (0, 7, 1500, row.nbytes - 1):
        bent = row.clone()
        bent.view(torch.uint8).view(-1)[byte] ^= 128
        assert checksum([bent]) != whole
    assert checksum([row[[1, 0, 2]]]) != whole
    assert checksum([row.view(1013, 3)]) != whole
    assert checksum([row, row]) != checksum([row])


def test_checksums_of_long_rows_see_exchanged_blocks() -> None:
    row = torch.arange(300_000)
    moved = torch.cat([row[1 << 17 : 1 << 18], row[: 1 << 17], row[1 << 18 :]])
    assert checksum([moved]) != checksum([row])
