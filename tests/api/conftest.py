from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import ENDLESS, MODEL, LocalNode, local_node
from support.tiny import tiny_model_dir


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """A node with one ready instance each of a model that ends its answers and of one that never does."""
    home: Path = tmp_path_factory.mktemp("api-node")
    tiny_model_dir(home / "models" / MODEL)
    tiny_model_dir(home / "models" / ENDLESS, endless=True)
    with local_node(home) as local:
        local.place(MODEL, context=512)
        local.place(ENDLESS, context=4096)
        yield local
