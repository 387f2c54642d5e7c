"""What each choice of FlexDeMo costs in loss and saves in bytes, one factor at a time.

Model, text, tokens and schedule of `./dev bench parity`, two nodes where nothing else is said. The
first run is AdamW on the mean gradient at every step (preset `full`); `ratio` is the held-out loss
over that of the same seed, `full` and `none` are the bounds. Of `demo` change: what of the momentum
travels (rows instead of components, at about the same bytes), the format of values, alpha, how many
components, and by how many rounds updates are late. A case that the coordinator refuses as not
built says skipped=not_built.

    ./dev bench replicators               one seed
    ./dev bench replicators --full        three seeds; means over them, and tighter bars
    ./dev bench replicators --tune        learning rates of the cases in GRID, with another seed
    ./dev bench replicators --cases demo,slicing      only these (and AdamW)
    ./dev bench replicators --full --resume           after an end half way: runs that ended count
    ./dev bench replicators --seed 3 --resume         the part of --full that has this seed

`bytes_per_round`: what one node sends. A plot shows loss against them.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import tempfile
from collections import namedtuple

import matplotlib
import matplotlib.pyplot as pyplot

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo import unpack_text  # noqa: E402
from demo_cluster import RunError, programs  # noqa: E402
from training import SEEDS, STEPS, TOKENS_A_STEP, TUNE_SEED, train  # noqa: E402

matplotlib.use("Agg")

EVAL_EVERY = 100
NOT_BUILT = "is not built yet"
FOUR = {"frankfurt": 1, "singapore": 1, "virginia": 1, "warsaw": 1}

# name: of the result. spec: lines of a run spec. bar: largest ratio with one seed and, as a mean,
# with three; None: shown, whatever it is.
Case = namedtuple(
    "Case", "name spec lr values alpha overlap look nodes bar drifts", defaults=[None, False]
)


def demo(codec="", lr=0.003, bar=None, **shown):
    """A case of `demo` with these fields of its codec."""
    overlap, look = shown.get("overlap", 0), shown.get("look", 1)
    spec = f"codec {{ kind: CODEC_KIND_DEMO {codec} }}"
    if overlap > 0:
        spec += f" overlap: {overlap}" + ("" if look == 1 else f" look: {look}")
    return Case(
        shown.get("name", "demo"),
        spec,
        lr,
        shown.get("values", "f32"),
        shown.get("alpha", 1),
        overlap,
        look if overlap > 0 else 0,
        shown.get("nodes"),
        bar,
    )


def numbers(values):
    """Of a codec: the format of its values."""
    return f"numbers {{ format: NUMBER_FORMAT_{values.upper()} }}"


def rows(name, lr):
    """Rows at the bytes of `demo`: three of 128 in bfloat16 are 192 bytes of a 64 x 64 tile."""
    codec = f"rate: 0.0234375 chunk_side: 128 {numbers('bf16')}"
    return Case(name, f'preset: "{name}" codec {{ {codec} }}', lr, "bf16", 1, 0, 0, None)


VALUES_BAR = (1.03, 1.02)
CASES = {
    "full": Case("full", 'preset: "full"', 0.003, "f32", 1, 0, 0, None),
    "none": Case(
        "none", 'preset: "none" allow_drift: true', 0.003, "none", 1, 0, 0, None, None, True
    ),
    "demo": demo(bar=VALUES_BAR),
    "random": rows("random", 0.01),
    "striding": rows("striding", 0.01),
    "slicing": rows("slicing", 0.01),
    "demo_f16": demo(numbers("f16"), values="f16", bar=VALUES_BAR),
    "demo_int4": demo(numbers("int4"), values="int4"),
    "demo_sign1": demo(numbers("sign1"), values="sign1", bar=VALUES_BAR),
    "demo_alpha_0.2": demo("alpha: 0.2", alpha=0.2),
    "demo_alpha_0.5": demo("alpha: 0.5", alpha=0.5),
    "demo_k8": demo(
        f"matrix_density: {8 / 4096} vector_density: {2 / 64}", name="demo_k8", bar=(1.08, 1.08)
    ),
    "demo_overlap_1": demo(overlap=1, bar=(1.05, 1.05)),
    "demo_overlap_1_no_look": demo(overlap=1, look=0),
    "demo_overlap_2": demo(overlap=2),
    "demo_4_nodes": demo(nodes=FOUR),
    "demo_4_nodes_overlap_1": demo(nodes=FOUR, overlap=1),
}
BASE = "full"
# Rows move an element once in many steps, so that their step is another one than that of `demo`.
GRID = {name: (0.003, 0.01, 0.03, 0.1) for name in ("random", "striding", "slicing")}


# What is kept of a run. curve: [(tokens, bytes of one node's link, held-out loss)].
Outcome = namedtuple("Outcome", "val bytes_up parameters curve")


class Kept:
    """The outcomes of runs that ended, in a file: hours of training outlive an end half way."""

    def __init__(self, path, binaries, resume):
        self._path = path
        self._programs = hashlib.sha256(
            b"".join(hashlib.sha256(path.read_bytes()).digest() for path in binaries.values())
        ).hexdigest()
        self._outcomes = json.loads(path.read_text()) if resume and path.exists() else {}

    def run(self, binaries, text, name, seed, steps):
        """The outcome of a run of these very programs and this spec, trained unless it is known."""
        case = CASES[name]
        key = f"{self._programs} {case.spec} nodes {case.nodes} lr {case.lr} {seed} {steps}"
        if key not in self._outcomes:
            trained = run(binaries, text, name, seed, steps)
            if trained is None:
                return None
            sent = trained.summary["up_bytes_per_round"]
            self._outcomes[key] = Outcome(trained.val, sent, trained.parameters, trained.curve)
            self._path.write_text(json.dumps(self._outcomes))
        return Outcome(*self._outcomes[key])


def run(binaries, text, name, seed, steps, lr=None):
    """One run of a case; None if the coordinator says that it is not built."""
    case = CASES[name]
    lr = lr or case.lr
    try:
        trained = train(
            binaries,
            text,
            case.spec,
            lr,
            seed,
            steps=steps,
            every=EVAL_EVERY,
            nodes=case.nodes,
            drifts=case.drifts,
        )
    except RunError as error:
        if NOT_BUILT not in str(error):
            raise
        print(f"{name:24} {NOT_BUILT}", flush=True)
        return None
    print(
        f"{name:24} lr {lr:<6} seed {seed:<3} held-out {trained.val:.4f}"
        f"  {trained.summary['up_bytes_per_round']:.0f} bytes up a round  {trained.seconds:.0f} s",
        flush=True,
    )
    return trained


def tune(binaries, text, steps, names):
    """Every point of the grid with the seed of the tuning; says whether CASES has the best."""
    agree = True
    for name in names:
        reached = {lr: run(binaries, text, name, TUNE_SEED, steps, lr).val for lr in GRID[name]}
        best = min(reached, key=reached.get)
        agree = agree and best == CASES[name].lr
        for lr, loss in reached.items():
            print(
                f"result replicators_tune name={name} lr={lr} val={loss:.4f}"
                f" best={int(lr == best)}",
                flush=True,
            )
    print(f"result replicators_tune chosen_is_best={int(agree)} met={int(agree)}")


def describe(name, steps, parameters):
    """The words of a case that stand in its result."""
    case = CASES[name]
    nodes = len(case.nodes or {"a": 1, "b": 1})
    return (
        f"result replicators name={case.name} values={case.values} alpha={case.alpha}"
        f" overlap={case.overlap} look={case.look} nodes={nodes} lr={case.lr} params={parameters}"
        f" tokens={steps * TOKENS_A_STEP}"
    )


def plot(points, path):
    """Held-out loss against the bytes that a node sends in a round."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, (sent, val) in points.items():
        axes.plot(max(sent, 1), val, "o", color="tab:blue" if "demo" in name else "tab:gray")
        axes.annotate(
            name, (max(sent, 1), val), xytext=(4, 3), textcoords="offset points", fontsize=7
        )
    axes.set_xscale("log")
    axes.set_xlabel("bytes that a node sends in a round")
    axes.set_ylabel("held-out loss, nats a token")
    axes.set_title("FlexDeMo, one factor at a time; the same model, data order and tokens")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def compare(kept, binaries, text, steps, seeds, out, names):
    """All cases seed by seed, so that an early end has whole comparisons; then a line each."""
    runs = {name: [] for name in names}
    for seed in seeds:
        for name in names:
            if None not in runs[name]:
                runs[name].append(kept.run(binaries, text, name, seed, steps))
    base = [outcome.val for outcome in runs[BASE]]
    parameters = runs[BASE][0].parameters
    points = {}
    for name, outcomes in runs.items():
        line = describe(name, steps, parameters)
        if None in outcomes:
            print(f"{line} skipped=not_built", flush=True)
            continue
        vals = [outcome.val for outcome in outcomes]
        ratios = [val / adamw for val, adamw in zip(vals, base, strict=True)]
        ratio, val = sum(ratios) / len(ratios), sum(vals) / len(vals)
        sent = outcomes[0].bytes_up
        points[name] = (sent, val)
        bars = CASES[name].bar
        bar = None if bars is None else bars[0 if len(seeds) == 1 else 1]
        print(
            f"{line} seeds={len(vals)} val={val:.4f} ratio={ratio:.4f}"
            f" ratio_max={max(ratios):.4f} bytes_per_round={sent:.0f}"
            f" bar={bar if bar is not None else 'none'} met={int(bar is None or ratio <= bar)}",
            flush=True,
        )
    plot(points, out / "replicators.png")
    (out / "replicators-curves.json").write_text(
        json.dumps(
            {
                name: [outcome.curve for outcome in outcomes if outcome is not None]
                for name, outcomes in runs.items()
            }
        )
    )
    print(f"plot: {out / 'replicators.png'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="three seeds instead of one")
    parser.add_argument("--tune", action="store_true", help="train every point of the grid")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run")
    parser.add_argument("--resume", action="store_true", help="do not train again what ended")
    parser.add_argument("--cases", default="", help="only these, by comma")
    parser.add_argument("--seed", type=int, help="this one only, with the bars of one seed")
    options = parser.parse_args()
    known = GRID if options.tune else CASES
    names = [name for name in options.cases.split(",") if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there are no cases {', '.join(unknown)}; known are {', '.join(known)}")
    binaries = programs(options.bazel_bin)
    with tempfile.TemporaryDirectory(prefix="isthmus-text-") as folder:
        text = unpack_text(folder)
        if options.tune:
            tune(binaries, text, options.steps, names)
            return
        seeds = SEEDS if options.full else SEEDS[:1]
        if options.seed is not None:
            seeds = (options.seed,)
        names = [BASE] + [name for name in names if name != BASE]
        kept = Kept(options.out / "replicators-runs.json", binaries, options.resume)
        compare(kept, binaries, text, options.steps, seeds, options.out, names)


if __name__ == "__main__":
    main()
