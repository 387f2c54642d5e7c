"""A run whose processes are killed at random ends as one that nobody disturbed, bit for bit."""

import random
import sys
import time

from system_case import ROOT, SystemCase
from xml_report import main

sys.path.insert(0, str(ROOT / "tools"))

from chaos import SupervisedRun, kill_at_random  # noqa: E402

ROUNDS = 40
LIMIT_S = 55


class Chaos(SystemCase):
    def test_a_run_with_kills_ends_as_one_without(self):
        self.disturb()

    def test_with_two_rounds_under_way_too(self):
        self.disturb("overlap: 1")

    def disturb(self, more=""):
        """The same run without kills and with them. `more`: lines of its spec."""
        deadline = time.monotonic() + LIMIT_S
        seed = random.randrange(10**6)
        print(f"seed {seed}", flush=True)
        kinds = {"coordinator": 2, "agent": 2, "rank": 2}
        states = {}
        for kills in ({}, kinds):
            name = "disturbed" if kills else "undisturbed"
            cluster = self.cluster(
                {"a": 1, "b": 2}, steps=ROUNDS, deterministic=True, name=name, more=more
            )
            run = SupervisedRun(cluster, self.text, checkpoint_every=4)
            run.start()
            done = kill_at_random(run, random.Random(seed), kills, ROUNDS, deadline, print)
            self.assertEqual(dict(done), kills)
            summaries = run.wait_finished(deadline)
            self.assert_replicas_equal(summaries)
            for summary in summaries.values():
                self.assertEqual(summary["fresh_residuals"], 0, summaries)
            states[name] = summaries["a"]["state_sha256"]
            cluster.stop()
        self.assertEqual(states["disturbed"], states["undisturbed"])


if __name__ == "__main__":
    main()
