"""Nodes that join while rounds are committed, and one that was away for long.

    ./dev bench joins

joins      200 nodes come one after the other at random moments, with a start state that is far
           behind what is kept: each starts from a snapshot. What it holds when it joins, and at its
           first contribution, is what a node that was there all along held after that very round,
           and after no other.
node_out   Quorum 1 of 2, one node without its agent for 10,000 rounds: the other one goes on,
           compressing as before; then the node is back by snapshot within 10 s, and equal.

Trainers, agents and coordinator run in one process, over real connections.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = "tests/worker/joins_test"
JOINS, ROUNDS_AWAY = 200, 10_000
BACK_S_MAX = 10.0
PATTERN = re.compile(r"^result (joins|node_out) (.*) met=([01])$", re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="isthmus-joins-") as folder:
        environment = dict(
            os.environ,
            ISTHMUS_JOINS=str(JOINS),
            ISTHMUS_ROUNDS_AWAY=str(ROUNDS_AWAY),
            TEST_TMPDIR=folder,
        )
        print(f"{JOINS} joins, then {ROUNDS_AWAY} rounds away; some minutes …", flush=True)
        done = subprocess.run(
            [options.bazel_bin / PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    found = PATTERN.findall(done.stdout)
    for name, values, met in found:
        seconds = re.search(r"seconds=([0-9.]+)", values)
        good = met == "1" and (seconds is None or float(seconds[1]) <= BACK_S_MAX)
        failed = failed or not good
        print(f"result {name} {values} met={int(good)}", flush=True)
    if len(found) == 2 and done.returncode == 0:
        return int(failed)
    print("\n".join((done.stdout + done.stderr).splitlines()[-30:]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
