"""What we take from mlx-lm, with types: it ships none that a strict checker accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
import tokenizers

Config = dict[str, Any]


class HubTokenizer(Protocol):
    """mlx-lm's wrapper around a transformers tokenizer, as far as we use it."""

    has_chat_template: bool
    eos_token_ids: set[int]
    bos_token: str | None
    backend_tokenizer: tokenizers.Tokenizer

    def apply_chat_template(self, messages: object, **options: object) -> Any:
        """Render and tokenize a chat. Raises whatever the template raises."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text."""
        ...


class PromptResponse(Protocol):
    """Progress of one prompt: (computed, total) tokens."""

    uid: int
    progress: tuple[int, int]


class TokenResponse(Protocol):
    """One token of one sequence; ``finish_reason`` "stop" means that it is the end-of-sequence token."""

    uid: int
    token: int
    logprobs: mx.array
    finish_reason: str | None


class Batch(Protocol):
    """`mlx_lm.generate.BatchGenerator`."""

    def insert(
        self,
        prompts: list[list[int]],
        max_tokens: list[int],
        *,
        samplers: list[Callable[[mx.array], mx.array]],
    ) -> list[int]:
        """Queue prompts and return their uids."""
        ...

    def next(self) -> tuple[list[PromptResponse], list[TokenResponse]]:
        """One decode step of all running sequences, then one prefill chunk."""
        ...

    def remove(self, uids: list[int]) -> object:
        """Drop sequences and their caches, wherever they are."""
        ...


def batch_generator(model: nn.Module, eos: Sequence[int], *, batch: int, prefill_chunk: int) -> Batch:
    """Continuous batching that prefills one prompt at a time, one chunk between two decode steps.

    Prompts are not padded together: alone, a prompt is computed exactly as `mlx_lm.generate` computes it,
    and the pause of running streams is bounded by one chunk.
    """
    from mlx_lm.generate import BatchGenerator

    made: object = BatchGenerator(
        model,
        stop_tokens=[[token] for token in eos],
        completion_batch_size=batch,
        prefill_batch_size=1,
        prefill_step_size=prefill_chunk,
    )
    return cast("Batch", made)


def load_tokenizer(path: Path, eos: object) -> HubTokenizer:
    """The tokenizer with its chat template; ``eos`` is config's eos_token_id (int, list or None)."""
    from mlx_lm import utils

    return cast("HubTokenizer", utils.load_tokenizer(path, eos_token_ids=eos))


def load_config(path: Path) -> Config:
    """config.json, with generation_config.json's eos_token_id where it names one."""
    from mlx_lm import utils

    return cast("Config", utils.load_config(path))


def model_classes(config: Config) -> tuple[type[nn.Module], type[object]]:
    """The model class and its arguments class. Raises `ValueError` for a model type mlx-lm lacks."""
    from mlx_lm import utils

    classes: object = utils._get_classes(config)  # pyright: ignore[reportPrivateUsage]
    return cast("tuple[type[nn.Module], type[object]]", classes)


def load_model(path: Path, overrides: Config) -> nn.Module:
    """The model with its weights not yet read. Raises `ValueError` where tensors are missing or left over."""
    from mlx_lm import utils

    loaded: object = utils.load_model(path, lazy=True, strict=True, model_config=overrides)
    return cast("tuple[nn.Module, Config]", loaded)[0]
