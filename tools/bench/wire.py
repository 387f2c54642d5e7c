"""Components on the wire: bits of indices beside their bound, bytes, and coding on one core.

Ours alone is //bench:wire, which says what each figure is. The speed target is for chunks of 8
components and more: below, the chunk itself takes the time. The median of repetitions counts.
"""

import argparse
import pathlib
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(prog="./dev bench wire")
    parser.add_argument("--bazel-bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help="ten times the repetitions")
    options = parser.parse_args()
    program = pathlib.Path(options.bazel_bin) / "bench" / "wire"
    subprocess.run([program, "0.1" if options.full else "0.01"], check=True)


if __name__ == "__main__":
    sys.exit(main())
