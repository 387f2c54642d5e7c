"""Nodes that start from a snapshot: late, lost, or not the one named; and a run that moves."""

import shutil
import signal

from system_case import SystemCase
from xml_report import main

SNAPSHOTS = "snapshot { every_rounds: 10 }\n"


class Snapshots(SystemCase):
    def start_node(self, cluster, node, more_flags=()):
        """An agent and its trainers."""
        cluster.start_agent(node)
        cluster.start_trainers(node, self.text, more_flags)

    def wait_snapshot(self, cluster, count=1):
        """Waits until the coordinator has kept so many."""
        self.wait_until(
            lambda: cluster.output("coordinator").count("snapshot kept") >= count,
            f"{count} snapshots",
        )

    def test_a_node_that_comes_late_starts_from_a_snapshot(self):
        more = SNAPSHOTS + 'nodes { name: "late" }\npreset: "full"\n'
        cluster = self.cluster({"a": 1, "b": 2, "late": 2}, steps=300, quorum=2, more=more)
        # Updates go soon, so that there is no other way in.
        cluster.start_coordinator("--keep_rounds=12")
        # Its trainers load meanwhile, and wait for their agent.
        cluster.start_trainers("late", self.text)
        self.start_node(cluster, "a")
        self.start_node(cluster, "b")
        self.wait_snapshot(cluster, 3)
        cluster.start_agent("late")
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        late = summaries["late"]
        self.assertGreaterEqual(late["snapshot_round"], 30)
        self.assertEqual(late["snapshot_round"] + late["rounds"], 300)
        self.assertGreater(late["tokens"], 0)  # it took part

    def test_a_late_node_starts_from_what_the_coordinator_hosts(self):
        more = 'preset: "diloco"\nschedule { local_steps: 3 }\nsnapshot { every_rounds: 5 }\n'
        more += 'codec { reply { format: NUMBER_FORMAT_INT8 } }\nnodes { name: "late" }\n'
        cluster = self.cluster({"a": 1, "b": 2, "late": 1}, steps=240, quorum=2, more=more)
        cluster.start_coordinator("--keep_rounds=6")
        # What it builds is another state than that of the run, which starts with a's.
        cluster.start_trainers("late", self.text)
        self.start_node(cluster, "a")
        self.start_node(cluster, "b")
        self.wait_snapshot(cluster, 4)
        # A coordinator that starts again steps on with the very bits (its replay checks them).
        self.kill(cluster.processes["coordinator"])
        cluster.start_coordinator("--keep_rounds=6")
        cluster.start_agent("late")
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        late = summaries["late"]
        self.assertGreaterEqual(late["snapshot_round"], 15)
        self.assertEqual(late["snapshot_round"] + late["rounds"], 80)

    def test_a_node_that_was_cut_off_for_long_takes_part_again(self):
        # With b's lease short, most rounds pass after its end: until then no snapshot counts
        # without b's word.
        cluster = self.cluster(
            {"a": 1, "b": 2}, steps=700, quorum=1, deadline_ms=300, lease_ms=1000, more=SNAPSHOTS
        )
        cluster.start_coordinator("--keep_rounds=12")
        self.start_node(cluster, "a")
        self.start_node(cluster, "b")
        # Whichever rounds it came in time for.
        metrics = cluster.metrics_file("b", 0)
        self.wait_until(
            lambda: metrics.exists() and metrics.read_text().count('"included":true') >= 3,
            "contributions of b",
        )
        # Its trainers live on and wait, as behind a cut link.
        agent = cluster.processes["agent-b"]
        agent.send_signal(signal.SIGSTOP)
        self.addCleanup(agent.send_signal, signal.SIGCONT)
        self.wait_snapshot(cluster, 6)
        agent.send_signal(signal.SIGCONT)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertGreaterEqual(summaries["b"]["snapshot_round"], 30)

    def test_a_run_starts_from_the_state_of_the_node_it_names(self):
        more = 'snapshot { start_node: "b" }\n'
        first = self.cluster({"a": 1, "b": 1}, steps=12, name="first")
        first.start_coordinator()
        for node in first.ranks:
            save = [f"--save={self.folder}/start-{node}"]
            self.start_node(first, node, save)
        self.finish(first)

        cluster = self.cluster({"a": 1, "b": 2}, steps=12, more=more, name="second")
        cluster.start_coordinator()
        self.start_node(cluster, "a")  # built from the seed: another state
        self.wait_log(cluster, "agent-a", "waits for the state of node 'b'")
        self.start_node(cluster, "b", [f"--start_file={self.folder}/start-b"])
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertEqual(summaries["a"]["rounds"], 12)
        self.assertEqual(summaries["a"]["steps"], 12)

    def test_everything_stops_and_goes_on_at_other_addresses(self):
        cluster = self.cluster({"a": 1, "b": 2}, steps=60)

        def start():
            cluster.start_coordinator()
            for node in cluster.ranks:
                checkpoints = [f"--checkpoint_dir={cluster.folder}/checkpoints-{node}"]
                self.start_node(cluster, node, [*checkpoints, "--checkpoint_every=4"])

        start()
        self.wait_step(cluster, "a", 9)
        cluster.stop()
        old_address, cluster.address = cluster.address, None
        cluster.processes.clear()
        moved = self.folder / "moved"
        ignored = shutil.ignore_patterns("*.sock", "*.ready", "metrics-*")
        shutil.copytree(cluster.folder, moved, ignore=ignored)
        shutil.rmtree(cluster.folder)
        cluster.folder = moved
        cluster.spec_file = moved / cluster.spec_file.name
        start()
        self.assertNotEqual(cluster.address, old_address)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        for summary in summaries.values():
            self.assertGreaterEqual(summary["resumed_round"], 4, summaries)
            self.assertEqual(summary["steps"], 60)


if __name__ == "__main__":
    main()
