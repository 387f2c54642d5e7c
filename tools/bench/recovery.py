"""How long a run stands still after a fault: real processes, killed with SIGKILL.

start                a coordinator with 10,000 rounds of history, killed, until it serves again
coordinator_restart  from its kill until the next commit, and from serving until then
agent_restart        from its kill until the next commit
node_lost            quorum 1 of 2, everything of one node killed, until the next commit
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo_cluster import Cluster, MetricsTail, RunError, programs  # noqa: E402

HISTORY_ROUNDS = 10_000
HISTORY_SPEC = """run: "recovery" steps: 1000000 nodes { name: "a" } nodes { name: "b" }
optimizer { lr: 0.001 }
"""
START_S_MAX = 2.0
LEASE_MS = 3000
AGENTS_BACK_S_MAX = 5.0
WAIT_S = 60
REPEATS = {False: 3, True: 10}

SPEC = """run: "recovery" seed: 1 steps: 1000000 quorum: {quorum}
nodes {{ name: "a" }} nodes {{ name: "b" }}
model {{ layers: 1 heads: 2 width: 32 context: 32 }}
data {{ sequences_per_node: 2 eval_sequences: 2 }}
optimizer {{ lr: 0.002 }}
timing {{ lease_ms: {lease_ms} heartbeat_ms: {beat_ms} }}
"""


def disk_rate(path):
    """Bytes a second that the files below a folder are read with; they may be in memory."""
    begin, size = time.monotonic(), 0
    for file in pathlib.Path(path).rglob("*"):
        if file.is_file():
            size += len(file.read_bytes())
    return size, size / max(time.monotonic() - begin, 1e-6)


def start_case(binaries, rounds_program, folder, repeats):
    """A coordinator on a long history."""
    spec = folder / "history.txtpb"
    spec.write_text(HISTORY_SPEC)
    state, ready = folder / "history", folder / "ready"
    done = subprocess.run(
        [rounds_program, f"--run_spec={spec}", f"--rounds={HISTORY_ROUNDS}", "--die"]
        + [f"--state_dir={state}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"the history could not be made: {done.stderr.strip()}")
    print(f"history: {done.stdout.strip()}", flush=True)
    times = []
    for _ in range(repeats):
        ready.unlink(missing_ok=True)
        begin = time.monotonic()
        process = subprocess.Popen(
            [binaries["coordinator"], f"--run_spec={spec}", "--listen=127.0.0.1:0"]
            + [f"--state_dir={state}", f"--ready_file={ready}", "--log_level=warning"]
        )
        while not ready.exists() or not ready.read_text().endswith("\n"):
            if process.poll() is not None or time.monotonic() - begin > WAIT_S:
                raise SystemExit("the coordinator does not serve")
            time.sleep(0.005)
        times.append(time.monotonic() - begin)
        process.kill()
        process.wait()
    log_bytes = sum(file.stat().st_size for file in state.glob("*.log"))
    size, rate = disk_rate(state)
    most = START_S_MAX + log_bytes / rate
    worst = max(times)
    print(
        f"result recovery case=start seconds={worst:.3f} most_s={most:.3f} "
        f"rounds={HISTORY_ROUNDS} folder_bytes={size} log_bytes={log_bytes} "
        f"met={int(worst <= most)}",
        flush=True,
    )


class Watched:
    """A run under way, and the rounds that node a has applied."""

    def __init__(self, binaries, folder, text, quorum):
        folder.mkdir()
        spec = SPEC.format(quorum=quorum, lease_ms=LEASE_MS, beat_ms=LEASE_MS // 6)
        self.cluster = Cluster(binaries, folder, spec, {"a": 1, "b": 1})
        self.tail = MetricsTail(self.cluster.metrics_file("a", 0))
        self.round = 0
        self.cluster.start(text)

    def wait_past(self, round_number):
        """Waits until a later round is applied; returns it."""
        give_up = time.monotonic() + WAIT_S
        while self.round <= round_number:
            for line in self.tail.new_lines():
                self.round = line["round"]
            if time.monotonic() > give_up:
                raise RunError(f"no round after {round_number} within {WAIT_S} s")
            time.sleep(0.002)
        return self.round

    def kill(self, *names):
        """Kills processes; returns the last round before, and when."""
        for line in self.tail.new_lines():
            self.round = line["round"]
        for name in names:
            os.killpg(self.cluster.processes[name].pid, signal.SIGKILL)
        for name in names:
            self.cluster.processes.pop(name).wait()
        for line in self.tail.new_lines():  # what was under way when it died
            self.round = line["round"]
        return self.round, time.monotonic()


def fault_cases(binaries, folder, text, repeats):
    """Coordinator and agent killed and started again at once."""
    watched = Watched(binaries, folder / "restart", text, quorum=2)
    try:
        watched.wait_past(20)
        commits, backs = [], []
        for _ in range(repeats):
            last, begin = watched.kill("coordinator")
            watched.cluster.start_coordinator()
            serving = time.monotonic()
            watched.wait_past(last + 1)  # one update may have been on its way
            commits.append(time.monotonic() - begin)
            backs.append(time.monotonic() - serving)
            watched.wait_past(watched.round + 20)
        tell("coordinator_restart", max(commits), LEASE_MS / 1e3 + 1)
        tell("agents_back", max(backs), AGENTS_BACK_S_MAX)
        commits = []
        for _ in range(repeats):
            last, begin = watched.kill("agent-b")
            watched.cluster.start_agent("b")
            watched.wait_past(last + 1)
            commits.append(time.monotonic() - begin)
            watched.wait_past(watched.round + 20)
        tell("agent_restart", max(commits), LEASE_MS / 1e3 + 1)
    finally:
        watched.cluster.stop()


def lost_case(binaries, folder, text):
    """Everything of a node killed where the quorum can do without."""
    watched = Watched(binaries, folder / "lost", text, quorum=1)
    try:
        watched.wait_past(20)
        last, begin = watched.kill("agent-b", "trainer-b-0")
        watched.wait_past(last + 1)
        tell("node_lost", time.monotonic() - begin, LEASE_MS / 1e3 + 1)
    finally:
        watched.cluster.stop()


def tell(case, seconds, most_s):
    print(
        f"result recovery case={case} seconds={seconds:.3f} most_s={most_s:.3f} "
        f"lease_s={LEASE_MS / 1e3:.1f} met={int(seconds <= most_s)}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bazel-bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="more repeats")
    options = parser.parse_args()
    binaries = programs(options.bazel_bin)
    repeats = REPEATS[options.full]
    with tempfile.TemporaryDirectory(prefix="isthmus-recovery-", dir=options.out) as name:
        folder = pathlib.Path(name)
        text = folder / "text"
        text.write_text(json.dumps(list(range(20_000))))
        start_case(binaries, options.bazel_bin / "bench" / "rounds", folder, repeats)
        fault_cases(binaries, folder, text, repeats)
        lost_case(binaries, folder, text)


if __name__ == "__main__":
    try:
        main()
    except RunError as error:
        sys.exit(f"recovery: {error}")
