"""A loaded transformers model as something that computes passes."""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from engines.contract import LoadSpec
from engines.torch.cache import SlotCache, mask
from engines.torch.passes import Pass


class TorchModel:
    """Implements `engines.torch.passes.Compute` with the model and its cache.

    A row's numbers don't depend on what its neighbours are, yet in their last bits on how many they are and
    how long: products of another shape add in another order.
    """

    def __init__(self, model: PreTrainedModel, spec: LoadSpec) -> None:
        self.model = model
        self.cache = SlotCache(len(layers(model)), spec.batch, spec.context)
        # transformers renames the argument: from 5.40 on the old name is gone
        known = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"

    def __call__(self, work: Pass) -> torch.Tensor:
        """Logits (rows, vocabulary) after each row's last token, in the model's dtype."""
        self.cache.begin(work)
        out = self.model(
            input_ids=work.tokens,
            position_ids=work.positions,
            attention_mask=mask(work, self.model.dtype),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self.cache},
        )
        return out.logits[:, -1]


def layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The decoder layers, in order."""
    return list(cast("Any", model.get_decoder()).layers)
