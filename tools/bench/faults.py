"""Processes of a run are killed and started again; what must hold afterwards?

    ./dev bench faults                     every case
    ./dev bench faults --case chaos        one of them; --seed N repeats its random moments

chaos   kill -9 of coordinator, agents and ranks at random moments in deterministic mode. The final
        state must be that of the same run undisturbed, bit for bit.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from chaos import SupervisedRun, kill_at_random, supports  # noqa: E402
from demo_cluster import Cluster, RunError  # noqa: E402

ROUNDS = 200
KILLS_OF_A_KIND = 20
KILLS_MIN, KILLS_OF_A_KIND_MIN = 60, 15
CHECKPOINT_EVERY = 10
LIMIT_S = 1200
WORDS = "whatever is killed is started again and goes on from where the run stands".split()

SPEC = """\
run: "chaos"
seed: 7
steps: {rounds}
deterministic: true
nodes {{ name: "a" }}
nodes {{ name: "b" }}
model {{ layers: 1 heads: 2 width: 64 context: 32 vocab: 256 }}
data {{ sequences_per_node: 4 eval_sequences: 8 }}
optimizer {{ lr: 0.004 warmup_steps: 2 clip_norm: 1.0 }}
timing {{ lease_ms: 3000 heartbeat_ms: 500 }}
"""
RANKS = {"a": 1, "b": 2}


def write_text(path):
    draw = random.Random(1)
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(40_000)))


def train(binaries, seed, kinds, kills):
    """One run; `kills` of each of `kinds`. Returns (counts of kills, its state, fresh, seconds)."""
    started = time.monotonic()
    deadline = started + LIMIT_S
    with tempfile.TemporaryDirectory(prefix="isthmus-chaos-") as name:
        folder = pathlib.Path(name)
        write_text(folder / "text")
        cluster = Cluster(binaries, folder, SPEC.format(rounds=ROUNDS), RANKS)
        flags = [f"--state_dir={folder}/store"] if "coordinator" in kinds else None
        run = SupervisedRun(cluster, folder / "text", CHECKPOINT_EVERY, flags)
        try:
            run.start()
            wanted = {kind: kills for kind in kinds if kills}
            done = kill_at_random(
                run, random.Random(seed), wanted, ROUNDS, deadline, lambda text: print(text)
            )
            summaries = run.wait_finished(deadline)
        finally:
            cluster.stop()
    states = {summary["state_sha256"] for summary in summaries.values()}
    fresh = sum(summary["fresh_residuals"] for summary in summaries.values())
    return done, states, fresh, time.monotonic() - started


def chaos(binaries, seed):
    """The case; prints its result line."""
    kinds = ["agent", "rank"]
    if supports(binaries["coordinator"], "state_dir"):
        kinds.append("coordinator")
    print(f"seed {seed}: --case chaos --seed {seed} kills the same processes", flush=True)
    _, expected, _, seconds = train(binaries, seed, kinds, 0)
    print(f"undisturbed: {seconds:.1f} s, state {sorted(expected)}", flush=True)
    done, states, fresh, seconds = train(binaries, seed, kinds, KILLS_OF_A_KIND)
    print(f"disturbed: {seconds:.1f} s, state {sorted(states)}", flush=True)
    equal = len(states) == 1 and states == expected
    enough = sum(done.values()) >= KILLS_MIN and all(
        done[kind] >= KILLS_OF_A_KIND_MIN for kind in ("coordinator", "agent", "rank")
    )
    each = " ".join(f"kills_{kind}={done[kind]}" for kind in sorted(done))
    print(
        f"result faults case=chaos kills={sum(done.values())} {each} rounds={ROUNDS} seed={seed} "
        f"fresh_residuals={fresh} seconds={seconds:.1f} params_equal={int(equal)} "
        f"met={int(equal and enough)}",
        flush=True,
    )


CASES = {"chaos": chaos}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="the same; every case is whole")
    parser.add_argument("--case", choices=sorted(CASES))
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    binaries = {
        "coordinator": arguments.bazel_bin / "server/coordinator",
        "agent": arguments.bazel_bin / "worker/agent",
        "trainer": arguments.bazel_bin / "worker/trainer",
    }
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    try:
        for name in [arguments.case] if arguments.case else CASES:
            CASES[name](binaries, seed)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
