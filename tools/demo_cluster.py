"""Starts and watches the processes of a small run on this machine: coordinator, agents, trainers.

Everything a run makes (sockets, logs, summaries) lies in one folder that goes away with it, and
every process is a child in its own process group, so that nothing is left behind however it ends.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 8


class RunError(Exception):
    """A sentence for the person at the terminal."""


def free_port():
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def programs(folder):
    """The built programs in a folder like bazel-bin, by name."""
    folder = Path(folder)
    return {
        "coordinator": folder / "server/coordinator",
        "agent": folder / "worker/agent",
        "trainer": folder / "worker/trainer",
    }


class Cluster:
    """One coordinator, an agent a node and its trainers, with their logs."""

    def __init__(self, binaries, folder, spec_text, ranks, box=None, durable=True):
        """`ranks`: trainers of each node, by name. `box`: a WanBox in which the run takes place.
        `durable`: the coordinator keeps the run on disk.

        In a box the coordinator runs at the hub and each node at the site of its name; without
        one all of them use the loopback interface.
        """
        self.binaries = binaries
        self.folder = Path(folder)
        self.ranks = ranks
        self.box = box
        self.durable = durable
        self.processes = {}
        # For faults; by the name of a process, or of its program: more flags, a command that starts
        # it (strace, say), more environment. And by node: where its agent finds the coordinator.
        self.flags = {}
        self.under = {}
        self.environment = {}
        self.routes = {}
        # In a box: sites of processes that run elsewhere than the rest of their node.
        self.places = {}
        self._log_begins = {}
        self.address = None
        self.spec_file = self.folder / "run.txtpb"
        self.spec_file.write_text(spec_text)

    def start(self, data_file, sample_bytes=0, sample_prompt=""):
        """Starts everything, the coordinator first; returns when all processes run."""
        self.start_coordinator()
        for index, node in enumerate(self.ranks):
            self.start_agent(node)
            sample = [f"--sample={sample_bytes}", f"--sample_prompt={sample_prompt}"]
            self.start_trainers(node, data_file, sample if sample_bytes and index == 0 else [])

    def start_coordinator(self, *more_flags, under=()):
        """Starts it (again) and waits until it serves.

        The first time it chooses a port; later it has the same one, and goes on with the run that
        its state folder holds. `under`: a command that starts it, strace for instance.
        """
        ready = self.folder / "coordinator.ready"
        ready.unlink(missing_ok=True)
        self.spawn_coordinator(*more_flags, under=under)
        self.address = self._wait_for(ready, "coordinator").strip()

    def spawn_coordinator(self, *more_flags, under=()):
        """The same without waiting."""
        host = self.box.hub_address() if self.box else "127.0.0.1"
        self.spawn(
            "coordinator",
            f"--run_spec={self.spec_file}",
            f"--listen={self.address or host + ':0'}",
            *(["--allow_plaintext"] if self.box else []),  # no other machine reaches into the box
            *([f"--state_dir={self.coordinator_state()}"] if self.durable else []),
            f"--ready_file={self.folder}/coordinator.ready",
            *more_flags,
            under=under,
        )

    def coordinator_state(self):
        """Where the coordinator keeps the run."""
        return self.folder / "state-coordinator"

    def start_agent(self, node, *more_flags, wait=True):
        """Starts a node's agent (again) and waits until its socket serves."""
        agent_socket = f"unix:{self.folder}/{node}.sock"
        ready = self.folder / f"agent-{node}.ready"
        ready.unlink(missing_ok=True)
        self.spawn(
            f"agent-{node}",
            f"--node={node}",
            f"--coordinator={self.routes.get(node, self.address)}",
            f"--ranks={self.ranks[node]}",
            f"--listen={agent_socket}",
            f"--state_dir={self.folder}/state-{node}",
            f"--ready_file={ready}",
            "--exit_when_finished",
            *more_flags,
        )
        if wait:
            self._wait_for(ready, f"agent-{node}")

    def start_trainers(self, node, data_file, more_flags=()):
        """Starts all ranks of a node."""
        port = free_port()
        for rank in range(self.ranks[node]):
            self.start_trainer(node, rank, port, data_file, more_flags)

    def start_trainer(self, node, rank, port, data_file, more_flags=()):
        """Starts one rank; `port` is where its group meets."""
        self.spawn(
            f"trainer-{node}-{rank}",
            f"--agent=unix:{self.folder}/{node}.sock",
            f"--data={data_file}",
            f"--rank={rank}",
            f"--ranks={self.ranks[node]}",
            "--master_addr=127.0.0.1",
            f"--master_port={port}",
            f"--metrics_file={self.metrics_file(node, rank)}",
            f"--summary_file={self.summary_file(node)}",
            *more_flags,
        )

    def metrics_file(self, node, rank):
        """Where a rank writes one JSON line a step."""
        return self.folder / f"metrics-{node}-{rank}.jsonl"

    def summary_file(self, node):
        """Where a node's rank 0 writes what it reached."""
        return self.folder / f"summary-{node}.json"

    def log_file(self, name):
        """Standard output and error of a process."""
        return self.folder / f"{name}.log"

    def output(self, name):
        """What the process that was started last under this name has printed so far."""
        text = self.log_file(name).read_bytes()[self._log_begins[name] :]
        return text.decode(errors="replace")

    def spawn(self, name, *flags, under=()):
        """Starts a process; its name up to the first '-' is that of its program."""
        program, _, rest = name.partition("-")
        keys = {program, name}
        more = [flag for key in keys for flag in self.flags.get(key, ())]
        under = [word for key in keys for word in self.under.get(key, ())] + list(under)
        environment = dict(os.environ)
        for key in keys:
            environment.update(self.environment.get(key, {}))
        command = [*under, self.binaries[program], *flags, *more]
        if self.box:
            place = self.places.get(name) or self._place(program, rest)
            command = self.box.command(place, command)
        with open(self.log_file(name), "ab") as log:  # a process that starts again adds to it
            self._log_begins[name] = log.tell()
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )

    def _place(self, program, rest):
        """Where in the box a process runs: `rest` is its name without the program."""
        if program == "coordinator":
            return self.box.hub
        return rest if program == "agent" else rest.rpartition("-")[0]

    def _wait_for(self, ready_file, name):
        give_up = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < give_up:
            if ready_file.exists() and ready_file.read_text().endswith("\n"):
                return ready_file.read_text()
            self.check()
            time.sleep(0.05)
        raise RunError(f"{name} was not ready after {READY_TIMEOUT_S} s.\n{self.log_tail(name)}")

    def log_tail(self, name, lines=12):
        """The end of a process's output, each line with its name."""
        text = self.log_file(name).read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {name}: {line}" for line in text)

    def check(self):
        """Raises RunError, with the end of its log, if a process has failed."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                raise RunError(
                    f"{name} ended with exit code {process.returncode}.\n{self.log_tail(name)}"
                )

    def trainers_done(self):
        """Whether every trainer has ended well."""
        return all(
            process.poll() == 0
            for name, process in self.processes.items()
            if name.startswith("trainer")
        )

    def summaries(self):
        """What each node reached, by node name."""
        result = {}
        for node in self.ranks:
            if not self.summary_file(node).exists():
                tail = self.log_tail(f"trainer-{node}-0")
                raise RunError(f"node {node} wrote no summary.\n{tail}")
            result[node] = json.loads(self.summary_file(node).read_text())
        return result

    def stop(self):
        """Asks every process that still runs to end, then makes it."""
        for ask in (signal.SIGTERM, signal.SIGKILL):
            alive = [p for p in self.processes.values() if p.poll() is None]
            for process in alive:
                try:
                    os.killpg(process.pid, ask)
                except ProcessLookupError:
                    pass
            give_up = time.monotonic() + STOP_TIMEOUT_S
            for process in alive:
                try:
                    process.wait(max(0.1, give_up - time.monotonic()))
                except subprocess.TimeoutExpired:
                    print(f"process {process.pid} did not end in time", file=sys.stderr)


class MetricsTail:
    """Follows a file of JSON lines as it grows."""

    def __init__(self, path):
        self.path = Path(path)
        self.position = 0

    def new_lines(self):
        """The complete lines that were added since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.position)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self.position += end
        return [json.loads(line) for line in data[:end].splitlines() if line.strip()]
