"""Loads a model into a torch runner: check, read layer by layer, warm up."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from engines import refusals
from engines.contract import Follower, Generator, LoadSpec
from engines.generator import BatchedGenerator, warmed
from engines.torch import checks, loading
from engines.torch.batch import TorchBatch
from engines.torch.devices import DTYPES, torch_device
from engines.torch.model import TorchModel
from engines.torch.sampling import TorchDrawing
from engines.torch.tokenizer import TorchTokenizer


class TorchBuilder:
    """Implements `engines.contract.Builder` for one rank alone."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        self.path = Path(spec.path)
        self.device = torch_device(spec.device_id)
        self._model: TorchModel | None = None
        self._tokenizer: TorchTokenizer | None = None

    def load(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read the weights, calling ``progress(layers, total)``. Returns notes. Raises `LoadError`."""
        return refusals.naming(self.path, lambda: self._load(progress))

    def warm_up(self) -> Generator | Follower:
        """Compute two short prompts side by side, so that memory and kernels are at hand."""
        return self.serve(self.model, self.tokenizer)

    @property
    def model(self) -> TorchModel:
        """The loaded model."""
        if self._model is None:
            raise RuntimeError("load comes before warm_up")
        return self._model

    @property
    def tokenizer(self) -> TorchTokenizer:
        """The loaded tokenizer."""
        if self._tokenizer is None:
            raise RuntimeError("load comes before warm_up")
        return self._tokenizer

    # What a rank of a group does otherwise

    def prepare(self, _model: PreTrainedModel) -> Collection[str]:
        """Change the model before it has memory; see `engines.torch.loading.Prepare`."""
        return ()

    def fill(
        self, _model: PreTrainedModel, _checkpoint: loading.Checkpoint, _progress: loading.Progress
    ) -> list[str]:
        """Read what `prepare` has taken on itself. Returns notes."""
        return []

    def serve(self, model: TorchModel, tokenizer: TorchTokenizer) -> Generator | Follower:
        """What serves, warmed up."""
        batch = TorchBatch(model, model.cache, self.device, sorted(tokenizer.eos_token_ids), self.spec)
        return warmed(BatchedGenerator(batch, tokenizer, self.spec, TorchDrawing(self.device)))

    def _load(self, progress: Callable[[int, int], None]) -> list[str]:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        with loading.Checkpoint(self.path) as checkpoint:
            config = _config(self.path)
            checks.check_supported(config, self.spec)
            model = loading.load(
                config,
                checkpoint,
                dtype=DTYPES[self.spec.dtype],
                device=self.device,
                progress=progress,
                prepare=self.prepare,
            )
            notes = self.fill(model, checkpoint, progress)
        self._model = TorchModel(model, self.spec)
        self._tokenizer = TorchTokenizer(self.path, _eos(self.path, config))
        return notes


def _config(path: Path) -> PreTrainedConfig:
    """config.json as transformers reads it. Raises `LoadError` where that is not what it says."""
    reader: Any = AutoConfig
    config: PreTrainedConfig = reader.from_pretrained(path)
    checks.verify(json.loads((path / "config.json").read_text()), config)
    return config


def _eos(path: Path, config: PreTrainedConfig) -> Any:
    """The ids that end an answer: generation_config.json's where it names some, else config.json's."""
    said: Any = config
    try:
        generation: Any = json.loads((path / "generation_config.json").read_text())
    except FileNotFoundError:
        generation = {}
    return generation.get("eos_token_id", said.eos_token_id)
