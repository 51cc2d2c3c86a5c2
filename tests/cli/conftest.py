from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.command import Cuebook
from support.served import ServedNode
from support.tiny import tiny_model_dir

MODEL, ENDLESS = "tiny", "endless"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """A node with a ready instance of a model that ends its answers and of one that never does."""
    home = tmp_path_factory.mktemp("cli-node")
    tiny_model_dir(home / "models" / MODEL)
    tiny_model_dir(home / "models" / ENDLESS, endless=True)
    with ServedNode(home, node_name="stage") as node:
        for model in (MODEL, ENDLESS):
            node.ready(node.place(model, context=2048, batch=2))
        yield node


@pytest.fixture(scope="session")
def cuebook(served: ServedNode) -> Cuebook:
    """Commands that find the served node and its files."""
    return Cuebook(served.home, served.port)
