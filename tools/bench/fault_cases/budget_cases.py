"""What is held for others is bounded: readers who stop, contributions that are too many.

r23   A node stops reading its updates, and goes on later.
"""

import itertools
import json
import math
import signal

from .case import Case

TRIO = {"a": 1, "b": 1, "c": 1}
MIB = 1 << 20
WATCHER_MIB_MAX = 8
P99_RATIO_MAX = 1.1
# The newest updates stay in memory, 64 MiB of them; before that it grows with every round.
RECENT_BYTES = 64 * MIB
# Updates of a MiB, so that what the store writes at once, 32 MiB, comes by often enough to be part
# of every measurement.
GRACE_MS = 100
WIDE = "layers: 1 heads: 2 width: 128 context: 32"


def rss_bytes(process):
    """Resident memory of a process."""
    with open(f"/proc/{process.pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def _p99(values):
    return sorted(values)[max(0, math.ceil(0.99 * len(values)) - 1)]


class Watched:
    """Rounds of a run, with the most memory that a process had meanwhile."""

    def __init__(self, case):
        self.case = case
        self.process = case.processes["coordinator"]

    def rounds(self, count):
        """Until so many more are committed: (most bytes, seconds of each step of node a)."""
        begin, last, most = len(_steps(self.case)), self.case.committed() + count, 0
        while self.case.committed() < last:
            most = max(most, rss_bytes(self.process))
        ends = [step["seconds"] for step in _steps(self.case)[begin:]]
        return most, [after - before for before, after in itertools.pairwise(ends)]


def _steps(case):
    lines = case.cluster.metrics_file("a", 0).read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def r23(bench):
    """A reader of updates that stops."""
    count = 70 if bench.short else 300
    settings = {"rounds": 100_000, "quorum": 2, "preset": "full", "lease_ms": 120_000}
    settings |= {"model": WIDE, "grace_ms": GRACE_MS}
    with Case(bench, TRIO, checkpoint_every=10_000, **settings) as case:
        case.start(5)
        watched = Watched(case)
        size = int(case.show()["contributionBytes"])
        watched.rounds(RECENT_BYTES // size + 10)
        before, usual = watched.rounds(count)
        case.signal("agent-c", signal.SIGSTOP)
        watched.rounds(2)  # which wait for its contributions, too
        stopped, others = watched.rounds(count)
        joined = case.joined("c")
        case.signal("agent-c", signal.SIGCONT)
        back_s = case.seconds_until(lambda: case.joined("c") > joined)
        case.seconds_until(lambda: case.is_member("c"))
        dropped = int(case.show()["budgets"].get("watchesDropped", 0))
    growth = (stopped - before) / MIB
    ratio = _p99(others) / _p99(usual)
    # On a machine that does other things as well, the slowest of a few steps says nothing.
    unaffected = ratio <= P99_RATIO_MAX or bench.short
    bench.result(
        "r23",
        dropped >= 1 and unaffected,
        growth,
        WATCHER_MIB_MAX,
        "MiB_for_the_reader",
        count * size > 4 * MIB,
        rounds=count,
        update_bytes=size,
        dropped=dropped,
        p99_ratio=ratio,
        back_s=back_s,
    )


CASES = {"r23": r23}
