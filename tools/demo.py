"""./dev demo: two nodes of two ranks train a small GPT on real English text, on this machine.

Measures the machine with a short run first, so that the learning-rate schedule ends with the time
given; then trains, shows live progress, compares the nodes' parameters and prints a result line.
"""

import argparse
import gzip
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "wan"))

from demo_cluster import Cluster, MetricsTail, RunError, programs  # noqa: E402
from wan_box import Link, WanBox, WanError  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TEXT_PACKAGE = "jargon-text"
RANKS = {"frankfurt": 2, "virginia": 2}
NODES = tuple(RANKS)
# From each node to the coordinator: a thin line for both, and for one some distance. A round sends
# about 33 kB up and 66 kB down, so the rate costs it 80 ms and the distance 20 ms.
LINKS = {"frankfurt": Link(rate_mbit=10), "virginia": Link(rate_mbit=10, rtt_ms=20)}
CONTEXT = 128
SEQUENCES_PER_NODE = 8
TRIAL_STEPS = 30
STEPS_MIN = 60
# Losses and rates on the screen are means over so many rounds.
RATE_ROUNDS = 20
# Start-up, evaluation at both ends and the sample; taken off the time before steps are counted.
FIXED_SECONDS = 12
# Over a whole run a round takes longer than the median of the trial: pauses of the machine, and
# evaluations, are in it too.
TRIAL_FACTOR = 1.15
VAL_LOSS_BAR = 2.3
UPLOAD_SHARE_BAR = 1 / 50

# Some hundred rounds: a momentum that remembers a hundred suits them better than the default's
# thousand.
SPEC = """\
run: "demo"
seed: 1
steps: {steps}
preset: "flexdemo"
nodes {{ name: "{first}" }}
nodes {{ name: "{second}" }}
model {{ layers: 2 heads: 6 width: 192 context: {context} vocab: 256 }}
data {{ sequences_per_node: {sequences} heldout_permille: 50 eval_sequences: 64
       eval_every: {every} }}
optimizer {{ lr: 0.002 warmup_steps: {warmup} lr_final_ratio: 0.05 clip_norm: 1.0 }}
codec {{ matrix_density: 0.005859375 vector_density: 0.09375 beta: 0.99 }}
"""


def spec_text(steps, every):
    """The RunSpec of a run of so many steps."""
    return SPEC.format(
        steps=steps,
        first=NODES[0],
        second=NODES[1],
        context=CONTEXT,
        sequences=SEQUENCES_PER_NODE,
        every=every,
        warmup=max(1, steps // 20),
    )


def unpack_text(folder):
    """The text of the Debian package as one plain file; returns its path."""
    listed = subprocess.run(
        ["dpkg", "-L", TEXT_PACKAGE], capture_output=True, text=True, check=False
    ).stdout.split()
    packed = [Path(p) for p in listed if p.endswith(".txt.gz") and Path(p).exists()]
    if not packed:  # images that leave documentation out: take it from the package itself
        print(f"text: unpacking it from the package {TEXT_PACKAGE}")
        download = ["apt-get", "download", "-q", TEXT_PACKAGE]
        got = subprocess.run(download, cwd=folder, capture_output=True, check=False)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        packed = list(Path(folder).rglob("*.txt.gz"))
        if got.returncode != 0 or not packed:
            raise RunError(
                f"no text: the Debian package {TEXT_PACKAGE} is missing and could not be "
                f"downloaded; try apt-get install {TEXT_PACKAGE}"
            )
    text = Path(folder) / "text"
    with gzip.open(packed[0], "rb") as source, open(text, "wb") as target:
        shutil.copyfileobj(source, target)
    return text


def seconds_a_round(lines):
    """Mean time of a round over some lines of a node's metrics."""
    rounds = lines[-1]["step"] - lines[0]["step"]
    seconds = lines[-1]["seconds"] - lines[0]["seconds"]
    return seconds / rounds if rounds and seconds else max(lines[-1]["seconds"], 0.001)


class Screen:
    """Live progress: redrawn in place on a terminal, a line every five seconds elsewhere."""

    def __init__(self, cluster, steps):
        self.tails = {node: MetricsTail(cluster.metrics_file(node, 0)) for node in NODES}
        self.recent = {node: deque(maxlen=RATE_ROUNDS) for node in NODES}
        self.val_loss = None
        self.steps = steps
        self.live = sys.stdout.isatty()
        self.drawn_at = 0.0
        self.drawn_lines = 0

    def update(self):
        """Reads what the trainers wrote and draws it if it is time."""
        self._read()
        now = time.monotonic()
        if now - self.drawn_at >= (0.5 if self.live else 5.0) and all(self.recent.values()):
            self.drawn_at = now
            self.draw()

    def finish(self):
        """Draws the last state."""
        self._read()
        if all(self.recent.values()):
            self.draw()

    def _read(self):
        for node, tail in self.tails.items():
            for line in tail.new_lines():
                self.recent[node].append(line)
                if node == NODES[0] and line.get("val_loss") is not None:
                    self.val_loss = line["val_loss"]

    def draw(self):
        """Writes the present state."""
        step = min(lines[-1]["step"] for lines in self.recent.values())
        filled = 40 * step // self.steps
        val = f"   held-out loss {self.val_loss:.3f}" if self.val_loss is not None else ""
        lines = [f"round {step:5d}/{self.steps} [{'#' * filled}{'.' * (40 - filled)}]{val}"]
        for node, recent in self.recent.items():
            line = recent[-1]
            loss = sum(one["loss"] for one in recent) / len(recent)
            wait = sum(one["wait_ms"] for one in recent) / len(recent)
            rate = line["tokens"] / seconds_a_round(recent)
            lines.append(
                f"  {node:<10} loss {loss:.3f}  {rate:6.0f} tokens/s"
                f"  up {line['bytes_up'] / 1e6:6.2f} MB  down {line['bytes_down'] / 1e6:6.2f} MB"
                f"  waited {wait:3.0f} ms a round"
            )
        if self.live and self.drawn_lines:
            sys.stdout.write(f"\x1b[{self.drawn_lines}A")
        end = "\x1b[K\n" if self.live else "\n"
        sys.stdout.write("".join(line + end for line in lines))
        sys.stdout.flush()
        self.drawn_lines = len(lines)


def run(cluster, text, steps, show, sample_bytes):
    """One whole run; returns the nodes' summaries."""
    try:
        cluster.start(text, sample_bytes, "The ")
        if show:
            show_cluster(cluster)
        screen = Screen(cluster, steps)
        while not cluster.trainers_done():
            cluster.check()
            if show:
                screen.update()
            time.sleep(0.1)
        if show:
            screen.finish()
        return cluster.summaries()
    finally:
        cluster.stop()


def show_cluster(cluster):
    """What runs where."""
    print(f"\ncoordinator  pid {cluster.processes['coordinator'].pid:<8} {cluster.address}")
    for node in NODES:
        names = [f"trainer-{node}-{rank}" for rank in range(RANKS[node])]
        pids = ", ".join(str(cluster.processes[name].pid) for name in names)
        agent = cluster.processes[f"agent-{node}"].pid
        print(f"  {node:<10} agent pid {agent:<8} trainers pid {pids}")
    print(f"logs in {cluster.folder} while it runs; Ctrl-C stops everything\n", flush=True)


def report(summaries, seconds):
    """The table, the sample and the result line; returns whether all bars are met."""
    first = summaries[NODES[0]]
    equal = len({summary["state_sha256"] for summary in summaries.values()}) == 1
    print(f"\n{'node':<11} {'held-out':>9} {'up/round':>10} {'down/round':>11}  state SHA-256")
    for node, summary in summaries.items():
        print(
            f"{node:<11} {summary['val_loss']:9.4f} {summary['up_bytes_per_round']:10.0f} "
            f"{summary['down_bytes_per_round']:11.0f}  {summary['state_sha256'][:16]}…"
        )
    less = first["dense_bytes_per_round"] / first["up_bytes_per_round"]
    print(
        f"\n{first['dense_bytes_per_round'] / 4e6:.2f} M parameters, {first['rounds']} rounds in "
        f"{seconds:.0f} s; a node sends {less:.0f} times less than dense float32 a round"
    )
    if first.get("sample"):
        sample = "".join(c if c.isprintable() or c == "\n" else "?" for c in first["sample"])
        print(f"\nsample (temperature 0.8):\n{'-' * 72}\n{sample}\n{'-' * 72}")
    up = max(summary["up_bytes_per_round"] for summary in summaries.values())
    dense = first["dense_bytes_per_round"]
    val = max(summary["val_loss"] for summary in summaries.values())
    met = equal and val <= VAL_LOSS_BAR and up <= dense * UPLOAD_SHARE_BAR
    print(
        f"\nresult demo val_loss={val:.4f} start_loss={first['start_loss']:.4f} "
        f"tokens={sum(s['tokens'] for s in summaries.values())} rounds={first['rounds']} "
        f"up_bytes_per_round={up:.0f} dense_bytes_per_round={dense:.0f} nodes={len(NODES)} "
        f"ranks_per_node={RANKS[NODES[0]]} params_equal={int(equal)} met={int(met)}"
    )
    return met


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--minutes", type=float, default=3.8, help="time for the training (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, help="rounds, instead of a time")
    parser.add_argument(
        "--link",
        choices=("wan", "loopback"),
        help="WAN in a box or this machine's loopback (default: wan where it can run)",
    )
    parser.add_argument(
        "--binaries", type=Path, default=ROOT / "bazel-bin", help="folder of the built programs"
    )
    arguments = parser.parse_args()
    if not 0.2 <= arguments.minutes <= 600 or (arguments.steps or 1) < 1:
        parser.error("--minutes takes 0.2 to 600, --steps 1 or more")
    binaries = programs(arguments.binaries)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        open_link(arguments.link, arguments.binaries / "tools/wan/relay") as box,
        tempfile.TemporaryDirectory(prefix="isthmus-demo-") as folder,
    ):
        begun = time.monotonic()
        text = unpack_text(folder)
        megabytes = text.stat().st_size / 1e6
        print(f"text: {megabytes:.2f} MB of English from the package {TEXT_PACKAGE}")
        steps = arguments.steps or measured_steps(
            binaries, folder, text, arguments.minutes, begun, box
        )
        print(f"training {steps} rounds")
        run_folder = Path(folder) / "run"
        run_folder.mkdir()
        spec = spec_text(steps, max(1, steps // 5))
        cluster = Cluster(binaries, run_folder, spec, RANKS, box)
        summaries = run(cluster, text, steps, show=True, sample_bytes=400)
        return 0 if report(summaries, time.monotonic() - begun) else 1


def open_link(wanted, relay):
    """The box that the run takes place in, or one of None for loopback; says which, and why."""
    reason = "as asked for" if wanted == "loopback" else WanBox.why_not(relay)
    if wanted == "wan" and reason:
        raise RunError(f"--link wan cannot run: {reason}")
    if reason:
        print(f"link: loopback ({reason})", flush=True)
        return nullcontext()
    said = [f"{n} {link.rate_mbit:g} Mbit/s, RTT {link.rtt_ms:g} ms" for n, link in LINKS.items()]
    print(f"link: WAN in a box, to the coordinator from {'; '.join(said)}", flush=True)
    return WanBox(LINKS, relay=relay)


def measured_steps(binaries, folder, text, minutes, begun, box):
    """How many rounds fit into the time, by a short run of the same shape."""
    print(f"measuring this machine with {TRIAL_STEPS} rounds …", flush=True)
    trial = Path(folder) / "trial"
    trial.mkdir()
    cluster = Cluster(binaries, trial, spec_text(TRIAL_STEPS, 0), RANKS, box)
    run(cluster, text, TRIAL_STEPS, show=False, sample_bytes=0)
    ends = [line["seconds"] for line in MetricsTail(cluster.metrics_file(NODES[0], 0)).new_lines()]
    # The median, so that a machine that does something else for a moment does not halve the run.
    per_round = TRIAL_FACTOR * statistics.median(b - a for a, b in pairwise(ends[5:]))
    left = minutes * 60 - (time.monotonic() - begun) - FIXED_SECONDS
    steps = max(STEPS_MIN, int(left / per_round))
    print(f"a round takes {1000 * per_round:.0f} ms here")
    return steps


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RunError, WanError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running", file=sys.stderr)
        sys.exit(130)
