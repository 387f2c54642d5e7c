"""What is held for others is bounded: readers who stop, contributions that are too many.

r23   A node stops reading its updates, and goes on later.
r38   The coordinator has 256 MiB (a cgroup), and its nodes send more than it may hold.
"""

import contextlib
import itertools
import json
import math
import os
import pathlib
import signal

from .case import TRIO, Case, Skipped, rss_bytes, state_of, undisturbed

MIB = 1 << 20
WATCHER_MIB_MAX = 8
P99_RATIO_MAX = 1.1
# The newest updates stay in memory, 64 MiB of them; before that it grows with every round.
RECENT_BYTES = 64 * MIB
# Updates of a MiB, so that what the store writes at once, 32 MiB, comes by often enough to be part
# of every measurement.
GRACE_MS = 100
WIDE = "layers: 1 heads: 2 width: 128 context: 32"


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
            most = max(most, rss_bytes(self.process.pid))
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


CAP_MIB = 256
CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")
# 5 MB a contribution: three nodes with three rounds under way send 48 MB.
HEAVY = "layers: 1 heads: 2 width: 320 context: 32"
MEMORY_MIB = 4
# With the memory, what three contributions need for the round that commits next and a bit.
SPOOL_MIB = 16


@contextlib.contextmanager
def _memory_cap(mib):
    """A cgroup (v1) with so much memory; gives its folder."""
    group = CGROUPS / f"isthmus-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(mib * MIB))
    except OSError as error:
        raise Skipped(
            f"cannot make a memory cgroup in {CGROUPS} (root's right): {error}"
        ) from error
    try:
        yield group
    finally:
        group.rmdir()


def _kills_in(group):
    """How often a process of a cgroup was killed for want of memory."""
    words = (group / "memory.oom_control").read_text().split()
    return int(words[words.index("oom_kill") + 1])


def r38(bench):
    """A cap on the coordinator's memory."""
    with _memory_cap(CAP_MIB) as group:
        _r38(bench, group)


def _r38(bench, group):
    rounds = 12 if bench.short else 60
    settings = {"ranks": TRIO, "rounds": rounds, "preset": "full", "model": HEAVY}
    settings["more"] = "overlap: 2"
    expected = state_of(undisturbed(bench, **settings))
    with Case(bench, **settings) as case:
        case.cluster.flags["coordinator"] = [
            f"--contribution_memory_mib={MEMORY_MIB}",
            f"--spool_mib={SPOOL_MIB}",
        ]
        enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        case.cluster.under["coordinator"] = ["sh", "-c", enter, "sh"]
        case.start()
        coordinator = case.processes["coordinator"]
        most, budgets = 0, {}
        while coordinator.poll() is None and not case.run.finished():
            case.run.look()
            show = case.show()
            most = max(most, rss_bytes(coordinator.pid, "RssAnon"))
            budgets = show.get("budgets", budgets)
        killed = _kills_in(group)
        summaries = case.finish()
    equal = state_of(summaries) == expected and expected != ""
    pushed_back = int(budgets.get("pushedBackPieces", 0))
    bench.result(
        "r38",
        equal and killed == 0,
        most / MIB,
        CAP_MIB,
        "MiB",
        pushed_back > 0 and int(budgets.get("spooledPieces", 0)) > 0,
        rounds=rounds,
        contribution_bytes=int(show["contributionBytes"]),
        spooled_pieces=int(budgets.get("spooledPieces", 0)),
        pushed_back_pieces=pushed_back,
        killed=killed,
        params_equal=equal,
    )


CASES = {"r23": r23, "r38": r38}
