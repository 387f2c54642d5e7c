"""A long quiet run with random faults: memory and descriptors of what lives on stay as they are.

    ./dev bench soak [--minutes N] [--seed N]

Three nodes of one rank take tiny rounds over links of a few milliseconds. At random moments node
c's agent or trainer is killed (and started again), a process of a or b or the coordinator is
stopped for a while, at times past its lease, and a link is cut, or dead for some seconds. The
coordinator and what a and b are made of live through all of it, and are measured:

    result soak minutes=30 process=coordinator slope_mib_per_h=0.2 … fds=41 … met=1

slope_mib_per_h: of the resident memory after a third of the time, when what is kept of the run (the
last 5000 rounds) is all there, the median of the slopes between any two measurements (Theil and
Sen). fds: open descriptors, the median of the last quarter, which may be FDS_MORE_MAX above that of
the first. The last line says how far the run came, and that no process that was not killed has
ended and the state folder is sound.
"""

import argparse
import pathlib
import random
import signal
import statistics
import sys
import time

import matplotlib
import matplotlib.pyplot as pyplot

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from chaos import kill  # noqa: E402
from fault_cases.case import TRIO, Bench, Case, descriptors, rss_bytes  # noqa: E402

matplotlib.use("Agg")

MEASURED = ("coordinator", "agent-a", "trainer-a-0", "agent-b", "trainer-b-0")
SETTINGS = {
    "rounds": 10_000_000,  # it does not end by itself
    "quorum": 1,
    "grace_ms": 200,
    "deadline_ms": 2000,
    "lease_ms": 3000,
    "heartbeat_ms": 500,
}
LINK_S = 0.01
WARM_UP = 1 / 3
KEEP_ROUNDS = 5000
SAMPLE_S, FAULT_S = 5, (2, 10)
SLOPE_MAX_MIB_PER_H = 1
FDS_MORE_MAX = 2
MIB = 1 << 20


def slope(points):
    """Of (x, y), the median of the slopes between any two."""
    return statistics.median(
        (y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :]
    )


class Faults:
    """What happens, at moments and for durations that the seed gives."""

    def __init__(self, case, links, seed):
        self._case, self._links, self._draw = case, links, random.Random(seed)
        self._at = time.monotonic() + self._draw.uniform(*FAULT_S)
        self._ends = []  # (when, what ends a fault)
        self.counts = dict.fromkeys(("kill", "stop", "cut", "dead"), 0)

    def look(self):
        """Does what is due."""
        now = time.monotonic()
        for end in [end for end in self._ends if end[0] <= now]:
            self._ends.remove(end)
            end[1]()
        if now < self._at:
            return
        self._at = now + self._draw.uniform(*FAULT_S)
        kind = self._draw.choice(sorted(self.counts))
        self.counts[kind] += 1
        getattr(self, f"_{kind}")()

    def end(self):
        """Ends what is under way."""
        for _, end in self._ends:
            end()
        self._ends.clear()

    def _kill(self):
        kill(self._case.processes[self._draw.choice(("agent-c", "trainer-c-0"))])

    def _stop(self):
        process = self._case.processes[self._draw.choice(MEASURED)]
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + self._draw.uniform(0.2, 5)
        self._ends.append((until, lambda: process.send_signal(signal.SIGCONT)))

    def _cut(self):
        self._links[self._draw.choice(sorted(self._links))].cut()

    def _dead(self):
        link = self._links[self._draw.choice(sorted(self._links))]
        link.dead = True
        until = time.monotonic() + self._draw.uniform(0.5, 8)
        self._ends.append((until, lambda: setattr(link, "dead", False)))


def soak(bench, minutes, out):
    """The whole of it; whether all held."""
    samples = {name: [] for name in MEASURED}  # (hours, MiB, descriptors, MiB that is no file's)
    with Case(bench, TRIO, **SETTINGS) as case:
        case.cluster.flags["coordinator"] = [f"--keep_rounds={KEEP_ROUNDS}"]
        links = {node: case.use_link(node, delay_s=LINK_S) for node in TRIO}
        case.deadline = time.monotonic() + (minutes + 5) * 60
        case.start(10)
        first = {name: case.processes[name].pid for name in MEASURED}
        faults = Faults(case, links, bench.seed)
        began = said = time.monotonic()
        sample_at = began
        while time.monotonic() < began + minutes * 60:
            faults.look()
            case.run.look()
            now = time.monotonic()
            if now >= sample_at:
                sample_at += SAMPLE_S
                for name, pid in first.items():
                    samples[name].append(
                        (
                            (now - began) / 3600,
                            rss_bytes(pid) / MIB,
                            descriptors(pid),
                            rss_bytes(pid, "RssAnon") / MIB,
                        )
                    )
            if now >= said + 60:
                said = now
                mib = "  ".join(f"{name} {taken[-1][1]:.1f}" for name, taken in samples.items())
                bench.say(f"minute {(now - began) / 60:3.0f}  step {case.run.step:7d}  MiB: {mib}")
            time.sleep(0.05)
        faults.end()
        step = case.run.step
        case.step(step + 10)  # it still goes on
        alive = all(case.processes[name].pid == pid for name, pid in first.items())
        case.cluster.stop()
        sound, said = case.check_store()
    if not sound:
        bench.say(said)
    keep(samples, out)
    return judge(samples, minutes, bench.seed) & outcome(alive and sound, step, faults, bench.seed)


def keep(samples, out):
    """All samples as a table, and a plot of them: memory above what it was when it was warm."""
    with open(out / "soak.csv", "w", encoding="utf-8") as table:
        table.write("process,hours,rss_mib,fds,anonymous_mib\n")
        for name, taken in samples.items():
            table.writelines(f"{name}," + ",".join(f"{x:.5g}" for x in one) + "\n" for one in taken)
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for name, taken in samples.items():
        warm = taken[int(len(taken) * WARM_UP)][1]
        axes.plot([one[0] * 60 for one in taken], [one[1] - warm for one in taken], label=name)
    axes.set_ylim(-20, 20)
    axes.set_xlabel("minutes")
    axes.set_ylabel("MiB resident, above those after the warm-up")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out / "soak.png", dpi=120)


def judge(samples, minutes, seed):
    """A line for each process; whether all held."""
    held = True
    for name, taken in samples.items():
        warm = [one for one in taken if one[0] >= minutes / 60 * WARM_UP]
        quarter = max(1, len(warm) // 4)
        grows = slope([(hour, mib) for hour, mib, *_ in warm])
        before = statistics.median(fds for _, _, fds, _ in warm[:quarter])
        fds = statistics.median(fds for _, _, fds, _ in warm[-quarter:])
        met = grows <= SLOPE_MAX_MIB_PER_H and fds <= before + FDS_MORE_MAX
        held = held and met
        print(
            f"result soak minutes={minutes:g} process={name} slope_mib_per_h={grows:.3f}"
            f" slope_max={SLOPE_MAX_MIB_PER_H} rss_mib={warm[-1][1]:.1f} fds={fds:g}"
            f" fds_before={before:g} seed={seed} met={int(met)}",
            flush=True,
        )
    return held


def outcome(good, step, faults, seed):
    """The last line."""
    counts = " ".join(f"{kind}={count}" for kind, count in faults.counts.items())
    print(
        f"result soak_outcome rounds={step} {counts} alive_and_sound={int(good)} seed={seed}"
        f" met={int(good)}",
        flush=True,
    )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="three hours")
    parser.add_argument("--minutes", type=float, default=None, help="default 30")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    minutes = options.minutes or (180 if options.full else 30)
    bench = Bench(options.bazel_bin.resolve(), seed, short=False)
    bench.say(f"seed {seed}: --seed {seed} repeats the faults")
    return 0 if soak(bench, minutes, options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
