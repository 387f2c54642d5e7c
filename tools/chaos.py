"""A supervised run: whatever ends too early is started again, and somebody kills at random moments.

    run = SupervisedRun(cluster, text_file, checkpoint_every=5)
    run.start()
    kills = kill_at_random(run, random.Random(seed), {"agent": 15, "rank": 15}, rounds=200)
    run.wait_finished(deadline_s=60)

A supervisor is what systemd or a job scheduler does: it starts a process again as soon as it has
ended, and all ranks of a node together.
"""

import math
import os
import signal
import time
from collections import Counter

from demo_cluster import RunError, free_port

# So many starts of one thing without a step of the run in between are taken for a loop.
RESTARTS_MAX = 25
LOOK_S = 0.02
# Of a file of metrics: some lines of it.
TAIL_BYTES = 4096


class SupervisedRun:
    """The processes of a cluster, each with its name, kept alive until the run is finished."""

    def __init__(self, cluster, data_file, checkpoint_every):
        """`checkpoint_every`: rounds between two checkpoints of a trainer."""
        self.cluster = cluster
        self.data_file = data_file
        self.checkpoint_every = checkpoint_every
        self.step = 0
        self.restarts = Counter()
        self.restarts_since_step = Counter()

    def start(self):
        """Starts everything."""
        self.cluster.start_coordinator()
        for node in self.cluster.ranks:
            self.cluster.start_agent(node, wait=False)
            self._start_trainers(node)

    def _start_trainers(self, node):
        folder = self.cluster.folder / f"checkpoints-{node}"
        flags = [f"--checkpoint_dir={folder}", f"--checkpoint_every={self.checkpoint_every}"]
        port = free_port()
        for rank in range(self.cluster.ranks[node]):
            self.cluster.start_trainer(node, rank, port, self.data_file, flags)

    def _trainers(self, node):
        names = [f"trainer-{node}-{rank}" for rank in range(self.cluster.ranks[node])]
        return [self.cluster.processes[name] for name in names]

    def finished(self):
        """Whether every trainer has ended well."""
        return self.cluster.trainers_done()

    def look(self):
        """One look of the supervisor: starts again what has ended, and sees how far the run is."""
        for node in self.cluster.ranks:
            self._see_step(node)
        if self.cluster.processes["coordinator"].poll() is not None and not self.finished():
            self._count("coordinator")
            self.cluster.spawn_coordinator()
        for node in self.cluster.ranks:
            trainers = self._trainers(node)
            codes = [process.poll() for process in trainers]
            if all(code == 0 for code in codes):
                continue
            if self.cluster.processes[f"agent-{node}"].poll() is not None:
                self._count(f"agent-{node}")
                self.cluster.start_agent(node, wait=False)
            if any(code not in (None, 0) for code in codes):
                self._count(f"trainer-{node}")
                for process in trainers:
                    kill(process)
                self._start_trainers(node)

    def _count(self, name):
        self.restarts[name] += 1
        self.restarts_since_step[name] += 1
        if self.restarts_since_step[name] > RESTARTS_MAX:
            tails = "\n".join(self.cluster.log_tail(n) for n in self.cluster.processes)
            raise RunError(
                f"{name} was started {RESTARTS_MAX} times since step {self.step}.\n{tails}"
            )

    def _see_step(self, node):
        """The files begin anew with each trainer group; the run does not go back."""
        try:
            with open(self.cluster.metrics_file(node, 0), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()[1:]
        except OSError:
            return
        # The first and the last line may be cut.
        steps = [int(line.split('"step":')[1].split(",")[0]) for line in lines[-2:-1] if line]
        if steps and steps[-1] > self.step:
            self.step = steps[-1]
            self.restarts_since_step.clear()

    def wait_step(self, step, deadline):
        """Looks until the run has done a step; `deadline` is of time.monotonic()."""
        while self.step < step and not self.finished():
            self.look()
            self._check(deadline, f"step {step}")
            time.sleep(LOOK_S)

    def wait_seconds(self, seconds, step=math.inf):
        """Looks for so long, or until the run has done a step."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.step < step:
            self.look()
            time.sleep(LOOK_S)

    def wait_finished(self, deadline):
        """Looks until every trainer has ended well; returns what each node reached."""
        while not self.finished():
            self.look()
            self._check(deadline, "the end")
            time.sleep(LOOK_S)
        return self.cluster.summaries()

    def _check(self, deadline, what):
        if time.monotonic() < deadline:
            return
        tails = "\n".join(self.cluster.log_tail(name) for name in self.cluster.processes)
        raise RunError(f"the run was at step {self.step} when time was up for {what}.\n{tails}")

    def victims(self, kind):
        """Names of the processes of a kind: coordinator, agent or rank."""
        prefix = {"coordinator": "coordinator", "agent": "agent-", "rank": "trainer-"}[kind]
        return sorted(name for name in self.cluster.processes if name.startswith(prefix))


def kill(process):
    """SIGKILL, to a process that may have ended."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def kill_at_random(run, draw, wanted, rounds, deadline, say=lambda text: None):
    """Kills `wanted[kind]` processes of each kind while the run has its rounds; returns the counts.

    Kills are spread over the rounds. One in four comes while the one before is still being got
    over.
    """
    kinds = [kind for kind, number in wanted.items() for _ in range(number)]
    draw.shuffle(kinds)
    done = Counter()
    for number, kind in enumerate(kinds):
        if number == 0 or draw.random() >= 0.25:
            run.wait_step(1 + number * (rounds - 10) // len(kinds), deadline)
        # Where rounds are fast, not so long that the rounds end before the kills do.
        run.wait_seconds(draw.uniform(0, 0.5), 1 + (number + 1) * (rounds - 10) // len(kinds))
        if run.finished():
            break
        name = draw.choice(run.victims(kind))
        process = run.cluster.processes[name]
        if process.poll() is not None:
            run.look()
            process = run.cluster.processes[name]
        say(f"step {run.step:4}: kill -9 {name}")
        kill(process)
        done[kind] += 1
    return done
