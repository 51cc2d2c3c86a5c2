"""How long a runner may be silent while experts move."""

from __future__ import annotations

from actors.runner_watch import Watch

PREFILL_S, DECODE_S, MOVE_S = 60.0, 5.0, 35.0


def serving(*tasks: str) -> Watch:
    watch = Watch()
    watch.begin("serve", 0.0, now=100.0)
    for task in tasks:
        watch.dispatched(task, now=100.0)
    return watch


def limit(watch: Watch) -> float:
    return watch.serving_limit(PREFILL_S, DECODE_S)


def test_batches_may_wait_as_long_as_experts_may_take() -> None:
    watch = serving("task-1")
    watch._unseen.clear()
    assert (limit(watch), watch.name()) == (DECODE_S, "decode")
    watch.moves(MOVE_S, now=104.0)
    assert (limit(watch), watch.name(), watch.progress_at) == (MOVE_S, "moving experts", 104.0)
    watch.moved(now=120.0)
    assert (limit(watch), watch.name(), watch.progress_at) == (DECODE_S, "decode", 120.0)


def test_a_longer_limit_stays() -> None:
    watch = serving("task-1")
    watch.moves(MOVE_S, now=104.0)
    assert limit(watch) == PREFILL_S


def test_a_rank_that_hangs_while_nobody_asks_for_anything_is_noticed() -> None:
    watch = serving()
    assert limit(watch) == 0.0
    watch.moves(MOVE_S, now=104.0)
    assert limit(watch) == MOVE_S
    watch.moved(now=105.0)
    assert limit(watch) == 0.0
