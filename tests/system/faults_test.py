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
        # What rank 0 says follows where it was in a collective, and not already waiting for us.
        self.wait_log(cluster, "coordinator", "b (left: rank 1 of 2 disconnected")

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

    def checkpoint_flags(self, node):
        """A trainer's, in a folder of its node."""
        return [f"--checkpoint_dir={self.folder}/checkpoints-{node}", "--checkpoint_every=4"]

    def test_everything_is_killed_at_once_and_started_again(self):
        """R13, without deterministic mode: replicas stay equal, an old residual is not used."""
        cluster = self.cluster({"a": 1, "b": 2}, steps=30)
        nodes = list(cluster.ranks)
        cluster.start_coordinator()
        for again in (False, True):
            for node in nodes:
                cluster.start_agent(node)
                cluster.start_trainers(node, self.text, self.checkpoint_flags(node))
            if again:
                break
            self.wait_step(cluster, "a", 9)
            for process in cluster.processes.values():
                self.kill(process)
            cluster.processes.clear()
            cluster.start_coordinator()
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        for summary in summaries.values():
            self.assertGreaterEqual(summary["resumed_round"], 4, summaries)
            self.assertEqual(summary["steps"], 30)
            self.assertLessEqual(summary["fresh_residuals"], 1)

    def test_another_number_of_ranks_goes_on_from_the_checkpoint(self):
        """A node of two ranks goes on as one of a single rank, from where the two were."""
        cluster = self.cluster({"a": 1, "b": 2}, steps=30)
        cluster.start_coordinator()
        for node in cluster.ranks:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text, self.checkpoint_flags(node))
        self.wait_step(cluster, "b", 9)
        for name in ("trainer-b-0", "trainer-b-1", "agent-b"):
            self.kill(cluster.processes.pop(name))
        cluster.ranks["b"] = 1
        cluster.start_agent("b")
        cluster.start_trainers("b", self.text, self.checkpoint_flags("b"))
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertGreaterEqual(summaries["b"]["resumed_round"], 4, summaries)


if __name__ == "__main__":
    main()
