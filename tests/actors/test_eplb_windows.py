from __future__ import annotations

import math

import numpy as np
import pytest

from actors.eplb.windows import Counted, Expected, read
from actors.refusal import Rejected

MAP = np.array([[0, 1, 2, 0], [2, 1, 0, 2]], np.int32)
EXPECTED = Expected(MAP, experts=3, ranks=2, epoch=5, after=7)
COUNTS = [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_slots_are_credited_to_the_experts_that_the_map_has_there() -> None:
    window = read(Counted(8, 5, COUNTS), EXPECTED)
    assert window.experts.tolist() == [[5, 2, 3], [7, 6, 13]]
    assert window.ranks.tolist() == [[3, 7], [11, 15]]


@pytest.mark.parametrize(
    ("counted", "code", "says"),
    [
        (Counted(8, 5, [[1, 2, None, 4], [5, 6, 7, 8]]), "window_not_a_number", "slot 2 of layer 0"),
        (Counted(8, 5, [[1, 2, 3, 4], [5, math.inf, 7, 8]]), "window_not_a_number", "slot 1 of layer 1"),
        (Counted(8, 5, [[1, 2, 3, 4], [5, 6, 7, -8]]), "window_negative", "-8 rows in slot 3 of layer 1"),
        (Counted(8, 5, [[0, 0, 0, 0], [0, 0, 0, 0]]), "window_empty", "no rows at all"),
        (Counted(8, 5, [[1, 2, 3], [5, 6, 7]]), "window_shape", "2 layers of [3] slots, not 2 of 4"),
        (Counted(8, 5, [[1, 2, 3, 4], [5, 6, 7]]), "window_shape", "2 layers of [3, 4] slots"),
        (Counted(8, 5, [[1, 2, 3, 4]]), "window_shape", "1 layers"),
        (Counted(8, 5, []), "window_shape", "0 layers"),
        (Counted(8, 4, COUNTS), "window_of_another_epoch", "epoch 4"),
        (Counted(8, 6, COUNTS), "window_of_another_epoch", "epoch 6"),
        (Counted(7, 5, COUNTS), "window_repeated", "after window 7"),
    ],
)
def test_what_is_no_load_is_refused_with_a_cause(counted: Counted, code: str, says: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(counted, EXPECTED)
    assert refused.value.cause.code == code
    assert says in refused.value.cause.message
    assert f"window {counted.number}" in refused.value.cause.message
