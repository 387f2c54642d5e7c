"""One DeMo step of one sender, without packing: ours, the published package's, and a floor.

Sections 3 to 7 and 9 to 11 of the algorithm's step, for 4096 x 2560 parameters and as many in one
row, chunk side 64, 32 components a chunk, float32. Ours is //bench:demo_step. Theirs are the
transform and compressor classes of `detonation`, driven as its replicator does with one process:
its optimizer skips compression when it is alone. The floor is one pass that reads the gradient and
updates momentum and parameters.

Ours goes block by block, since with one sender and no packing nothing lies between lines 7 and 9;
apart_ms is the time of two passes, as in a trainer, which sends in between.

Repetitions of all take turns in one run, so that what else the machine does hits all alike;
the figure is the median. The target holds for two threads: a speed-up of at least 20 and at most 3
times the floor. One thread is printed for comparison and has no target.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from detonation.util import DCTCompress, DCTTransform

ROWS, COLS = 4096, 2560
SIDE, COMPONENTS = 64, 32
BETA, ETA = 0.999, 1e-3
SHAPES = {"2d": (ROWS, COLS), "flat": (ROWS * COLS,)}

TARGET_THREADS = 2
SPEEDUP_MIN = 20
OVER_FLOOR_MAX = 3
# Repetitions that are not counted: the first ones touch new memory.
WARM_UP = 2
# Ours and the floor are short, so each turn of theirs is followed by several of both.
OURS_PER_TURN = 3
# Share of parameters that must agree with theirs after the first step. Where round-off decides on
# a component or on the sign of an entry near 0, two right implementations differ.
AGREE_MIN = 0.999


class Theirs:
    """The published classes on one parameter, in the order of the package's replicator."""

    def __init__(self, shape, gradient):
        self.parameter = torch.nn.Parameter(torch.ones(shape))
        self.gradient = torch.from_numpy(gradient).reshape(shape)
        self.delta = torch.zeros(shape)
        self.optimizer = torch.optim.SGD([self.parameter], lr=ETA)
        self.transform = DCTTransform(self.optimizer.param_groups, SIDE)

    @torch.no_grad()
    def step(self):
        delta = self.delta
        delta.mul_(BETA)
        delta.add_(self.gradient, alpha=ETA)
        index, value, shape = DCTCompress.compress(self.transform.encode(delta), COMPONENTS)
        index = index.to(torch.int32)
        sent = DCTCompress.decompress(
            index.to(torch.int64), value, shape, delta.device, delta.dtype
        )
        delta.sub_(self.transform.decode(sent))
        merged = DCTCompress.batch_decompress(
            [index.to(torch.int64)], [value], shape, delta.device, delta.dtype
        )
        self.parameter.grad = self.transform.decode(merged)
        self.parameter.grad.sign_()
        self.optimizer.step()

    def timed_step(self):
        """Milliseconds of one step."""
        start = time.perf_counter()
        self.step()
        return (time.perf_counter() - start) * 1e3


class Ours:
    """The driver //bench:demo_step as a child that does one repetition a command."""

    def __init__(self, program, gradient_file):
        self.child = subprocess.Popen(
            [program, gradient_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.target = self.read()

    def read(self):
        line = self.child.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise RuntimeError(f"{self.child.args[0]} answered '{line}'")
        return line

    def ask(self, *words):
        print(*words, file=self.child.stdin, flush=True)
        return self.read()

    def timed(self, *words):
        """Milliseconds of one repetition."""
        return float(self.ask(*words).removeprefix("ms="))

    def close(self):
        self.child.stdin.close()
        self.child.wait(timeout=60)


def compare_first_step(ours, theirs, name, folder):
    """Both begin with the same parameters and gradient: the share of equal parameters after it."""
    theirs.step()
    ours.timed("ours", name, 1)
    dumped = pathlib.Path(folder) / "parameters"
    ours.ask("dump", name, dumped)
    got = numpy.fromfile(dumped, dtype=numpy.float32)
    dumped.unlink()
    expected = theirs.parameter.detach().numpy().reshape(-1)
    # A step is eta or nothing; half of it tells them apart.
    share = float(numpy.mean(numpy.abs(got - expected) < ETA / 2))
    print(f"{name}: after the first step {share:.6f} of the parameters agree", flush=True)
    if share < AGREE_MIN:
        raise RuntimeError(f"ours and theirs do not compute the same: {share} < {AGREE_MIN}")


def measure(ours, theirs, name, threads, turns):
    torch.set_num_threads(threads)
    theirs_ms, own_ms = [], {"ours": [], "apart": [], "floor": []}
    for turn in range(WARM_UP + turns):
        once = theirs.timed_step()
        # Their threads go on looking for work for a moment after a step.
        time.sleep(0.05)
        for _ in range(OURS_PER_TURN):
            for what, times in own_ms.items():
                took = ours.timed(what, name, threads)
                if turn >= WARM_UP:
                    times.append(took)
        if turn >= WARM_UP:
            theirs_ms.append(once)
    medians = {what: statistics.median(times) for what, times in own_ms.items()}
    report(name, threads, medians, statistics.median(theirs_ms))


def report(name, threads, own_ms, theirs_ms):
    speedup, over_floor = theirs_ms / own_ms["ours"], own_ms["ours"] / own_ms["floor"]
    line = (
        f"result demo_step shape={name} threads={threads} ours_ms={own_ms['ours']:.2f} "
        f"theirs_ms={theirs_ms:.1f} floor_ms={own_ms['floor']:.2f} "
        f"speedup={speedup:.1f} over_floor={over_floor:.2f} apart_ms={own_ms['apart']:.2f}"
    )
    # The target holds for two threads; a line of one thread has none and says no met.
    if threads == TARGET_THREADS:
        line += f" met={int(speedup >= SPEEDUP_MIN and over_floor <= OVER_FLOOR_MAX)}"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench demo_step")
    parser.add_argument("--bazel-bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help="31 turns in place of 9")
    options = parser.parse_args()
    turns = 31 if options.full else 9
    gradient = numpy.random.default_rng(1).standard_normal(ROWS * COLS, dtype=numpy.float32)
    with tempfile.TemporaryDirectory() as folder:
        gradient_file = pathlib.Path(folder) / "gradient"
        gradient.tofile(gradient_file)
        ours = Ours(pathlib.Path(options.bazel_bin) / "bench" / "demo_step", gradient_file)
        print(f"ours: {ours.target}; theirs: detonation with torch {torch.__version__}", flush=True)
        for name, shape in SHAPES.items():
            theirs = Theirs(shape, gradient)
            compare_first_step(ours, theirs, name, folder)
            for threads in (1, 2):
                measure(ours, theirs, name, threads, turns)
        ours.close()


if __name__ == "__main__":
    sys.exit(main())
