"""Processes of a run are killed and started again; what must hold afterwards?

    ./dev bench faults                     every case
    ./dev bench faults --case chaos        one of them; --seed N repeats its random moments

chaos   kill -9 of coordinator, agents and ranks at random moments in deterministic mode. The final
        state must be that of the same run undisturbed, bit for bit.
r9      An agent is killed when its contribution is with the coordinator: it counts, once.
r10     A rank is killed: its node leaves the run within 6 s and says why (5 s for a rank that may
        come back, and a look of the coordinator).
r12     An agent is stopped for longer than its lease: the node takes part again within 10 s.
r13     Everything is killed at once and started again: the next commit is there within 20 s, most
        of which is the loading of LibTorch.
agents_back   The coordinator is away for 12 s: all agents are back within 5 s of its serving.

The figure is in seconds, of wall clock.
"""

import argparse
import pathlib
import random
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from chaos import SupervisedRun, kill, kill_at_random  # noqa: E402
from demo_cluster import Cluster, RunError, programs  # noqa: E402

ROUNDS = 200
KINDS = ("coordinator", "agent", "rank")
KILLS_OF_A_KIND = 20
KILLS_MIN, KILLS_OF_A_KIND_MIN = 60, 15
CHECKPOINT_EVERY = 10
LIMIT_S = 1200
AWAY_S, BACK_MAX_S = 12, 5
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


def train(binaries, seed, kills):
    """One run with `kills` of each kind. Returns (counts of kills, its state, fresh, seconds)."""
    started = time.monotonic()
    deadline = started + LIMIT_S
    with tempfile.TemporaryDirectory(prefix="isthmus-chaos-") as name:
        folder = pathlib.Path(name)
        write_text(folder / "text")
        cluster = Cluster(binaries, folder, SPEC.format(rounds=ROUNDS), RANKS)
        run = SupervisedRun(cluster, folder / "text", CHECKPOINT_EVERY)
        try:
            run.start()
            wanted = {kind: kills for kind in KINDS if kills}
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
    print(f"seed {seed}: --case chaos --seed {seed} kills the same processes", flush=True)
    _, expected, _, seconds = train(binaries, seed, 0)
    print(f"undisturbed: {seconds:.1f} s, state {sorted(expected)}", flush=True)
    done, states, fresh, seconds = train(binaries, seed, KILLS_OF_A_KIND)
    print(f"disturbed: {seconds:.1f} s, state {sorted(states)}", flush=True)
    equal = len(states) == 1 and states == expected
    enough = sum(done.values()) >= KILLS_MIN and all(
        done[kind] >= KILLS_OF_A_KIND_MIN for kind in KINDS
    )
    each = " ".join(f"kills_{kind}={done[kind]}" for kind in sorted(done))
    print(
        f"result faults case=chaos kills={sum(done.values())} {each} rounds={ROUNDS} seed={seed} "
        f"fresh_residuals={fresh} seconds={seconds:.1f} params_equal={int(equal)} "
        f"met={int(equal and enough)}",
        flush=True,
    )


class Case:
    """A run of nodes a and b for one fault, without deterministic mode."""

    def __init__(self, binaries, folder, rounds):
        self.folder = pathlib.Path(folder)
        write_text(self.folder / "text")
        spec = SPEC.format(rounds=rounds).replace("deterministic: true\n", "")
        self.cluster = Cluster(binaries, self.folder, spec, RANKS)
        self.run = SupervisedRun(self.cluster, self.folder / "text", CHECKPOINT_EVERY)
        self.deadline = time.monotonic() + LIMIT_S

    def seconds_until(self, condition, look=lambda: None):
        """How long it takes until a condition holds."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() > self.deadline:
                raise RunError(f"waited for nothing.\n{self.cluster.log_tail('coordinator', 40)}")
            look()
            time.sleep(0.01)
        return time.monotonic() - started

    def log_has(self, text, name="coordinator"):
        """Whether a process has said something."""
        return text in self.cluster.log_file(name).read_text(errors="replace")

    def joined(self, text="node joined"):
        """How often the coordinator has admitted a node, or one whose name is in the text."""
        return self.cluster.log_file("coordinator").read_text(errors="replace").count(text)

    def signal(self, name, number):
        """Sends a signal to a process."""
        self.cluster.processes[name].send_signal(number)


def fault(name, rounds, figure_max, body):
    """A case of one fault: `body` provokes it and returns (held, seconds)."""

    def run(binaries, _seed):
        with tempfile.TemporaryDirectory(prefix="isthmus-fault-") as folder:
            case = Case(binaries, folder, rounds)
            try:
                case.run.start()
                case.run.wait_step(5, case.deadline)
                held, figure = body(case)
            finally:
                case.cluster.stop()
        met = int(held and figure <= figure_max)
        print(
            f"result faults case={name} held={int(held)} figure_s={figure:.2f} "
            f"figure_max_s={figure_max} met={met}",
            flush=True,
        )

    return run


def all_equal(summaries):
    """Whether the replicas are."""
    return len({summary["state_sha256"] for summary in summaries.values()}) == 1


def killed_after_submit(case):
    """R9."""
    case.signal("trainer-b-0", signal.SIGSTOP)  # so that the round waits for b
    case.seconds_until(lambda: case.log_has(": waiting for b"))
    joined = case.joined("node joined node=a")
    kill(case.cluster.processes["agent-a"])
    case.run.look()  # starts it again
    figure = case.seconds_until(lambda: case.joined("node joined node=a") > joined)
    case.signal("trainer-b-0", signal.SIGCONT)
    summaries = case.run.wait_finished(case.deadline)
    once = all(summary["skipped_steps"] == 0 for summary in summaries.values())
    return all_equal(summaries) and once and not case.run.restarts["trainer-a"], figure


def killed_rank(case):
    """R10."""
    kill(case.cluster.processes["trainer-b-1"])
    figure = case.seconds_until(lambda: case.log_has("node left node=b"))
    held = case.log_has("rank 1 of 2 disconnected") or case.log_has("lost another rank")
    summaries = case.run.wait_finished(case.deadline)
    return held and all_equal(summaries), figure


def paused_agent(case):
    """R12."""
    case.signal("agent-a", signal.SIGSTOP)
    case.seconds_until(lambda: case.log_has("lease ended: the node was not heard of node=a"))
    case.run.wait_seconds(1)
    step = case.run.step
    case.signal("agent-a", signal.SIGCONT)
    figure = case.seconds_until(lambda: case.run.step > step, case.run.look)
    return all_equal(case.run.wait_finished(case.deadline)), figure


def all_killed(case):
    """R13."""
    for process in case.cluster.processes.values():
        kill(process)
    case.run.look()
    step = case.run.step
    figure = case.seconds_until(lambda: case.run.step > step + 1, case.run.look)
    return all_equal(case.run.wait_finished(case.deadline)), figure


def agents_back(binaries, _seed):
    """After a coordinator was away for long, its agents are back soon after it serves again."""
    with tempfile.TemporaryDirectory(prefix="isthmus-fault-") as folder:
        case = Case(binaries, folder, 400)
        try:
            case.run.start()
            case.run.wait_step(5, case.deadline)
            kill(case.cluster.processes["coordinator"])
            # Long enough for the agents to have come to the longest of their delays.
            time.sleep(AWAY_S)
            joined = case.joined()
            case.cluster.start_coordinator()
            seconds = case.seconds_until(lambda: case.joined() >= joined + len(RANKS))
            held = all_equal(case.run.wait_finished(case.deadline))
        finally:
            case.cluster.stop()
    print(
        f"result recovery case=agents_back seconds={seconds:.2f} seconds_max={BACK_MAX_S} "
        f"held={int(held)} met={int(held and seconds <= BACK_MAX_S)}",
        flush=True,
    )


CASES = {
    "agents_back": agents_back,
    "chaos": chaos,
    "r9": fault("r9", 200, 5, killed_after_submit),
    "r10": fault("r10", 200, 6, killed_rank),
    "r12": fault("r12", 200, 10, paused_agent),
    "r13": fault("r13", 200, 20, all_killed),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="the same; every case is whole")
    parser.add_argument("--case", choices=sorted(CASES))
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    binaries = programs(arguments.bazel_bin)
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
