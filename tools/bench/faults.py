"""Faults of every kind against real processes, and what must hold afterwards.

    ./dev bench faults                     every case
    ./dev bench faults --case r8 --case c6 some; --seed N repeats their random moments
    ./dev bench faults --short             the short forms, which run in ./dev test, too

The names are those of the goals: R1 to R46 and C1 to C15 are rows of docs/faults.md, which says
what each of them provokes. A case prints

    result faults case=r8 held=1 figure=0.31 figure_max=1 unit=s met=1

held: what must hold, did. figure: the worst that was measured, at most figure_max.
"""

import argparse
import pathlib
import random
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/wan"))

from demo_cluster import RunError  # noqa: E402
from fault_cases import (  # noqa: E402
    address_cases,
    budget_cases,
    chaos_cases,
    disk_cases,
    health_cases,
    limit_cases,
    network_cases,
    process_cases,
    run_cases,
    state_cases,
    store_cases,
    time_cases,
    wire_cases,
)
from fault_cases.case import Bench, Skipped  # noqa: E402

CASES = {}
for family in (
    store_cases,
    wire_cases,
    run_cases,
    state_cases,
    chaos_cases,
    time_cases,
    process_cases,
    limit_cases,
    health_cases,
    disk_cases,
    budget_cases,
    network_cases,
    address_cases,
):
    CASES.update(family.CASES)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument(
        "--full", action="store_true", help="r1 at every write, r2 at every operation"
    )
    parser.add_argument("--short", action="store_true", help="less of each, for tests")
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    bench = Bench(arguments.bazel_bin.resolve(), seed, arguments.short, arguments.full)
    failed = []
    for name in arguments.case or CASES:
        started = time.monotonic()
        try:
            CASES[name](bench)
        except Skipped as why:
            bench.say(f"{name}: skipped: {why}")
            word = re.sub(r"[^a-z0-9]+", "_", str(why).lower().partition(":")[0]).strip("_")
            bench.say(f"result faults case={name} skipped={word}")
        except RunError as error:
            # The others are worth knowing, too.
            print(f"error: {name}: {error}", file=sys.stderr)
            bench.say(f"result faults case={name} held=0 met=0")
            failed.append(name)
        bench.say(f"{name}: {time.monotonic() - started:.0f} s")
    return 1 if failed or (arguments.short and bench.missed) else 0


if __name__ == "__main__":
    sys.exit(main())
