"""Whole runs with real processes: coordinator, agents, trainers."""

import signal
import time

from system_case import SystemCase
from xml_report import main


class EndToEnd(SystemCase):
    def test_two_nodes_of_two_ranks_end_equal(self):
        cluster = self.cluster({"a": 2, "b": 2})
        cluster.start(self.text)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        for summary in summaries.values():
            self.assertEqual(summary["rounds"], 12)
            self.assertLess(summary["val_loss"], summary["start_loss"])
            self.assertGreater(summary["up_bytes_per_round"], 0)
            self.assertLess(summary["up_bytes_per_round"], summary["dense_bytes_per_round"])
        print(summaries)

    def test_nodes_of_one_and_four_ranks_end_equal(self):
        cluster = self.cluster({"a": 1, "b": 4})
        cluster.start(self.text)
        self.assert_replicas_equal(self.finish(cluster))

    def test_sigterm_ends_every_process_within_five_seconds(self):
        cluster = self.cluster({"a": 2, "b": 2}, steps=100000)
        cluster.start(self.text)
        self.wait_step(cluster, "a", 3)
        begun = time.monotonic()
        for process in cluster.processes.values():
            process.send_signal(signal.SIGTERM)
        for name in list(cluster.processes):
            code, output = self.wait_exit(cluster, name)
            self.assertEqual(code, 0, f"{name}: {output}")
        self.assertLess(time.monotonic() - begun, 5.0)
        self.assertEqual(list(cluster.folder.glob("*.sock")), [])


if __name__ == "__main__":
    main()
