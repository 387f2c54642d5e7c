"""Local steps with real processes: replies with and without loss, kills, a node that is held up."""

import json
import random
import signal
import sys
import time

from system_case import ROOT, SystemCase
from xml_report import main

sys.path.insert(0, str(ROOT / "tools"))

from chaos import SupervisedRun, kill_at_random  # noqa: E402

ROUNDS = 24
LOCAL_STEPS = 5
LIMIT_S = 55
DILOCO = f'preset: "diloco" schedule {{ local_steps: {LOCAL_STEPS} }} '


class LocalSteps(SystemCase):
    def test_nodes_of_one_and_two_ranks_end_equal(self):
        for number_format in ("F32", "INT8"):
            cluster = self.cluster(
                {"a": 1, "b": 2},
                steps=ROUNDS * LOCAL_STEPS,
                name=number_format,
                more=f"{DILOCO} codec {{ reply {{ format: NUMBER_FORMAT_{number_format} }} }}",
            )
            cluster.start(self.text)
            summaries = self.finish(cluster)
            self.assert_replicas_equal(summaries)
            for summary in summaries.values():
                self.assertEqual(summary["rounds"], ROUNDS)
                self.assertEqual(summary["steps"], ROUNDS * LOCAL_STEPS)
                self.assertEqual(summary["skipped_steps"], 0)
                self.assertEqual(summary["dropped_deltas"], 0)
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
            steps = ROUNDS * LOCAL_STEPS
            cluster = self.cluster(
                {"a": 1, "b": 2}, steps=steps, deterministic=True, name=name, more=DILOCO
            )
            run = SupervisedRun(cluster, self.text, checkpoint_every=2)
            run.start()
            done = kill_at_random(run, random.Random(seed), kills, steps, deadline, print)
            self.assertEqual(dict(done), kills)
            summaries = run.wait_finished(deadline)
            self.assert_replicas_equal(summaries)
            for summary in summaries.values():
                self.assertEqual(summary["fresh_residuals"], 0, summaries)
                self.assertEqual(summary["dropped_deltas"], 0, summaries)
            states[name] = summaries["a"]["state_sha256"]
            cluster.stop()
        self.assertEqual(states["disturbed"], states["undisturbed"])

    def test_a_node_that_is_held_up_takes_part_again(self):
        cluster = self.cluster(
            {"a": 1, "b": 2}, steps=10**5, quorum=1, deadline_ms=300, more=DILOCO
        )
        cluster.start(self.text)

        def rounds_of(node, included=""):
            file = cluster.metrics_file(node, 0)
            return file.read_text().count(f'"included":{included}') if file.exists() else 0

        self.wait_until(lambda: rounds_of("b", "true") > 2, "contributions of b")
        trainers = [cluster.processes[f"trainer-b-{rank}"] for rank in range(2)]
        for process in trainers:
            self.kill(process, signal.SIGSTOP)
        alone, together = rounds_of("a"), rounds_of("b", "true")
        # The round that is open may have b's part already; those after it have not.
        self.wait_until(lambda: rounds_of("a") > alone + 3, "rounds without b")
        for process in trainers:
            self.kill(process, signal.SIGCONT)
        self.wait_until(lambda: rounds_of("b", "true") > together + 2, "contributions of b again")
        lines = cluster.metrics_file("b", 0).read_text().splitlines()
        last = json.loads(lines[-2])  # the last one may be half written
        print({key: last[key] for key in ("skipped_steps", "carried_rounds", "dropped_deltas")})
        self.assertGreater(last["skipped_steps"], 0)
        cluster.check()


if __name__ == "__main__":
    main()
