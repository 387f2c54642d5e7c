"""What the tests with real processes share: a small run, and ways to wait for it."""

import os
import random
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(os.environ["TEST_SRCDIR"]) / os.environ["TEST_WORKSPACE"]
sys.path.insert(0, str(ROOT / "tools"))

from demo_cluster import Cluster, programs  # noqa: E402

BINARIES = programs(ROOT)
WAIT_S = 50

SPEC = """\
run: "small"
seed: 7
steps: {steps}
quorum: {quorum}
deterministic: {deterministic}
nodes {{ name: "a" }}
nodes {{ name: "b" }}
model {{ layers: 1 heads: 2 width: 64 context: 32 vocab: 256 {frozen} }}
data {{ sequences_per_node: 4 eval_sequences: 8 }}
optimizer {{ lr: 0.004 warmup_steps: 2 clip_norm: 1.0 }}
timing {{ lease_ms: {lease_ms} heartbeat_ms: 300 grace_ms: 2000 deadline_ms: {deadline_ms} }}
"""
WORDS = "the round waits for a node that sends its part and says so in words".split()


class SystemCase(unittest.TestCase):
    """A folder of its own, a text to train on, and no process left behind."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="isthmus-test-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.text = self.write_text("text", seed=1)

    def write_text(self, name, seed):
        """A file of 40,000 random words; the seed makes it."""
        draw = random.Random(seed)
        path = self.folder / name
        path.write_text(" ".join(draw.choice(WORDS) for _ in range(40_000)))
        return path

    def cluster(
        self,
        ranks,
        steps=12,
        quorum=0,
        deadline_ms=0,
        lease_ms=3000,
        frozen=None,
        deterministic=False,
        name="run",
        more="",
    ):
        """A run of nodes a and b that is stopped when the test ends, in a folder with a name.

        `more`: further lines of its spec.
        """
        folder = self.folder / name
        folder.mkdir()
        text = SPEC.format(
            steps=steps,
            quorum=quorum,
            deadline_ms=deadline_ms,
            lease_ms=lease_ms,
            deterministic=str(deterministic).lower(),
            frozen=f'frozen: "{frozen}"' if frozen else "",
        )
        cluster = Cluster(BINARIES, folder, text + more, ranks)
        self.addCleanup(cluster.stop)
        return cluster

    def wait_until(self, condition, what):
        """Waits for a condition; fails with `what` after WAIT_S seconds."""
        give_up = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > give_up:
                self.fail(f"waited {WAIT_S} s for {what}")
            time.sleep(0.02)  # tidy-allow: between two looks at the condition

    def wait_exit(self, cluster, name):
        """Waits for a process to end; returns (exit code, its output)."""
        process = cluster.processes[name]
        self.wait_until(lambda: process.poll() is not None, f"{name} to end")
        return process.returncode, cluster.log_file(name).read_text(errors="replace")

    def wait_log(self, cluster, name, text):
        """Waits for a text in the output of a process, of the last one of that name."""
        try:
            self.wait_until(
                lambda: text in cluster.output(name), f"'{text}' in the output of {name}"
            )
        except self.failureException:
            for other in cluster.processes:
                print(f"--- {other}\n{cluster.output(other)[-2000:]}")
            raise

    def wait_step(self, cluster, node, step):
        """Waits until rank 0 of a node has done a step."""
        metrics = cluster.metrics_file(node, 0)
        wanted = f'"step":{step},'

        def reached():
            return metrics.exists() and wanted in metrics.read_text().replace(" ", "")

        self.wait_until(reached, f"step {step} of node {node}")

    def finish(self, cluster):
        """Waits for all trainers to end well; returns the summaries."""

        def done():
            cluster.check()
            return cluster.trainers_done()

        self.wait_until(done, "the trainers to finish")
        return cluster.summaries()

    def assert_replicas_equal(self, summaries):
        """All nodes hold the same state."""
        self.assertEqual(len({s["state_sha256"] for s in summaries.values()}), 1, summaries)

    @staticmethod
    def kill(process, how=signal.SIGKILL):
        """Sends a signal and, for SIGKILL, reaps."""
        process.send_signal(how)
        if how == signal.SIGKILL:
            process.wait()
