from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runner_client import RunnerClient
from support.tiny import tiny_model_dir


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
