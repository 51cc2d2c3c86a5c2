"""`python -m support.sim --seeds A:B --jobs N`: run seeds, N at a time; print those that broke something."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from support.sim.run import Outcome, attempt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.sim", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="from:to, the last one not included")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on a core of its own")
    arguments = parser.parse_args()
    seeds = range(*map(int, arguments.seeds.split(":")))
    began = time.perf_counter()
    well: list[Outcome] = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(attempt, seeds, chunksize=8):
            if isinstance(outcome, str):
                print(outcome, flush=True)
            else:
                well.append(outcome)
    took = time.perf_counter() - began
    sent, answered = sum(each.sent for each in well), sum(each.answered for each in well)
    print(
        f"{len(seeds)} runs, {len(seeds) - len(well)} failed, {len(seeds) / took:.1f} a second, "
        f"{sum(each.virtual_s for each in well) / took:.0f} times real time; "
        f"{sum(each.decisions for each in well)} decisions, {sum(each.rejected for each in well)} rejected, "
        f"{sum(each.adopted for each in well)} instances adopted, "
        f"{answered / max(sent, 1):.3f} of the commands answered"
    )
    return 1 if len(well) < len(seeds) else 0


if __name__ == "__main__":
    raise SystemExit(main())
