"""The MLX engine as the rest of Cuebook sees it. Imports no MLX: that happens in runners and self-tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engines import self_tests
from engines.contract import Group, GroupSpec, LoadSpec, Tested
from engines.mlx import blas
from events.values import Cause

if TYPE_CHECKING:
    from engines.mlx.builder import MlxBuilder
    from engines.mlx.group import MlxGroup


class MlxEngine:
    """Implements `engines.contract.Engine`."""

    name = "mlx"

    def installed(self) -> bool:
        """True where its packages are there, whatever they can do here."""
        return all(importlib.util.find_spec(package) is not None for package in ("mlx", "mlx_lm"))

    def self_test(self, *, measure: bool = False) -> Tested:
        """Compute something small in a process of its own. Never raises; a crash there is a report.

        The result holds for this machine as long as MLX's version and the BLAS stay the same.
        """
        environment = self.environment(os.cpu_count() or 1)
        return self_tests.run(self.name, "engines.mlx.selftest", environment, measure=measure)

    def environment(self, threads: int) -> dict[str, str]:
        """Variables for a runner: threads, no network, and OpenBLAS preloaded on a Linux CPU."""
        chosen = {
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
        }
        found = blas.find() if blas.wanted() else None
        if found:
            before = os.environ.get("LD_PRELOAD", "")
            chosen["LD_PRELOAD"] = f"{found}:{before}" if before else str(found)
        return chosen

    def connect(self, spec: GroupSpec, lost: Callable[[Cause], None]) -> MlxGroup:
        """Meet the other ranks; from here on MLX is in the process. Raises `LoadError`."""
        _keep_torch_out()
        from engines.mlx.group import connect

        return connect(spec, lost)

    def builder(self, spec: LoadSpec, group: Group | None = None) -> MlxBuilder:
        """A builder; from here on MLX is in the process. ``group`` is what `connect` returned."""
        _keep_torch_out()
        from engines.mlx.builder import MlxBuilder

        return MlxBuilder(spec, cast("MlxGroup | None", group))


def _keep_torch_out() -> None:
    """Let transformers, whose tokenizers mlx-lm takes, not find torch: that costs a second or more."""
    modules = cast("dict[str, object]", sys.modules)
    modules.setdefault("torch", None)
