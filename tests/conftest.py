from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from engines import catalogue
from engines.fetch import fetch
from engines.model_errors import FetchError

SMOLLM2 = "SmolLM2-135M-Instruct"

# A run in a shell's background ignores Ctrl-C, and so would the commands that it starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A commit passes or fails, the same each time, however busy the machine. Hypothesis explores with
# `pytest --hypothesis-profile explore`: new examples each time, and those that failed before first.
settings.register_profile("explore", deadline=None)
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.load_profile("repeat")


def pytest_collection_finish() -> None:
    """Let garbage collection pass over what is loaded: with torch it took a third of the simulator's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """The real model: the directory that CUEBOOK_SMOLLM2 names, else fetched once into pytest's cache."""
    given = os.environ.get("CUEBOOK_SMOLLM2", "")
    if given:
        return Path(given)
    assert request.config.cache is not None
    root = request.config.cache.mkdir("models")
    card, source = catalogue.entries()[SMOLLM2]
    if (root / SMOLLM2).is_dir():
        return root / SMOLLM2
    try:
        return fetch(source, card, root, lambda done, total: None, lambda: False, offline=False)
    except FetchError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real model can't be had here: {error}")
