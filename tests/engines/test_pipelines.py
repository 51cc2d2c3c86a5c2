"""The models that placement splits by layers: of each mlx-lm or Cuebook has a pipeline."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from support.cards import SMALL

from engines.pipelines import PLAIN, THEIR_OWN, pipeline_refusal

pytest.importorskip("mlx_lm")


@pytest.mark.parametrize("model_type", sorted(PLAIN | THEIR_OWN))
def test_mlx_has_a_pipeline_where_the_table_says(model_type: str) -> None:
    from mlx_lm.models.pipeline import PipelineMixin
    from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage]

    model, _ = _get_classes({"model_type": model_type})
    source, module = inspect.getsource(model), inspect.getmodule(model)
    piped = [
        name
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, PipelineMixin) and f"self.model = {name}(" in source
    ]
    assert bool(piped) == (model_type in THEIR_OWN)


def test_others_are_refused_with_what_to_do() -> None:
    card = msgspec.structs.replace(SMALL, model_type="gemma3_text")
    assert "one device, or with the tensor strategy" in (pipeline_refusal(card) or "")
    assert pipeline_refusal(SMALL) is None
