from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engines.contract import LoadError  # noqa: E402
from engines.torch.experts import formats  # noqa: E402
from engines.torch.experts.grouping import pairs  # noqa: E402
from engines.torch.experts.weights import Scratch  # noqa: E402

SCRATCH = Scratch(torch.device("cpu"))
SLOTS, HIDDEN, INNER = 4, 32, 48
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def filled(name: str, dtype: Any, seed: int = 0) -> tuple[Any, list[list[Any]]]:
    draw = torch.Generator().manual_seed(seed)
    weights = formats.create(name, SLOTS, HIDDEN, INNER, dtype, SCRATCH)
    experts = [
        [torch.randn(shape, generator=draw) for shape in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))]
        for _ in range(SLOTS)
    ]
    for slot, expert in enumerate(experts):
        weights.fill(slot, *expert)
    return weights, experts


def product(weights: Any, rows: Any, slots: list[int]) -> tuple[Any, Any]:
    """Both products for rows with ascending slots; beyond the experts' rows come some of no slot."""
    here = pairs(torch.tensor(slots).unsqueeze(-1), 0, torch.arange(SLOTS))
    up = weights.up(rows, here.groups)
    return up, weights.down(up[:, :INNER].contiguous(), here.groups)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["plain", "int8"])
@pytest.mark.parametrize("slots", [[1, 3, -1], [0, 0, 0, 2, 2, 3, -1, -1], [2]])
def test_the_kernel_multiplies_each_row_by_its_own_expert(name: str, dtype: Any, slots: list[int]) -> None:
    weights, experts = filled(name, dtype)
    rows = torch.randn(len(slots), HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    up, down = product(weights, rows, slots)
    assert up.dtype == down.dtype == dtype
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        gate, other, last = (held(matrix, name, dtype) for matrix in experts[slot])
        wanted = rows[row].float() @ torch.cat([gate, other]).T
        size = 0.1 if dtype == torch.bfloat16 else 0.02
        torch.testing.assert_close(up[row].float(), wanted, rtol=0, atol=size)
        wanted = up[row, :INNER].float() @ last.T
        torch.testing.assert_close(down[row].float(), wanted, rtol=0.02, atol=10 * size)


def held(matrix: Any, name: str, dtype: Any) -> Any:
    if name == "plain":
        return matrix.to(dtype).float()
    whole, scale = formats.quantised(matrix)
    return whole.float() * scale[:, None]


@pytest.mark.parametrize("name", ["plain", "int8"])
def test_views_are_the_memory_that_the_kernel_reads(name: str) -> None:
    """Invariant 5: an expert that was copied through its views computes what it did before."""
    weights, _ = filled(name, torch.float32)
    rows = torch.randn(1, HIDDEN)
    before = [tensor.clone() for tensor in product(weights, rows, [1])]
    staging, _ = filled(name, torch.float32)
    for there, here in ((staging.views(0), weights.views(1)), (weights.views(3), staging.views(0))):
        assert there.keys() == here.keys()
        for key, view in there.items():
            assert view.is_contiguous()
            view.copy_(here[key])
    for one, other in zip(before, product(weights, rows, [3]), strict=True):
        assert torch.equal(one, other)
    addresses = {view.data_ptr() for view in weights.views(1).values()}
    for key, tensor in weights.tensors.items():
        assert tensor.data_ptr() + tensor[0].nbytes in addresses, key


def test_a_view_that_lacks_its_scale_does_not_make_an_expert() -> None:
    """The check above would find a scale that was left behind."""
    weights, _ = filled("int8", torch.float32)
    rows = torch.randn(1, HIDDEN)
    before, _ = product(weights, rows, [1])
    weights.tensors["gate_up"][3].copy_(weights.tensors["gate_up"][1])
    assert not torch.equal(product(weights, rows, [3])[0], before)


def test_equal_experts_have_equal_bytes_in_int8() -> None:
    one, other = filled("int8", torch.float32)[0], filled("int8", torch.float32)[0]
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    whole, scale = formats.quantised(torch.tensor([[0.0, 0.0], [-254.0, 127.0]]))
    assert whole.tolist() == [[0, 0], [-127, 64]]
    assert scale[1] == 2


def test_formats_that_do_not_fit_are_refused() -> None:
    def code(error: pytest.ExceptionInfo[LoadError]) -> str:
        return error.value.cause.code

    with pytest.raises(LoadError, match="'int4'") as error:
        formats.create("int4", SLOTS, HIDDEN, INNER, torch.float32, SCRATCH)
    assert code(error) == "expert_format_unsupported"
    with pytest.raises(LoadError, match="multiple of 8"):
        formats.create("plain", SLOTS, 36, INNER, torch.bfloat16, SCRATCH)
    with pytest.raises(LoadError, match="floats"):
        formats.create("plain", SLOTS, HIDDEN, INNER, torch.int8, SCRATCH)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t.pop("down_scale"), "expert_scale_missing"),
        (lambda t: t.pop("down"), "expert_scale_missing"),
        (lambda t: t.update(down=t["down"].transpose(1, 2)), "expert_view_not_contiguous"),
        (lambda t: t.update(down_scale=t["down_scale"][1:]), "expert_view_not_contiguous"),
    ],
)
def test_tensors_that_can_not_move_slot_by_slot_are_refused(change: Any, code: str) -> None:
    tensors = dict(filled("int8", torch.float32)[0].tensors)
    change(tensors)
    with pytest.raises(LoadError) as error:
        formats.Int8(tensors, SCRATCH)
    assert error.value.cause.code == code
