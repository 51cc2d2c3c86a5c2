"""The torch engine as the rest of Cuebook sees it. Imports no torch: runners and self-tests do."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engines import self_tests
from engines.contract import Builder, Group, GroupSpec, LoadSpec, Tested
from engines.torch import npu
from events.values import Cause

if TYPE_CHECKING:
    from engines.torch.group import TorchGroup

_PACKAGES = ("torch", "transformers")


class TorchEngine:
    """Implements `engines.contract.Engine`."""

    name = "torch"

    def installed(self) -> bool:
        """True where its packages are there, whatever they can do here."""
        return all(importlib.util.find_spec(package) is not None for package in _PACKAGES)

    def self_test(self, *, measure: bool = False) -> Tested:
        """Compute something small in a process of its own. Never raises; a crash there is a report."""
        if not self.installed():
            return self_tests.failed(self.name, "torch is not installed: `pip install 'cuebook[torch]'`.")
        environment = self.environment(os.cpu_count() or 1)
        return self_tests.run(self.name, "engines.torch.selftest", environment, measure=measure)

    def environment(self, threads: int) -> dict[str, str]:
        """Variables for a runner: threads, no network, and no device backend but those we load ourselves."""
        return {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
            **npu.environment(),
        }

    def connect(self, spec: GroupSpec, lost: Callable[[Cause], None]) -> TorchGroup:
        """Meet the other ranks; from here on torch is in the process. Raises `LoadError`."""
        npu.settle(spec.device_id)
        from engines.torch.group import connect

        return connect(spec, lost)

    def builder(self, spec: LoadSpec, group: Group | None = None) -> Builder:
        """A builder; from here on torch is in the process. ``group`` is what `connect` returned."""
        npu.settle(spec.device_id)
        if group is not None:
            from engines.torch.expert_builder import ExpertBuilder

            return ExpertBuilder(spec, cast("TorchGroup", group))
        from engines.torch.builder import TorchBuilder

        return TorchBuilder(spec)
