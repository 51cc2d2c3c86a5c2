"""NPUs that are not there: what is missing is told in a sentence, and nobody else stumbles over torch-npu."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.npu_standin.without_cann import install_torch_npu  # noqa: E402
from support.runner_client import RunnerClient  # noqa: E402

from engines.contract import LoadError  # noqa: E402
from engines.torch import capabilities, group, npu  # noqa: E402
from engines.torch.engine import TorchEngine  # noqa: E402

RELEASE = torch.__version__.partition("+")[0]


def test_without_the_package_npus_are_refused_with_what_to_install() -> None:
    assert not npu.installed()
    with pytest.raises(LoadError, match=r"pip install 'cuebook\[npu\]'"):
        npu.prepare(0)


def test_another_release_of_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install_torch_npu(tmp_path, "2.1.0.post3"))
    cause = npu.fault()
    assert cause is not None
    assert cause.code == "torch_npu_mismatch"
    assert cause.message.endswith(f"but this torch is {RELEASE}: `pip install torch==2.1.0`.")


@pytest.mark.parametrize("suffix", ["", ".post1", "rc1", ".dev20250724"])
def test_missing_cann_is_named_by_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.syspath_prepend(install_torch_npu(tmp_path, RELEASE + suffix))
    cause = npu.fault()
    assert cause is not None
    assert cause.code == "cann_missing"
    assert all(library in cause.message for library in npu.LIBRARIES)
    assert "source set_env.sh" in cause.message


def test_processes_start_without_the_package_and_with_hccl_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert npu.environment() == {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    monkeypatch.syspath_prepend(install_torch_npu(tmp_path, RELEASE))
    assert npu.environment()["HCCL_EXEC_TIMEOUT"] == str(int(group.COLLECTIVE_S))
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "90")
    assert npu.environment()["HCCL_EXEC_TIMEOUT"] == "90"


def test_a_package_without_cann_leaves_the_cpu_in_use(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain `import torch` and `import transformers` fail beside such a package."""
    monkeypatch.setenv("PYTHONPATH", str(install_torch_npu(tmp_path, RELEASE)))
    report = TorchEngine().self_test().report
    assert (report.ok, report.device_ids) == (True, ["cpu:0"])
    assert "CANN, which it needs, is not in reach: libascendcl.so, libhccl.so" in report.options["npu"]
    with RunnerClient(engine_name="torch") as runner:
        runner.ready(tiny).chat("task", "stand by")
        assert runner.outcome("task").tokens


def test_an_operator_that_a_device_lacks_or_has_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capabilities.fault(torch.device("cpu")) == ""
    assert "meta can't compute products of matrices" in capabilities.fault(torch.device("meta"))
    answers = iter([torch.zeros(3), torch.tensor([0.0, 0.5, 0.0])])
    monkeypatch.setattr(capabilities, "_WORKS", {"sums": lambda _: next(answers)})
    assert capabilities.fault(torch.device("cpu")) == "cpu computes sums wrongly: it is off by 0.5."
