"""`python -m support.sim --seeds A:B`: run seeds, print those that broke something."""

from __future__ import annotations

import argparse
import time

from support.sim.run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.sim", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="from:to, the last one not included")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    began, virtual, decisions, rejected, failed = time.process_time(), 0.0, 0, 0, 0
    sent = answered = adopted = 0
    for seed in range(first, last):
        try:
            outcome = simulate(seed)
        except Exception as broken:
            failed += 1
            print(f"seed {seed}: {type(broken).__name__}: {broken}", flush=True)
            continue
        virtual += outcome.virtual_s
        decisions += outcome.decisions
        rejected += outcome.rejected
        adopted += outcome.adopted
        sent, answered = sent + outcome.sent, answered + outcome.answered
    took = time.process_time() - began
    print(
        f"{last - first} runs, {failed} failed, {(last - first) / took:.1f} a CPU second, "
        f"{virtual / took:.0f} times real time; {decisions} decisions, {rejected} rejected, "
        f"{adopted} instances adopted, {answered / max(sent, 1):.3f} of the commands answered"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
