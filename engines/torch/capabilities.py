"""Whether an accelerator computes what the engine asks of it: the engine's own pieces, compared with the CPU.

An accelerator may lack an operator, or have one that is wrong for a dtype or a layout. Better that a node
says so when it starts than that a model writes nonsense.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.torch.experts.formats import grouped_mm
from engines.torch.experts.grouping import pairs

_TOKENS, _EXPERTS, _WIDTH = 24, 4, 64
_TOLERANCE = 0.02
"""Of bfloat16, whose numbers have 8 bits, after sums of some tens of products of them."""


def fault(device: torch.device) -> str:
    """What the device can't compute, or computes wrongly, as a sentence; empty where all is well."""
    for name, work in _WORKS.items():
        wanted = work(torch.device("cpu"))
        try:
            found = work(device).cpu()
        except RuntimeError as error:
            return f"{device} can't compute {name}: {error}"
        if not torch.allclose(found.float(), wanted.float(), rtol=_TOLERANCE, atol=_TOLERANCE):
            worst = (found.float() - wanted.float()).abs().max().item()
            return f"{device} computes {name} wrongly: it is off by {worst:.3g}."
    return ""


def _products(device: torch.device) -> Tensor:
    """Of matrices, and a norm: what most of a layer is."""
    return F.rms_norm(_drawn(1, _TOKENS, _WIDTH).to(device) @ _drawn(2, _WIDTH, 48).to(device), (48,))


def _attention(device: torch.device) -> Tensor:
    """Of rows that see as far as they are, with fewer heads of keys than of queries."""
    queries, keys, values = (
        _drawn(seed, 2, heads, _TOKENS, 16).to(device) for seed, heads in ((3, 4), (4, 2), (5, 2))
    )
    places = torch.arange(_TOKENS, device=device)
    hidden = places[None, :] > places[:, None]
    least = torch.finfo(queries.dtype).min
    mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=device).masked_fill_(hidden, least)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)


def _cache_writes(device: torch.device) -> Tensor:
    """Rows that go to places of their own, as keys and values into their cache, and an index that adds."""
    places = torch.arange(_TOKENS, device=device).flip(0)[:, None].expand(-1, _WIDTH)
    held = torch.zeros(_TOKENS, _WIDTH, dtype=torch.bfloat16, device=device)
    held.scatter_(0, places, _drawn(6, _TOKENS, _WIDTH).to(device))
    return held.index_add_(0, places[:, 0], held.clone())


def _sorted_tokens(device: torch.device) -> Tensor:
    """Tokens sorted by the expert that computes them, and counted."""
    found = pairs(_choices(device), 0, torch.arange(_EXPERTS, device=device))
    return torch.cat([found.groups.slots, found.groups.ends, found.groups.counts, found.tokens, found.place])


def _grouped_products(device: torch.device) -> Tensor:
    """Each expert's matrix by its own tokens."""
    found = pairs(_choices(device), 0, torch.arange(_EXPERTS, device=device))
    rows = _drawn(7, _TOKENS, _WIDTH).to(device)[found.tokens]
    return grouped_mm(rows, _drawn(8, _EXPERTS, 48, _WIDTH).to(device), found.groups.ends)


_WORKS: dict[str, Callable[[torch.device], Tensor]] = {
    "products of matrices": _products,
    "attention": _attention,
    "writes by index": _cache_writes,
    "the order of tokens by expert": _sorted_tokens,
    "grouped products": _grouped_products,
}


def _drawn(seed: int, *shape: int) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=chance) / 4).to(torch.bfloat16)


def _choices(device: torch.device) -> Tensor:
    """The experts of each token, [T, k], none twice."""
    first = torch.arange(_TOKENS, device=device) % _EXPERTS
    return torch.stack([first, (first + 1 + torch.arange(_TOKENS, device=device) % 2) % _EXPERTS], dim=1)
