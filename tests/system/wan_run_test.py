"""Whole runs over links that lose, delay and break."""

from wan_box import Link
from wan_case import WanCase
from xml_report import main

FAR = Link(rate_mbit=10, rtt_ms=40, loss=0.01)
# What no one sees above TCP, whose checksum finds a flipped bit.
BAD = Link(rate_mbit=10, rtt_ms=10, reorder=0.05, duplicate=0.05, corrupt=0.02)


class WanRun(WanCase):
    def start(self, ranks, steps, link=FAR):
        """A run in which each node has such a link; returns its cluster."""
        cluster = self.cluster(ranks, steps=steps)
        cluster.box = self.box({node: link for node in ranks})
        # Ends before the box does, which takes the network away from under it.
        self.addCleanup(cluster.stop)
        cluster.start(self.text)
        return cluster

    def test_loss_and_delay_change_no_bit(self):
        cluster = self.start({"a": 1, "b": 1}, steps=30)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertGreater(cluster.box.stats("a")["up"]["lost"], 0)
        print(summaries, cluster.box.stats("a"))

    def test_reordered_doubled_and_damaged_packets_change_no_bit(self):
        cluster = self.start({"a": 1, "b": 1}, steps=20, link=BAD)
        self.assert_replicas_equal(self.finish(cluster))
        counts = cluster.box.stats("a")["up"]
        for what in ("reordered", "duplicated", "corrupted"):
            self.assertGreater(counts[what], 0, counts)

    def test_a_node_of_one_rank_and_one_of_two_end_equal(self):
        cluster = self.start({"a": 1, "b": 2}, steps=12, link=Link(rate_mbit=100, rtt_ms=10))
        self.assert_replicas_equal(self.finish(cluster))

    def test_ranks_on_two_hosts_below_one_agent(self):
        """Two of four ranks are on another host and reach their agent and the others over TCP."""
        cluster = self.cluster({"a": 1, "b": 4}, steps=12)
        near = Link(rate_mbit=1000, rtt_ms=0.5)
        cluster.box = self.box({"a": FAR, "b": FAR, "b-host2": near})
        self.addCleanup(cluster.stop)
        host = cluster.box.site_address("b")
        agent = f"{host}:7171"
        cluster.flags["agent-b"] = [
            f"--listen=unix:{cluster.folder}/b.sock,{agent}",
            "--allow_plaintext",
        ]
        for rank in range(4):
            cluster.flags[f"trainer-b-{rank}"] = [f"--master_addr={host}"]
        for rank in (2, 3):
            cluster.flags[f"trainer-b-{rank}"].append(f"--agent={agent}")
            cluster.places[f"trainer-b-{rank}"] = "b-host2"
        cluster.start(self.text)
        self.assert_replicas_equal(self.finish(cluster))
        for site, direction in (("b", "up"), ("b-host2", "up")):
            self.assertGreater(cluster.box.stats(site)[direction]["passed"], 100)

    def heals(self, direction):
        """Cuts node b off until its lease has ended; the run still ends with equal parameters."""
        cluster = self.start({"a": 1, "b": 1}, steps=24, link=Link(rate_mbit=10, rtt_ms=20))
        self.wait_step(cluster, "b", 4)
        cluster.box.partition("b", direction)
        self.wait_log(cluster, "coordinator", "lease ended: the node was not heard of node=b")
        cluster.box.heal("b")
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertEqual(summaries["b"]["rounds"], 24)

    def test_a_partition_heals(self):
        self.heals("both")

    def test_a_partition_towards_the_coordinator_heals(self):
        self.heals("up")

    def test_a_partition_towards_the_node_heals(self):
        self.heals("down")


if __name__ == "__main__":
    main()
