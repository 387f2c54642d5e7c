"""What durable rounds cost: rounds of a coordinator with its store on disk and in memory.

Both run in one process without a network (bench/rounds.cc), in turn, and between them the disk
itself is measured: a file that grows by as many bytes as a commit writes, with fdatasync. A commit
should add little more to a round than that.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SPEC = """run: "durability" steps: 1000000 nodes { name: "a" } nodes { name: "b" }
optimizer { lr: 0.001 }
"""
# Of one contribution: that of the demo. An update has twice as many, and is what is written.
PAYLOAD_BYTES = 33_000
ROUNDS = 300
TURNS = {False: 7, True: 21}
ADDED_OVER_FSYNC_MS_MAX = 1.0


def measure(program, *flags):
    """What one run of the driver says."""
    done = subprocess.run([program, *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program.name} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="three times as many turns")
    parser.add_argument("--dir", help="measure the disk that holds this folder (default: --out's)")
    options = parser.parse_args()
    program = options.bazel_bin / "bench" / "rounds"
    on, off, disk = [], [], []
    with tempfile.TemporaryDirectory(
        prefix="isthmus-durability-", dir=options.dir or options.out
    ) as folder:
        spec = pathlib.Path(folder) / "run.txtpb"
        spec.write_text(SPEC)
        flags = [f"--run_spec={spec}", f"--rounds={ROUNDS}", f"--payload_bytes={PAYLOAD_BYTES}"]
        for turn in range(TURNS[options.full]):
            off.append(measure(program, *flags))
            on.append(measure(program, *flags, f"--state_dir={folder}/state-{turn}"))
            written = f"--payload_bytes={on[-1]['down_bytes']}"
            disk.append(measure(program, f"--probe_dir={folder}", f"--rounds={ROUNDS}", written))
            print(
                f"turn {turn + 1}: on {on[-1]['p50_ms']:.2f} ms, off {off[-1]['p50_ms']:.2f} ms, "
                f"write and fdatasync {disk[-1]['p50_ms']:.2f} ms (medians of {ROUNDS})",
                flush=True,
            )
    added_ms = statistics.median(a["p50_ms"] - b["p50_ms"] for a, b in zip(on, off, strict=True))
    fsync_ms = statistics.median(one["p50_ms"] for one in disk)
    met = added_ms - fsync_ms <= ADDED_OVER_FSYNC_MS_MAX

    def rate(runs):
        return statistics.median(run["rounds"] / run["seconds"] for run in runs)

    print(
        f"result durability on_rounds_per_s={rate(on):.1f} off_rounds_per_s={rate(off):.1f} "
        f"p50_added_ms={added_ms:.3f} fsync_p50_ms={fsync_ms:.3f} "
        f"added_over_fsync_ms={added_ms - fsync_ms:.3f} "
        f"payload_bytes={on[0]['down_bytes']} met={int(met)}"
    )


if __name__ == "__main__":
    main()
