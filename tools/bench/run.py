"""Runs one benchmark of the table below and keeps what it found.

usage: run.py                      lists the benchmarks
       run.py --targets NAME       prints the Bazel targets that it needs
       run.py --bazel-bin DIR NAME [--full] [options of the benchmark]

A benchmark is a script beside this file. It prints what it does, and its figures as lines

    result NAME key=value … met=0|1         or         result NAME … skipped=reason

with plain decimals or words as values and the unit at the end of a key. All it prints is kept in
bench-out/NAME.txt, the results also in bench-out/NAME.json, both with command, commit and machine.
The exit code is 1 when a line says met=0, 2 when the benchmark could not be run.

To add one: a script, a line in BENCHMARKS, and where it needs packages of its own a file of pins
in environments/. Each file of pins becomes an environment below the user's cache folder.
"""

import collections
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
OUT = ROOT / "bench-out"

# environment: name of a file in environments/, or None for the interpreter that runs this.
# timeout_min: after so long the benchmark is taken to hang; --full makes it three times as long.
Benchmark = collections.namedtuple("Benchmark", "script targets environment timeout_min about")

BENCHMARKS = {
    "demo_step": Benchmark(
        script="demo_step.py",
        targets=["//bench:demo_step"],
        environment="detonation",
        timeout_min=15,
        about="one DeMo step of 10.5 M parameters beside the Python package and the memory floor",
    ),
    "dense_round": Benchmark(
        script="dense_round.py",
        targets=["//:coordinator", "//bench:dense_round"],
        # It makes that of its peers itself, and goes on without them where they cannot be had.
        environment=None,
        timeout_min=45,
        about="a round of 10 M float32 of two nodes beside hivemind and torchft",
    ),
    "faults": Benchmark(
        script="faults.py",
        targets=["//:coordinator", "//:agent", "//:trainer", "//:isthmusctl", "//bench:rounds"]
        + ["//tests/history:check_history", "//tests/history:store_history"]
        + ["//tests/server:rocks_store_test", "//tests/server:served_faults_test"]
        + ["//tests/server:payload_bombs_test", "//tests/server:reconnect_test"]
        + ["//tests/server:wire_limits_test"]
        + ["//tests/releases:release_test", "//tests/sim:simulate", "//tools/wan:relay"]
        + ["//tests/system:durability_test"],
        environment=None,
        timeout_min=60,
        about="faults of processes, disks, clocks and peers: what must hold, and how soon",
    ),
    "outer": Benchmark(
        script="outer.py",
        targets=["//bench:outer"],
        environment=None,
        timeout_min=15,
        about="outer steps beside a copy of the same bytes; decoding and folding",
    ),
    "overlap_wait": Benchmark(
        script="overlap_wait.py",
        targets=["//:coordinator", "//:agent", "//:trainer", "//tools/wan:relay"],
        environment=None,
        timeout_min=15,
        about="waiting in a step with overlap 0, 1, 2 behind lines of 150 ms",
    ),
    "parity": Benchmark(
        script="parity.py",
        targets=["//:coordinator", "//:agent", "//:trainer"],
        environment="plots",
        timeout_min=60,
        about="held-out loss of demo beside AdamW on the full gradient, same tokens, three seeds",
    ),
    "sign_momentum": Benchmark(
        script="sign_momentum.py",
        targets=["//:coordinator", "//:agent", "//:trainer"],
        environment="plots",
        timeout_min=120,
        about="held-out loss of sign momentum with local steps beside others and AdamW, 3 seeds",
    ),
    "presets": Benchmark(
        script="presets.py",
        targets=["//:coordinator", "//:agent", "//:trainer", "//tools/wan:relay"],
        environment="plots",
        timeout_min=120,
        about="every preset: held-out loss, bytes a token, time at 10 Mbit/s",
    ),
    "replicators": Benchmark(
        script="replicators.py",
        targets=["//:coordinator", "//:agent", "//:trainer"],
        environment="plots",
        timeout_min=60,
        about="FlexDeMo one factor at a time: rows, number formats, alpha, overlap; loss and bytes",
    ),
    "soak": Benchmark(
        script="soak.py",
        targets=["//:coordinator", "//:agent", "//:trainer", "//:isthmusctl"],
        environment="plots",
        timeout_min=40,
        about="memory and descriptors of a run of 30 minutes with random faults",
    ),
    "wire": Benchmark(
        script="wire.py",
        targets=["//bench:wire"],
        environment=None,
        timeout_min=15,
        about="components on the wire: bits beside the bound, bytes, coding and reading a second",
    ),
    "durability": Benchmark(
        script="durability.py",
        targets=["//bench:rounds"],
        environment=None,
        timeout_min=15,
        about="what a round costs more with its store on disk, beside the disk's own fsync",
    ),
    "joins": Benchmark(
        script="joins.py",
        targets=["//tests/worker:joins_test"],
        environment=None,
        timeout_min=30,
        about="200 joins at random moments, and a node that was out for 10,000 rounds",
    ),
    "snapshot_store": Benchmark(
        script="snapshot_store.py",
        targets=["//bench:snapshots"],
        environment=None,
        timeout_min=15,
        about="a snapshot of 2.2 GiB in the store on disk: time, memory, room, commits beside it",
    ),
    "recovery": Benchmark(
        script="recovery.py",
        targets=["//bench:rounds", "//:coordinator", "//:agent", "//:trainer"],
        environment=None,
        timeout_min=20,
        about="how long a run stands still after a kill of coordinator, agent or node",
    ),
}

FULL_FACTOR = 3
RESULT = re.compile(r"result ([a-z0-9_]+)((?: [a-z0-9_]+=\S+)+)\s*$")
# What a pip installation may take on a slow network.
INSTALL_TIMEOUT_S = 1800


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def stop(text):
    say(f"error: {text}")
    sys.exit(2)


def run_text(*command):
    """First line of what a command prints, or an empty text."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.strip().split("\n")[0]


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_widest():
    """The widest vector instructions, which say more than the name that a virtual machine shows."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    for flag in ("avx512f", "avx2", "sse4_1"):
        if re.search(rf"\b{flag}\b", flags):
            return flag
    return "none"


def describe_run(arguments):
    """What a reader needs to judge or repeat the figures."""
    commit = run_text("git", "rev-parse", "HEAD") or "unknown"
    changed = run_text("git", "status", "--porcelain", "--untracked-files=no")
    memory_kib = re.search(
        r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
    )
    return {
        "command": "./dev bench " + " ".join(shlex.quote(a) for a in arguments),
        "commit": commit + (" with changes" if changed else ""),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{cpu_model()}, {cpu_widest()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib.group(1)) / 2**20) if memory_kib else 0,
        "load_before": round(os.getloadavg()[0], 2),
    }


def environment_python(name):
    """The interpreter of the environment with these pins; makes it when it is not there.

    Raises NotInstalled.
    """
    pins = HERE / "environments" / f"{name}.txt"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "isthmus" / f"peer-{name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"peer-{name}.lock", "w", encoding="utf-8") as lock:
        # Two runs at once make it once; the other one waits here.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            install(pins, folder)
    return python


class NotInstalled(Exception):
    """The pins of an environment cannot be had here."""


def install(pins, folder):
    say(f"making the environment {folder.name}: minutes, and perhaps gigabytes, once …")
    # What an interrupted run left is made anew.
    steps = [
        [sys.executable, "-m", "venv", "--clear", folder],
        [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        + ["--no-cache-dir", "-r", pins],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise NotInstalled(
                f"installing {pins.name} took more than {INSTALL_TIMEOUT_S} s; is PyPI reachable?"
            ) from None
        if done.returncode != 0:
            raise NotInstalled(
                f"the pins of {pins.relative_to(ROOT)} could not be installed; see above"
            )
    (folder / ".complete").touch()


def stream(command, log, timeout_s):
    """Runs a command, shows and keeps what it prints; returns (exit code, lines)."""
    lines = []
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            log.write(line)
            lines.append(line.rstrip("\n"))
        code = process.wait()
        if not timer.is_alive() and code != 0:
            say(f"error: it was stopped after its limit of {timeout_s / 60:g} minutes")
        return code, lines
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def parse_result(line):
    """The keys of a result line, numbers as numbers; None for another line."""
    match = RESULT.match(line)
    if not match:
        return None
    found = {"name": match.group(1)}
    for pair in match.group(2).split():
        key, value = pair.split("=", 1)
        try:
            found[key] = float(value) if "." in value else int(value)
        except ValueError:
            found[key] = value
    return found


def run_benchmark(bazel_bin, name, options):
    benchmark = BENCHMARKS[name]
    python = sys.executable
    if benchmark.environment:
        try:
            python = environment_python(benchmark.environment)
        except NotInstalled as error:
            stop(str(error))
    OUT.mkdir(exist_ok=True)
    about = describe_run([name, *options])
    timeout_s = benchmark.timeout_min * 60 * (FULL_FACTOR if "--full" in options else 1)
    command = [python, HERE / benchmark.script, "--bazel-bin", bazel_bin, "--out", OUT, *options]
    with open(OUT / f"{name}.txt", "w", encoding="utf-8") as log:
        for key, value in about.items():
            line = f"{key}: {value}"
            print(line, flush=True)
            log.write(line + "\n")
        log.flush()
        code, lines = stream(command, log, timeout_s)
    results = [result for result in map(parse_result, lines) if result]
    (OUT / f"{name}.json").write_text(
        json.dumps({"name": name, **about, "exit_code": code, "results": results}, indent=1) + "\n",
        encoding="utf-8",
    )
    say(f"kept in {(OUT / name).relative_to(ROOT)}.txt and .json")
    if code != 0:
        stop(f"{benchmark.script} ended with code {code}")
    if not results:
        stop(f"{benchmark.script} printed no result line")
    missed = [result for result in results if result.get("met") == 0]
    for result in missed:
        words = " ".join(f"{key}={value}" for key, value in result.items() if key != "name")
        say(f"target missed: {words}")
    return 1 if missed else 0


def known(name):
    if name not in BENCHMARKS:
        stop(f"there is no benchmark '{name}'; ./dev bench lists them")
    return BENCHMARKS[name]


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: ./dev bench NAME [--full] [options]\n")
        for name, benchmark in BENCHMARKS.items():
            print(f"  {name:16}{benchmark.about}")
        return 0
    if arguments[0] == "--targets":
        print(" ".join(known(arguments[1]).targets))
        return 0
    if arguments[0] != "--bazel-bin" or len(arguments) < 3:
        stop("wants --bazel-bin DIR NAME; ./dev bench NAME calls it that way")
    known(arguments[2])
    return run_benchmark(arguments[1], arguments[2], arguments[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
