"""Whole runs: the simulator, learning under faults, and what an operator is told.

r42   1,000 seeds of the simulator within a minute; the same seed is the same history.
r44   Three nodes, with agents killed, coordinators paused and links dead at random: the final loss
      is within what runs without faults differ by.
r46   The status names who is missing and the deadline, and the log has one line a change.
"""

import random
import re
import signal
import statistics
import subprocess
import time

from chaos import kill

from .case import LIMIT_S, TRIO, Case, all_equal, noise_of_three


def _simulate(bench, *flags):
    done = subprocess.run(
        [bench.bazel_bin / "tests/sim/simulate", *flags],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    return done.returncode == 0, done.stdout


def r42(bench):
    """Seeds."""
    first = 1 + bench.seed * 1000
    begin = time.monotonic()
    good, said = _simulate(bench, "--seeds", "1000", "--first", str(first))
    seconds = time.monotonic() - begin
    bench.say(said.strip())
    failed = int(re.search(r"failed (\d+)", said).group(1))
    traces = []
    for seed in (first, first + 1):
        again = [_simulate(bench, "--seed", str(seed))[1] for _ in range(2)]
        found = [re.search(r"trace ([0-9a-f]{16})", text).group(1) for text in again]
        traces.append(found[0] == found[1])
    bench.result(
        "r42",
        good and failed == 0 and all(traces),
        seconds,
        60,
        "s",
        seeds=1000,
        first_seed=first,
        failed=failed,
        same_trace=all(traces),
    )


def _toy(bench, seed, faults, rounds):
    """One run of three nodes. Returns (loss of each node, replicas equal, what was done)."""
    settings = {
        "rounds": rounds, "seed": seed, "quorum": 2, "grace_ms": 500, "deadline_ms": 3000,
        "eval_sequences": 64,
    }  # fmt: skip
    draw, done = random.Random(seed), []
    with Case(bench, TRIO, **settings) as case:
        links = {node: case.use_link(node, delay_s=0.005) for node in TRIO}
        case.start(1)
        for number in range(faults):
            case.step(number * (rounds - 20) // faults)
            node = draw.choice(sorted(TRIO))
            kind = draw.choice(("r8", "r11", "r16"))
            done.append(kind)
            bench.say(f"r44: step {case.run.step}: {kind} {node}")
            if kind == "r8":
                case.run.wait_seconds(draw.uniform(0, 0.1))
                kill(case.processes[f"agent-{node}"])
            elif kind == "r11":
                case.signal("coordinator", signal.SIGSTOP)
                case.run.wait_seconds(draw.uniform(0.5, 7))
                case.signal("coordinator", signal.SIGCONT)
            else:
                links[node].dead = True
                case.run.wait_seconds(draw.uniform(0.5, 5))
                links[node].dead = False
                links[node].cut()  # what was on its way is lost
        summaries = case.finish()
    return summaries["a"]["val_loss"], all_equal(summaries), done


def r44(bench):
    """Numerics under faults."""
    rounds, faults, seeds = (60, 3, 1) if bench.short else (300, 12, 3)
    calm = []
    for seed in range(1, seeds + 1):
        loss, equal, _ = _toy(bench, seed, 0, rounds)
        calm.append(loss)
        bench.say(f"r44: without faults, seed {seed}: held-out loss {loss:.4f}, equal: {equal}")
    rough, equal, done = _toy(bench, 1, faults, rounds)
    bench.say(f"r44: with faults: held-out loss {rough:.4f}")
    band = noise_of_three(calm) if seeds == 3 else 1.0
    away = abs(rough - statistics.mean(calm))
    bench.result(
        "r44",
        equal,
        away,
        band,
        "loss_from_mean_of_seeds",
        len(done) == faults,
        faults=len(done),
        **{kind: done.count(kind) for kind in ("r8", "r11", "r16")},
        rounds=rounds,
        loss=rough,
        calm_mean=statistics.mean(calm),
    )


def _waits(case):
    """What the log says it waited for, without the count-down."""
    found = re.findall(r"info coordinator: (round \d+: waiting for .*)", case.log())
    return [re.sub(r"\d+ s to deadline", "", line) for line in found]


def r46(bench):
    """What an operator sees."""
    times = {"quorum": 2, "grace_ms": 60_000, "deadline_ms": 60_000}
    hold_s = 5 if bench.short else 10
    with Case(bench, TRIO, rounds=100_000, **times) as case:
        case.start(5)
        before, slowest, sentences = len(_waits(case)), 0.0, []

        def wait_named(wanted):
            begin = time.monotonic()
            case.seconds_until(lambda: re.search(wanted, case.show().get("waitingFor", "")))
            sentences.append(case.show()["waitingFor"])
            return time.monotonic() - begin

        case.signal("trainer-c-0", signal.SIGSTOP)
        slowest = wait_named(r": waiting for c\b.*\d+ s to deadline, quorum 2 of 3 reached")
        case.run.wait_seconds(hold_s)  # many ticks, and nothing that changes
        case.kill_node("c")  # its lease ends, and the others go on
        passed = case.committed()
        case.seconds_until(lambda: case.committed() > passed + 3)
        case.signal("trainer-b-0", signal.SIGSTOP)
        slowest = max(slowest, wait_named(r": waiting for b\b.*quorum 2 of 3 not reached"))
        until = time.monotonic() + hold_s
        case.seconds_until(lambda: time.monotonic() > until)
        lines = _waits(case)[before:]
        nodes = case.ask("nodes", "list")["nodes"]
        named = [node["name"] for node in nodes if node.get("isWaitedFor")]
    for sentence in [*sentences, *lines]:
        bench.say(f"r46: {sentence}")
    repeated = sum(one == other for one, other in zip(lines, lines[1:], strict=False))
    bench.result(
        "r46",
        repeated == 0 and named == ["b"],
        slowest,
        2,
        "s_until_named",
        len(lines) >= 2,
        log_lines=len(lines),
        lines_repeated=repeated,
        ticks=int(2 * hold_s * 10),
    )


CASES = {"r42": r42, "r44": r44, "r46": r46}
