"""Snapshots in the store on disk: a large one, and many in a row.

The large one has 2.2 GiB, beyond what 31 bits count, and is written in pieces as fast as they go,
with commits of rounds beside them (bench/snapshots.cc), then listed and read. Memory must not grow
with it, and no commit may wait long. Of many in a row the folder holds those that are kept, the one
under way, the last one that was dropped, and what is on its way from the log to the files.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

LARGE_BYTES = 2_362_232_016  # 2.2 GiB, in whole elements of three sections
RSS_BYTES_MAX = 400 << 20
COMMIT_MS_MAX = 3000.0  # a lease is 15 s
SMALL_BYTES = 50_000_004
SMALL_COUNT = 10
KEPT = 2  # kSnapshotsKept
# In write buffers of the store (server/rocks_store.h).
ON_ITS_WAY_BYTES = 4 * (32 << 20)


def measure(program, folder, *flags):
    """What one run of the driver says."""
    with tempfile.TemporaryDirectory(prefix="isthmus-snapshots-", dir=folder) as state:
        command = [program, f"--state_dir={state}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program.name} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="three large ones in a row")
    parser.add_argument("--dir", help="measure the disk that holds this folder (default: --out's)")
    options = parser.parse_args()
    program = options.bazel_bin / "bench" / "snapshots"
    folder = options.dir or options.out
    count = 3 if options.full else 1
    large = measure(program, folder, f"--bytes={LARGE_BYTES}", f"--count={count}")
    met = (
        large["bytes"] == LARGE_BYTES
        and large["rss_bytes"] <= RSS_BYTES_MAX
        and large["commit_max_ms"] <= COMMIT_MS_MAX
    )
    print(
        f"result snapshot_store bytes={large['bytes']} write_s={large['write_s'] / count:.1f} "
        f"list_s={large['list_s']:.3f} read_s={large['read_s']:.1f} "
        f"rss_bytes={large['rss_bytes']} "
        f"commit_alone_p50_ms={large['commit_alone_p50_ms']:.1f} "
        f"commit_alone_max_ms={large['commit_alone_max_ms']:.1f} "
        f"commit_p50_ms={large['commit_p50_ms']:.1f} commit_max_ms={large['commit_max_ms']:.1f} "
        f"met={int(met)}",
        flush=True,
    )
    small = measure(program, folder, f"--bytes={SMALL_BYTES}", f"--count={SMALL_COUNT}")
    bound = (KEPT + 2) * SMALL_BYTES + ON_ITS_WAY_BYTES
    print(
        f"result snapshot_room snapshots={SMALL_COUNT} bytes={small['bytes']} "
        f"folder_bytes_max={small['folder_bytes_max']} bound_bytes={bound} "
        f"commit_max_ms={small['commit_max_ms']:.1f} "
        f"met={int(small['folder_bytes_max'] <= bound)}"
    )


if __name__ == "__main__":
    main()
