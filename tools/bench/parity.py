"""Does `demo` learn as well as AdamW on the full gradient, token for token?

Trains a GPT of 0.84 M parameters on the demo's text twice a seed: with preset `full` (AdamW on
gradients that the coordinator averages at every step) and with preset `demo` (compressed
components, sign). Both run through coordinator, agents and trainers; they see the same model,
start, data order, tokens and schedule, and each has the learning rate that its row of the grid
chose.

    ./dev bench parity            three seeds; prints the result line, writes curves as PNG
    ./dev bench parity --tune     trains every point of the grid with the seed of the tuning and
                                  prints what each reached; the choice goes into CHOSEN below

The held-out loss is in nats a token (a token is a byte). A ratio is that of `demo` over `full`.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import matplotlib
import matplotlib.pyplot as pyplot

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import training  # noqa: E402
from demo import unpack_text  # noqa: E402
from demo_cluster import programs  # noqa: E402
from training import SEEDS, STEPS, TOKENS_A_STEP, TUNE_SEED  # noqa: E402

matplotlib.use("Agg")

EVAL_EVERY = 100

# The tuning: every method gets the same number of points and of tokens, and one seed that the
# benchmark does not use. All else is equal or fixed by the method.
GRID = {
    "full": (0.0015, 0.003, 0.006, 0.009),
    "demo": (0.002, 0.003, 0.004, 0.006),
}
CHOSEN = {"full": 0.003, "demo": 0.003}

FULL_VAL_MAX = 1.95
RATIO_MEAN_MAX = 1.02
RATIO_MAX = 1.03
PARAMETERS_MIN = 800_000
# At the end both must still improve, or stand within this of their best.
AT_BEST = 1.01


def train(binaries, text, preset, lr, seed, steps):
    """One run. Returns its curve [(tokens, held-out loss)] and summary."""
    run = training.train(
        binaries, text, f'preset: "{preset}"', lr, seed, steps=steps, every=EVAL_EVERY
    )
    print(
        f"{preset:5} lr {lr:<6} seed {seed:<3} held-out {run.val:.4f}"
        f"  best {run.best():.4f}"
        f"  {run.summary['up_bytes_per_round']:.0f} bytes up a round"
        f"  {run.seconds:.0f} s",
        flush=True,
    )
    return [(tokens, loss) for tokens, _, loss in run.curve], run.summary


def tune(binaries, text, steps):
    """Every point of the grid with the seed of the tuning; says which is best."""
    agree = True
    for preset, rates in GRID.items():
        reached = {
            lr: train(binaries, text, preset, lr, TUNE_SEED, steps)[1]["val_loss"] for lr in rates
        }
        best = min(reached, key=reached.get)
        agree = agree and best == CHOSEN[preset]
        for lr, loss in reached.items():
            print(
                f"result parity_tune preset={preset} lr={lr} val={loss:.4f} best={int(lr == best)}"
            )
        print(f"best of {preset}: {best}; CHOSEN has {CHOSEN[preset]}")
    print(f"result parity_tune chosen_is_best={int(agree)} met={int(agree)}")


def ends_well(curve):
    """Whether a curve still improves at its end, or ends within AT_BEST of its best."""
    losses = [loss for _, loss in curve]
    return losses[-1] <= min(losses) * AT_BEST


def plot(curves, path):
    """Held-out loss over tokens, a thin line a seed."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    colours = {"full": "tab:gray", "demo": "tab:blue"}
    labels = {"full": "full: AdamW on the averaged gradient", "demo": "demo: compressed, sign"}
    for (preset, seed), curve in curves.items():
        axes.plot(
            [tokens / 1e6 for tokens, _ in curve],
            [loss for _, loss in curve],
            color=colours[preset],
            linewidth=1.2,
            label=labels[preset] if seed == SEEDS[0] else None,
        )
    axes.set_ylim(1.7, 3.0)
    axes.set_xlabel("million tokens (both nodes together)")
    axes.set_ylabel("held-out loss, nats a token")
    axes.set_title(f"Two nodes, {len(SEEDS)} seeds, same model, data order and tokens")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def compare(binaries, text, steps, out):
    """All seeds; prints a line a seed and the result."""
    curves, ratios, values = {}, [], {"full": [], "demo": []}
    parameters, bytes_up = 0, {}
    well = True
    for seed in SEEDS:
        for preset in ("full", "demo"):
            curve, summary = train(binaries, text, preset, CHOSEN[preset], seed, steps)
            curves[(preset, seed)] = curve
            values[preset].append(summary["val_loss"])
            bytes_up[preset] = summary["up_bytes_per_round"]
            parameters = summary["dense_bytes_per_round"] // 4
            well = well and ends_well(curve)
        ratios.append(values["demo"][-1] / values["full"][-1])
        print(f"seed {seed}: ratio {ratios[-1]:.4f}", flush=True)
    plot(curves, out / "parity.png")
    (out / "parity-curves.json").write_text(
        json.dumps({f"{preset}-{seed}": curve for (preset, seed), curve in curves.items()})
    )
    mean = sum(ratios) / len(ratios)
    full_val = sum(values["full"]) / len(SEEDS)
    demo_val = sum(values["demo"]) / len(SEEDS)
    met = (
        well
        and parameters >= PARAMETERS_MIN
        and max(values["full"]) <= FULL_VAL_MAX
        and mean <= RATIO_MEAN_MAX
        and max(ratios) <= RATIO_MAX
    )
    print(f"curves: {out / 'parity.png'}")
    print(
        f"result parity params={parameters} tokens={steps * TOKENS_A_STEP}"
        f" demo_val={demo_val:.4f} full_val={full_val:.4f} full_val_max={max(values['full']):.4f}"
        f" ratio={mean:.4f} ratio_max={max(ratios):.4f} seeds={len(SEEDS)}"
        f" demo_up_bytes={bytes_up['demo']:.0f} full_up_bytes={bytes_up['full']:.0f}"
        f" ends_at_best={int(well)} met={int(met)}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tune", action="store_true", help="train every point of the grid")
    parser.add_argument("--full", action="store_true", help="no longer form: the same run")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each run")
    options = parser.parse_args()
    binaries = programs(options.bazel_bin)
    with tempfile.TemporaryDirectory(prefix="isthmus-text-") as folder:
        text = unpack_text(folder)
        if options.tune:
            tune(binaries, text, options.steps)
        else:
            compare(binaries, text, options.steps, options.out)


if __name__ == "__main__":
    main()
