"""What is said of a runner's end, from its exit code and its last words."""

import subprocess
import sys

import pytest

from engines.processes import STDERR_LINE, STDERR_LINES, StderrTail, diagnose

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "mlx_lm.errors.ShapeError: (3, 4) is no shape",
]


@pytest.mark.parametrize(
    ("exit_code", "stderr", "code", "words"),
    [
        (-9, [], "runner_killed", "kill -9"),
        (-11, ["Fatal Python error: Segmentation fault"], "runner_killed", "SIGSEGV"),
        (-63, [], "runner_killed", "signal 63"),
        (-6, ["libc++abi: ... kIOGPUCommandBufferCallbackErrorTimeout"], "gpu_timeout", "prefill chunk"),
        (-6, ["terminate called after throwing an instance of 'std::bad_alloc'"], "out_of_memory", "memory"),
        (1, ["RuntimeError: DefaultCPUAllocator: can't allocate memory: ..."], "out_of_memory", "memory"),
        (1, ["RuntimeError: [ring] Couldn't connect (error: 60)"], "ring_broken", "another rank"),
        (1, ["OSError: interrupted during a read of a socket"], "runner_crashed", "interrupted during"),
        (1, [*TRACEBACK, "a last word"], "runner_crashed", "ShapeError: (3, 4)"),
        (7, ["nothing that helps"], "runner_exited", "exit code 7"),
    ],
)
def test_the_end_of_a_runner_is_named(exit_code: int, stderr: list[str], code: str, words: str) -> None:
    cause, diagnostics = diagnose(exit_code, stderr)
    assert cause.code == code
    assert words in cause.message
    assert diagnostics.stderr_tail == stderr
    assert bool(diagnostics.signal) == (exit_code < 0)
    assert diagnostics.exit_code == (exit_code if exit_code >= 0 else None)


def test_the_tail_is_bounded_and_never_blocks_the_runner() -> None:
    code = "import sys\nfor n in range(20000): print('line', n, 'x' * 50, file=sys.stderr)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.stderr
        tail = StderrTail(process.stderr, "noisy")
        assert process.wait(20) == 0
        lines = tail.lines()
    assert len(lines) == STDERR_LINES
    assert lines[-1].startswith("line 19999 ")


def test_a_line_that_does_not_end_is_cut() -> None:
    code = """
import sys
print("before", file=sys.stderr)
for n in range(1000): print("x" * 999, end="\\r", file=sys.stderr)
print("its end\\nafter", end="", file=sys.stderr)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        assert process.stderr
        tail = StderrTail(process.stderr, "endless")
        assert process.wait(20) == 0
        lines = tail.lines()
    assert lines == ["before", "x" * 999, "after"]
    assert len(lines[1]) <= STDERR_LINE
