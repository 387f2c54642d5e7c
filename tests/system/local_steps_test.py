"""Runs with local steps and real processes: replicas equal, loss falls, crashes change nothing."""

import random
import sys
import time

from system_case import ROOT, SystemCase
from xml_report import main

sys.path.insert(0, str(ROOT / "tools"))

from chaos import SupervisedRun, kill_at_random  # noqa: E402

ROUNDS = 24
LOCAL_STEPS = 5
LIMIT_S = 55
SCHEDULE = f"schedule {{ local_steps: {LOCAL_STEPS} }}"
PLACEMENTS = ("PLACEMENT_HOSTED", "PLACEMENT_REPLICATED")
# What else can travel both ways. Lossy replies keep their error at the coordinator.
METHODS = {
    "int8": f'preset: "diloco" {SCHEDULE} codec {{ reply {{ format: NUMBER_FORMAT_INT8 }} }}',
    "sparse": f'preset: "sparse_loco" {SCHEDULE}',
    "sign": f'preset: "dist_sign_momentum_short" {SCHEDULE}',
    "lion": 'preset: "dist_lion"',
}


class LocalSteps(SystemCase):
    def local_cluster(self, name, placement, ranks, **more):
        """A run of diloco that exchanges ROUNDS times."""
        spec = f'preset: "diloco" {SCHEDULE} placement: {placement}'
        return self.cluster(ranks, steps=ROUNDS * LOCAL_STEPS, name=name, more=spec, **more)

    def test_nodes_of_one_and_two_ranks_end_equal_in_both_placements(self):
        states = set()
        for placement in PLACEMENTS:
            cluster = self.local_cluster(placement, placement, {"a": 1, "b": 2})
            cluster.start(self.text)
            summaries = self.finish(cluster)
            self.assert_replicas_equal(summaries)
            for summary in summaries.values():
                self.assertEqual(summary["rounds"], ROUNDS)
                self.assertEqual(summary["steps"], ROUNDS * LOCAL_STEPS)
                self.assertEqual(summary["dropped_deltas"], 0)
                self.assertLess(summary["val_loss"], summary["start_loss"])
            states.add(round(summaries["a"]["val_loss"], 9))
            cluster.stop()
        self.assertEqual(len(states), 1, "hosted and replicated give the same numbers")

    def test_other_methods_learn_and_end_equal(self):
        for name, spec in METHODS.items():
            with self.subTest(name):
                cluster = self.cluster({"a": 1, "b": 2}, steps=30, name=name, more=spec)
                cluster.start(self.text)
                summaries = self.finish(cluster)
                self.assert_replicas_equal(summaries)
                for summary in summaries.values():
                    self.assertEqual(summary["rounds"], 30 if name == "lion" else 6)
                    self.assertLess(summary["val_loss"], summary["start_loss"])
                cluster.stop()

    def test_a_run_with_kills_ends_as_one_without(self):
        deadline = time.monotonic() + LIMIT_S
        seed = random.randrange(10**6)
        print(f"seed {seed}", flush=True)
        kinds = {"coordinator": 1, "agent": 1, "rank": 1}
        states = {}
        for kills in ({}, kinds):
            name = "disturbed" if kills else "undisturbed"
            cluster = self.local_cluster(
                name, "PLACEMENT_HOSTED", {"a": 1, "b": 2}, deterministic=True
            )
            run = SupervisedRun(cluster, self.text, checkpoint_every=2)
            run.start()
            done = kill_at_random(
                run, random.Random(seed), kills, ROUNDS * LOCAL_STEPS, deadline, print
            )
            self.assertEqual(dict(done), kills)
            summaries = run.wait_finished(deadline)
            self.assert_replicas_equal(summaries)
            for summary in summaries.values():
                self.assertEqual(summary["fresh_residuals"], 0, summaries)
                self.assertEqual(summary["dropped_deltas"], 0, summaries)
            states[name] = summaries["a"]["state_sha256"]
            cluster.stop()
        self.assertEqual(states["disturbed"], states["undisturbed"])


if __name__ == "__main__":
    main()
