import os
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


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model, where it has been imported; `CUEBOOK_SMOLLM2` names its directory."""
    path = os.environ.get("CUEBOOK_SMOLLM2", "")
    if not path:
        pytest.skip("CUEBOOK_SMOLLM2 does not name a directory with SmolLM2-135M-Instruct")
    return Path(path)
