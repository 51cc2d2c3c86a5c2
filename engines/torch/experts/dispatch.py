"""How tokens reach the ranks that have their experts, and how the sums come back.

Both ways have fixed shapes: nothing waits for the device to say how many tokens go where. Ranks must be of
one kind of hardware: each computes the attention of all tokens, and they must agree on the outcome.
"""

# pyright: reportUnknownMemberType=false, reportDeprecated=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What this rank's experts give: hidden states [n, H], physical experts [n, k] (-1 for none) and their
weights [n, k] make float32 [n, H], the weighted sum over the experts that are here."""


class Dispatch(Protocol):
    """One way. All ranks call its methods alike, with the same number of tokens."""

    @property
    def sliced(self) -> bool:
        """True where this rank routes some of the tokens, with padding, and not all."""
        ...

    def local(self, tokens: Tensor) -> Tensor:
        """From [T, ...], the rows of those tokens that this rank routes; zeros beyond the last token."""
        ...

    def run(self, hidden: Tensor, ids: Tensor, weights: Tensor, compute: Compute) -> Tensor:
        """The experts' sum for all tokens, [T, H]. ``ids`` and ``weights`` are those of the local ones."""
        ...


@dataclass(frozen=True, slots=True)
class Shared:
    """Every rank routes all tokens and computes what its experts are to do; one sum over the ranks ends it.

    Routing must be equal on all ranks, the choice of a copy too, or experts would be computed twice or never.
    """

    world: int
    group: dist.ProcessGroup | None

    @property
    def sliced(self) -> bool:
        """No."""
        return False

    def local(self, tokens: Tensor) -> Tensor:
        """All of them."""
        return tokens

    def run(self, hidden: Tensor, ids: Tensor, weights: Tensor, compute: Compute) -> Tensor:
        """Compute, then sum in float32."""
        total = compute(hidden, ids, weights)
        if self.world > 1:
            dist.all_reduce(total, group=self.group)
        return total.to(hidden.dtype)


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Every rank routes a slice of the tokens, sends each to the ranks that have its experts, and sums what
    returns.

    Who could get all tokens of a slice gets room for all of them: a token goes to a rank once, however many
    of its experts are there. In the end each rank has its slice's sums, and all gather all slices.
    """

    rank: int
    world: int
    group: dist.ProcessGroup | None
    slots: int
    """Physical slots of each rank."""

    @property
    def sliced(self) -> bool:
        """Yes."""
        return True

    def local(self, tokens: Tensor) -> Tensor:
        """A slice of ceil(T / ranks) tokens."""
        size = -(-len(tokens) // self.world)
        mine = tokens[self.rank * size : (self.rank + 1) * size]
        padded = tokens.new_zeros((size, *tokens.shape[1:]))
        padded[: len(mine)] = mine
        return padded

    def run(self, hidden: Tensor, ids: Tensor, weights: Tensor, compute: Compute) -> Tensor:
        """Send, compute, send back, sum in float32, gather."""
        mine = self.local(hidden)
        sent = _Parcel.pack(mine.expand(self.world, *mine.shape), self._addressed(ids), weights)
        states, theirs, gates = _Parcel.unpack(self._exchange(sent), mine.shape[-1], ids.shape[-1])
        sums = compute(states, theirs, gates.to(weights.dtype))
        total = self._exchange(sums.view(self.world, *mine.shape)).sum(dim=0).to(hidden.dtype)
        return self._gather(total)[: len(hidden)]

    def _addressed(self, ids: Tensor) -> Tensor:
        """The experts that each rank is to see, [ranks, n, k]: -1 where they are another's."""
        ranks = torch.arange(self.world, device=ids.device).view(-1, 1, 1)
        return torch.where(ids.div(self.slots, rounding_mode="floor") == ranks, ids, -1)

    def _exchange(self, rows: Tensor) -> Tensor:
        """[ranks, ...] in, what is for each; [ranks, ...] out, what each has sent."""
        if self.world == 1:
            return rows
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows, group=self.group)
        return received

    def _gather(self, mine: Tensor) -> Tensor:
        if self.world == 1:
            return mine
        slices = mine.new_empty((self.world * mine.shape[0], *mine.shape[1:]))
        dist.all_gather_into_tensor(slices, mine, group=self.group)
        return slices


class _Parcel:
    """Hidden states, experts and weights of tokens in one tensor: one exchange in place of three.

    Experts and weights travel as float32 (experts are far below 2**24), as bits in the dtype of the states.
    """

    @staticmethod
    def pack(states: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """[R, n, H], [R, n, k] and [n, k] make [R, n, H + room for 2 k float32]."""
        routing = torch.cat([ids.float(), weights.float().expand(ids.shape)], dim=-1)
        return torch.cat([states, routing.view(states.dtype)], dim=-1)

    @staticmethod
    def unpack(parcel: Tensor, hidden: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The states [R * n, H], the ids and the float32 weights [R * n, k]."""
        rows = parcel.flatten(0, 1)
        routing = rows[:, hidden:].contiguous().view(torch.float32)
        return rows[:, :hidden], routing[:, :k].long(), routing[:, k:]
