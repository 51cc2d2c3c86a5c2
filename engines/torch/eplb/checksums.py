"""Checksums of expert rows: the same number on every device, computed where the row is.

The bytes are read as 64-bit words, each multiplied by an odd number of its place, and summed modulo 2**64:
a change of any one word always shows, since odd numbers are units of that ring; so does an exchange of two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

_WORD = 8
_BLOCK = 1 << 17
"""Words of a block, 1 MiB: the products of one block are all the memory that is needed beside the row."""
_ODD = 0x1E3779B97F4A7C15


def checksum(rows: Iterable[Tensor]) -> str:
    """Of one expert: all the tensors that its kernel reads, in their order. 16 hexadecimal digits.

    Each of ``rows`` is contiguous, of any dtype and shape; those are part of the sum.
    """
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(f"{row.dtype}{tuple(row.shape)}{_words_sum(row)}".encode())
    return digest.hexdigest()


def _words_sum(row: Tensor) -> int:
    raw = row.reshape(-1).view(torch.uint8)
    tail = raw.numel() % _WORD
    words = raw[: raw.numel() - tail].view(torch.int64) if not raw.storage_offset() % _WORD else _copied(raw)
    sums = [_block_sum(block) for block in cast("list[Tensor]", cast("Any", words).split(_BLOCK))]
    if tail:
        padded = torch.zeros(_WORD, dtype=torch.uint8, device=row.device)
        padded[:tail] = raw[-tail:]
        sums.append(_block_sum(padded.view(torch.int64)))
    return int(_block_sum(torch.stack(sums))) if sums else 0


def _copied(raw: Tensor) -> Tensor:
    """The whole words of bytes that don't begin at one."""
    return raw[: raw.numel() - raw.numel() % _WORD].clone().view(torch.int64)


def _block_sum(words: Tensor) -> Tensor:
    """The weighted sum of up to a block of words; integers wrap."""
    return (words * _weights(words.numel(), words.device)).sum()


_WEIGHTS: dict[torch.device, Tensor] = {}


def _weights(n: int, device: torch.device) -> Tensor:
    """Odd numbers of the places 0 to n."""
    found = _WEIGHTS.get(device)
    if found is None or found.numel() < n:
        places = torch.arange(max(n, 1024), dtype=torch.int64, device=device)
        found = _WEIGHTS[device] = (places * _ODD) | 1
    return found[:n]
