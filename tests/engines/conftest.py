from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.runner_client import RunnerClient
from support.tiny import tiny_model_dir

if TYPE_CHECKING:
    from support.expert_ranks import ExpertRanks


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("endless"), endless=True)


@pytest.fixture(scope="module")
def endless_runner(endless: Path) -> Iterator[RunnerClient]:
    """One ready runner for the tests of a module that leave it as they found it."""
    with RunnerClient() as runner:
        yield runner.ready(endless, context=4096)


@pytest.fixture(scope="session")
def expert_ranks() -> Iterator["ExpertRanks"]:
    """Up to three ranks that share the experts of a model. Needs torch."""
    from support.expert_ranks import ExpertRanks

    with ExpertRanks() as ranks:
        yield ranks


@pytest.fixture(scope="session")
def tiny_moes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny mixture of experts of each family. Needs torch."""
    from support.tiny_moe import FAMILIES, tiny_moe_dir

    root = tmp_path_factory.mktemp("moe")
    return {family: tiny_moe_dir(root / family, family) for family in FAMILIES}
