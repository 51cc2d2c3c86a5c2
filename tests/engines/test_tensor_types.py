"""The models that tensor ranks are chosen for unasked: each is one that mlx-lm can split."""

from __future__ import annotations

import pytest

from engines.divisibility import TENSOR_TYPES

pytest.importorskip("mlx_lm")


@pytest.mark.parametrize("model_type", sorted(TENSOR_TYPES))
def test_mlx_can_split_it(model_type: str) -> None:
    from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage]

    model, _ = _get_classes({"model_type": model_type})
    assert hasattr(model, "shard")
