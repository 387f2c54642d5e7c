"""Processes that die in the middle of a run."""

import signal

from system_case import SystemCase
from xml_report import main


class Faults(SystemCase):
    def test_killed_agent_comes_back_within_the_run(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=60)
        cluster.start(self.text)
        self.wait_step(cluster, "a", 5)
        self.kill(cluster.processes["agent-b"])
        cluster.start_agent("b")
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertEqual(summaries["b"]["rounds"], 60)

    def test_status_names_the_rank_that_is_missing(self):
        cluster = self.cluster({"a": 1, "b": 2}, steps=100000)
        cluster.start(self.text)
        self.wait_step(cluster, "a", 3)
        self.kill(cluster.processes["trainer-b-1"])
        self.wait_log(cluster, "coordinator", "b (left: rank 1 of 2 disconnected; rank 0: ")

    def test_quorum_of_one_goes_on_without_a_lost_node(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=40, quorum=1, deadline_ms=2000)
        cluster.start(self.text)
        self.wait_step(cluster, "b", 3)
        self.kill(cluster.processes.pop("trainer-b-0"))
        self.kill(cluster.processes.pop("agent-b"))
        trainer = cluster.processes["trainer-a-0"]
        self.wait_until(lambda: trainer.poll() is not None, "node a to finish alone")
        self.assertEqual(trainer.returncode, 0)

    def test_a_rank_alone_ends_when_its_sibling_does_not_come_back(self):
        cluster = self.cluster({"a": 1, "b": 2}, steps=100000)
        cluster.start(self.text)
        self.wait_step(cluster, "b", 3)
        # Frozen, node a sends nothing, so the ranks of b end up waiting for the round.
        frozen = cluster.processes["trainer-a-0"]
        frozen.send_signal(signal.SIGSTOP)
        self.addCleanup(frozen.send_signal, signal.SIGCONT)
        self.wait_log(cluster, "coordinator", ": waiting for a")
        self.kill(cluster.processes["trainer-b-1"])
        code, output = self.wait_exit(cluster, "trainer-b-0")
        self.assertEqual(code, 1)
        self.assertIn("rank 1 of 2 disconnected", output)
        self.wait_log(cluster, "coordinator", "node left node=b")

    def test_trainers_started_again_catch_up_and_end_equal(self):
        cluster = self.cluster({"a": 1, "b": 2}, steps=40)
        cluster.start(self.text)
        self.wait_step(cluster, "b", 3)
        self.kill(cluster.processes["trainer-b-1"])
        self.wait_exit(cluster, "trainer-b-0")
        cluster.start_trainers("b", self.text)
        self.assert_replicas_equal(self.finish(cluster))


if __name__ == "__main__":
    main()
