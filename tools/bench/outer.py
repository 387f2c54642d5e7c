"""Outer steps beside a copy of the same bytes; decoding and folding of contributions.

Ours is //bench:outer, 33.5 M parameters, more than caches hold. A step's gb_per_s counts what it
must read and write (20 bytes a parameter for nesterov and sign_momentum); of_copy is that over the
rate of memcpy of half as many bytes, which reads and writes the same number. fold decodes blocks of
two contributions and adds them into memory; sparse reads top-64 chunks of 4,096 of eight
contributions from coded bytes and adds them to a block's sum, which a step would then take from the
cache; components are the same, read before. Both are for one core.

Repetitions of all take turns in one run, so that what else the machine does hits all alike; the
figure is the median.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

THREADS = 2
# Bytes that a step reads and writes of a parameter: g, x and the state.
STEP_BYTES = {
    "nesterov": 20,
    "sign_momentum": 20,
    "three_point": 20,
    "slowmo": 20,
    "adamw": 28,
    "assign": 12,
    "lion": 12,
    "sign_sgd": 12,
}
FORMATS = ("int8", "int4", "sign1", "ternary", "f32", "bf16", "f16")
# Share of the copy's rate, parameters a second, components a second and core. The others are shown
# without a target.
OF_COPY_MIN = {"nesterov": 0.6, "sign_momentum": 0.6}
PARAMETERS_MIN = {"int8": 1e9, "int4": 1e9, "sign1": 1e9}
COMPONENTS_MIN = {"sparse": 150e6}
# Repetitions that are not counted: the first ones touch new memory.
WARM_UP = 2
TURNS_MIN = 9


class Ours:
    """The driver as a child that does one repetition a command."""

    def __init__(self, program):
        self.child = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = dict(word.split("=") for word in self.read().split())

    def read(self):
        line = self.child.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise RuntimeError(f"{self.child.args[0]} answered '{line}'")
        return line

    def seconds(self, command):
        print(command, file=self.child.stdin, flush=True)
        return float(self.read().removeprefix("ms=")) / 1e3

    def close(self):
        self.child.stdin.close()
        self.child.wait(timeout=60)


def commands():
    for rule in STEP_BYTES:
        yield f"step {rule} {THREADS}"
    for size in sorted(set(STEP_BYTES.values())):
        yield f"copy {size} {THREADS}"
    for name in FORMATS:
        yield f"fold {name} {THREADS}"
    yield "sparse 1"
    yield "components 1"


def measure(ours, seconds_min):
    """Median seconds of each command."""
    times = {command: [] for command in commands()}
    started = time.monotonic()
    turn = 0
    while turn < WARM_UP + TURNS_MIN or time.monotonic() - started < seconds_min:
        for command, taken in times.items():
            once = ours.seconds(command)
            if turn >= WARM_UP:
                taken.append(once)
        turn += 1
    print(f"{turn - WARM_UP} turns in {time.monotonic() - started:.1f} s", flush=True)
    return {command: statistics.median(taken) for command, taken in times.items()}


def line(name, figures, value, least):
    met = "" if least is None else f" met={int(value >= least)}"
    print(f"result outer rule={name} {figures}{met}", flush=True)


def report(ours, seconds):
    parameters = int(ours.about["parameters"])
    contributors = int(ours.about["contributors"])
    for rule, size in STEP_BYTES.items():
        taken, copied = seconds[f"step {rule} {THREADS}"], seconds[f"copy {size} {THREADS}"]
        of_copy = copied / taken
        figures = (
            f"threads={THREADS} gb_per_s={parameters * size / taken / 1e9:.2f} "
            f"copy_gb_per_s={parameters * size / copied / 1e9:.2f} of_copy={of_copy:.2f}"
        )
        line(rule, figures, of_copy, OF_COPY_MIN.get(rule))
    for name in FORMATS:
        rate = parameters * contributors / seconds[f"fold {name} {THREADS}"]
        figures = f"threads={THREADS} g_parameters_per_s={rate / 1e9:.2f}"
        line(f"fold_{name}", figures, rate, PARAMETERS_MIN.get(name))
    chosen = parameters // int(ours.about["chunk"]) * int(ours.about["k"])
    chosen *= int(ours.about["sparse_contributors"])
    for name in ("sparse", "components"):
        rate = chosen / seconds[f"{name} 1"]
        figures = f"threads=1 m_components_per_s={rate / 1e6:.0f}"
        line(name, figures, rate, COMPONENTS_MIN.get(name))


def main():
    parser = argparse.ArgumentParser(prog="./dev bench outer")
    parser.add_argument("--bazel-bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help="two minutes in place of half of one")
    options = parser.parse_args()
    ours = Ours(pathlib.Path(options.bazel_bin) / "bench" / "outer")
    print(f"ours: target={ours.about['target']}", flush=True)
    report(ours, measure(ours, 120 if options.full else 30))
    ours.close()


if __name__ == "__main__":
    sys.exit(main())
