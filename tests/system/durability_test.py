"""The coordinator is killed at its writes, and the run ends as if nothing had happened.

strace kills it at the Nth call that writes or syncs. Each point is one life of the coordinator: it
starts on what the last one left, and dies at its own N. A sample of points runs here; all of them:

    bazel test --test_env=ISTHMUS_KILL_POINTS=all --test_timeout=1800 //tests/system:durability_test

A number in place of "all": so many.
"""

import os
import shutil
import signal
import subprocess
import time
import unittest

from system_case import BINARIES, SystemCase
from xml_report import main

# What changes a file. Lines of the log go by `write` too, and are points like the others.
CALLS = "write,pwrite64,fdatasync,fsync,rename,ftruncate,fallocate"
ASKED = os.environ.get("ISTHMUS_KILL_POINTS", "")
ALL = ASKED == "all"
# strace counts the calls of each thread by itself. The main thread makes about 30 in a start, the
# one that commits 2 in a round: at the last point of all it has made a run of 20 rounds by itself.
# The sum of all lives has to fit into the run.
LAST_POINT = 60
POINTS = list(range(1, LAST_POINT + 1)) if ALL else [2, 9, 17, 25, 31, 36, 41]
STEPS = 1500 if ALL else 100
if ASKED.isdecimal():  # so many points, at equal distances
    POINTS = [LAST_POINT * number // int(ASKED) for number in range(1, int(ASKED) + 1)]
    STEPS = 25 * len(POINTS)


def strace(point, output):
    """The command that kills what follows it at its `point`-th call."""
    return [
        "strace", "-f", "-qq", "-o", str(output),
        "-e", f"trace={CALLS}", "-e", f"inject={CALLS}:signal=SIGKILL:when={point}",
    ]  # fmt: skip


@unittest.skipUnless(shutil.which("strace"), "strace is not installed")
class Durability(SystemCase):
    def undisturbed(self):
        """State and last loss of the run without kills."""
        cluster = self.cluster({"a": 1, "b": 1}, steps=STEPS)
        cluster.start(self.text)
        summaries = self.finish(cluster)
        cluster.stop()
        shutil.rmtree(self.folder / "run")
        return summaries

    def check_store(self, cluster):
        """The state folder of a coordinator that has ended is sound; returns what was said."""
        command = [BINARIES["coordinator"], f"--check_store={cluster.coordinator_state()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_killed_at_its_writes_the_run_ends_bit_equal(self):
        expected = self.undisturbed()
        cluster = self.cluster({"a": 1, "b": 1}, steps=STEPS)
        cluster.start_coordinator()
        for node in cluster.ranks:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        self.wait_step(cluster, "a", 2)
        self.kill(cluster.processes.pop("coordinator"))
        kills = 1
        for point in POINTS:
            cluster.spawn_coordinator(under=strace(point, self.folder / "strace"))
            process = cluster.processes.pop("coordinator")
            self.wait_until(
                lambda p=process: p.poll() is not None or cluster.trainers_done(),
                f"the coordinator to be killed at call {point}",
            )
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            self.assertEqual(process.returncode, -signal.SIGKILL, point)
            kills += 1
            self.check_store(cluster)
        self.assertTrue(ALL or kills == len(POINTS) + 1, f"the run ended after {kills} kills")
        begin = time.monotonic()
        cluster.start_coordinator()
        ready_s = time.monotonic() - begin
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        for node, summary in summaries.items():
            self.assertEqual(summary["state_sha256"], expected[node]["state_sha256"])
            self.assertEqual(summary["rounds"], STEPS)
        cluster.stop()
        self.assertIn(f"rounds 1 to {STEPS}", self.check_store(cluster))
        self.assertLess(ready_s, 2.0)
        print(f"{kills} kills of {len(POINTS) + 1}, serving again in {ready_s:.3f} s")

    def test_a_failed_sync_ends_it_and_a_start_goes_on(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=40)
        fault = "inject=fdatasync:error=EIO:when=15"
        command = ["strace", "-f", "-qq", "-o", self.folder / "strace", "-e", fault]
        cluster.start_coordinator(under=[*command, "-e", "trace=fdatasync"])
        for node in cluster.ranks:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        code, output = self.wait_exit(cluster, "coordinator")
        self.assertEqual(code, 3, output)
        self.assertIn("the disk failed", output)
        cluster.start_coordinator()
        self.assert_replicas_equal(self.finish(cluster))

    def test_another_spec_is_refused(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=STEPS)
        cluster.start(self.text)
        self.wait_step(cluster, "a", 2)
        self.kill(cluster.processes.pop("coordinator"))
        cluster.spec_file.write_text(cluster.spec_file.read_text().replace("0.004", "0.005"))
        cluster.spawn_coordinator()
        code, output = self.wait_exit(cluster, "coordinator")
        self.assertEqual(code, 1)
        self.assertIn("optimizer.lr is 0.004 there and 0.005 here", output)


if __name__ == "__main__":
    main()
