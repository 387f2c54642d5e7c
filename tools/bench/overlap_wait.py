"""What overlap leaves of the waiting: two nodes, each behind a line of 150 ms, in a WAN in a box.

A trial with overlap 1 sets the batch, so that a step computes a good deal longer than a round's
floor: one round trip and its bytes at the line's rate. Then the same run with overlap 0, 1 and 2.
wait_share is the waiting in a step's time, of the node that waits more; with overlap 1 it is at
most 0.10. Needs no root where user namespaces are allowed.
"""

import argparse
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools/wan")]

from demo import unpack_text  # noqa: E402
from demo_cluster import Cluster, MetricsTail, RunError, programs  # noqa: E402
from wan_box import Link, WanBox, WanError  # noqa: E402

RTT_MS, RATE_MBIT = 150, 20
NODES = ("frankfurt", "virginia")
SHARE_MAX = 0.10
# Rounds left out at both ends: connections grow, and the last rounds wait for what is under way.
WARM, TAIL = 8, 4
ROUNDS = {False: 40, True: 120}
TRIAL_SEQUENCES = 8
# Compute wanted, in floors: other work on the machine must not bring it below one.
FLOORS = 2.2
SEQUENCES_MAX = 256
LIMIT_S = 240

SPEC = """\
run: "overlap-wait"
seed: 1
steps: {steps}
overlap: {overlap}
nodes {{ name: "frankfurt" }}
nodes {{ name: "virginia" }}
model {{ layers: 4 heads: 4 width: 128 context: 128 vocab: 256 }}
data {{ sequences_per_node: {sequences} heldout_permille: 50 eval_sequences: 4 }}
optimizer {{ lr: 0.002 warmup_steps: 5 clip_norm: 1.0 }}
codec {{ beta: 0.99 }}
"""


class Measured:
    """Means of the rounds of one run, of the node that waits more."""

    def __init__(self, of_nodes, summary):
        shares = [(wait / step, step, step - wait) for step, wait in of_nodes]
        self.share, self.step_ms, self.compute_ms = max(shares)
        self.up = summary["up_bytes_per_round"]
        self.down = summary["down_bytes_per_round"]
        self.floor_ms = RTT_MS + (self.up + self.down) * 8 / (RATE_MBIT * 1e3)


def measure(arguments, text, overlap, sequences, rounds):
    """One run in a box."""
    steps = WARM + rounds + TAIL
    spec = SPEC.format(steps=steps, overlap=overlap, sequences=sequences)
    links = {node: Link(rate_mbit=RATE_MBIT, rtt_ms=RTT_MS) for node in NODES}
    relay = arguments.bazel_bin / "tools/wan/relay"
    with tempfile.TemporaryDirectory(prefix="isthmus-overlap-") as folder:
        with WanBox(links, seed=1, relay=relay) as box:
            cluster = Cluster(
                programs(arguments.bazel_bin), folder, spec, {node: 1 for node in NODES}, box
            )
            tails = {node: MetricsTail(cluster.metrics_file(node, 0)) for node in NODES}
            try:
                cluster.start(text)
                deadline = time.monotonic() + LIMIT_S
                while not cluster.trainers_done():
                    cluster.check()
                    if time.monotonic() > deadline:
                        raise RunError(f"overlap {overlap} did not end within {LIMIT_S} s")
                    time.sleep(0.2)
                lines = {node: tail.new_lines() for node, tail in tails.items()}
                summaries = cluster.summaries()
            finally:
                cluster.stop()
    if len({summary["state_sha256"] for summary in summaries.values()}) != 1:
        raise RunError(f"the nodes ended with different states with overlap {overlap}")
    of_nodes = []
    for each in lines.values():
        counted = each[WARM : len(each) - TAIL]
        seconds = counted[-1]["seconds"] - counted[0]["seconds"]
        waits = [line["wait_ms"] for line in counted[1:]]
        of_nodes.append((seconds * 1e3 / len(waits), sum(waits) / len(waits)))
    return Measured(of_nodes, summaries[NODES[0]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help=f"{ROUNDS[True]} rounds that count")
    arguments = parser.parse_args()
    arguments.bazel_bin = arguments.bazel_bin.resolve()
    why_not = WanBox.why_not(arguments.bazel_bin / "tools/wan/relay")
    if why_not:
        print(f"result overlap_wait skipped={why_not.replace(' ', '_')}")
        return 0
    missed = False
    with tempfile.TemporaryDirectory(prefix="isthmus-text-") as folder:
        text = unpack_text(folder)
        trial = measure(arguments, text, 1, TRIAL_SEQUENCES, 8)
        scale = FLOORS * trial.floor_ms / trial.compute_ms
        sequences = max(TRIAL_SEQUENCES, min(SEQUENCES_MAX, round(TRIAL_SEQUENCES * scale)))
        print(
            f"{RATE_MBIT} Mbit/s and {RTT_MS} ms for each node; {trial.up} bytes up and "
            f"{trial.down} down a round, floor {trial.floor_ms:.0f} ms; {TRIAL_SEQUENCES} "
            f"sequences a node take {trial.compute_ms:.0f} ms, so {sequences}",
            flush=True,
        )
        for overlap in (0, 1, 2):
            one = measure(arguments, text, overlap, sequences, ROUNDS[arguments.full])
            # The bar is for overlap 1; below the floor nothing could hide behind so little.
            counts = overlap == 1
            hides = one.compute_ms > one.floor_ms
            met = not counts or (hides and one.share <= SHARE_MAX)
            missed = missed or not met
            print(
                f"result overlap_wait rtt_ms={RTT_MS} rate_mbit={RATE_MBIT} overlap={overlap} "
                f"wait_share={one.share:.3f} step_ms={one.step_ms:.0f} "
                f"compute_ms={one.compute_ms:.0f} floor_ms={one.floor_ms:.0f} "
                f"up_bytes={one.up} down_bytes={one.down} sequences={sequences} "
                f"met={int(met)}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RunError, WanError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
