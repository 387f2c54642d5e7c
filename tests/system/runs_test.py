"""isthmusctl runs create, update, pause, resume and fork, with real processes."""

import signal
import subprocess

from ctl_test import Ctl, tensors
from system_case import BINARIES, SPEC
from xml_report import main


class Runs(Ctl):
    def run_view(self, cluster, name="small"):
        """The run as `runs show --json` has it."""
        return self.ctl_json("runs", "show", name, address=cluster.address)["run"]

    def test_a_pause_and_an_update_hold_over_a_restart(self):
        cluster = self.running()
        address = cluster.address
        said = self.ctl("runs", "pause", "small", "--reason=new cables", address=address)
        print(said)
        self.assertIn("The run pauses.", said)
        shown = self.wait_show(cluster, "is paused (new cables)", "isthmusctl runs resume small")
        print(shown)
        paused = self.run_view(cluster)
        committed = int(paused["committedRound"])
        self.assertEqual(paused["state"], "RUN_STATE_PAUSED")

        words = ("runs", "update", "small", "optimizer.lr=0.0005", "optimizer.lr_final_ratio=1")
        would = self.ctl(*words, "--dry_run", address=address)
        self.assertIn(f"Revision 2 of run small would hold from round {committed + 1:,}", would)
        said = self.ctl(*words, address=address)
        print(said)
        self.assertIn("optimizer.lr: 0.004 -> 0.0005", said)
        refused = self.ctl("runs", "update", "small", "seed=3", "steps=5", address=address, code=1)
        self.assertIn("a run keeps seed (7 -> 3)", refused)

        self.kill(cluster.processes["coordinator"])
        cluster.start_coordinator()
        again = self.run_view(cluster)
        self.assertEqual(int(again["committedRound"]), committed)
        self.assertEqual(again["pauseReason"], "new cables")
        self.assertIn("goes on", self.ctl("runs", "resume", "small", address=address))
        self.wait_until(
            lambda: int(self.run_view(cluster)["committedRound"]) > committed + 2, "rounds"
        )
        print(self.ctl("runs", "show", "small", address=address))
        view = self.run_view(cluster)
        self.assertEqual(int(view["specRevision"]), 2)
        rounds = self.ctl_json("--limit=3", "rounds", "list", "small", address=address)["rounds"]
        for one in rounds:
            self.assertAlmostEqual(one["learningRate"], 0.0005, places=7)
        # Trainers hear of another end, too, and send more components of each chunk.
        end = int(self.run_view(cluster)["committedRound"]) + 300
        self.ctl(
            *("runs", "update", "small", f"steps={end}", "codec.matrix_density=0.02"),
            address=address,
        )
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertEqual({s["rounds"] for s in summaries.values()}, {end}, summaries)
        self.assert_store_is_sound(cluster, f"'small' of {end} rounds")

    def test_local_steps_take_another_rate_length_and_codec_and_end_sooner(self):
        cluster = self.cluster(
            {"a": 1, "b": 2}, steps=100000, more='preset: "diloco"\nschedule { local_steps: 3 }\n'
        )
        cluster.start(self.text)
        address = cluster.address
        self.wait_log(cluster, "trainer-b-0", "round 2")
        self.ctl(
            *("runs", "update", "small", "optimizer.lr=0.001", "outer.lr=0.25"), address=address
        )
        self.ctl(
            *("runs", "update", "small", "schedule.local_steps=2"),
            *("codec.numbers.format=NUMBER_FORMAT_INT8", "aggregate.carry_rounds=2"),
            address=address,
        )
        lossy = ("runs", "update", "small", "codec.reply.format=NUMBER_FORMAT_INT8")
        refused = self.ctl(*lossy, address=address, code=1)
        self.assertIn("stay with exact or with lossy replies", refused)
        self.wait_until(
            lambda: int(self.run_view(cluster)["specRevision"]) == 3, "a round of revision 3"
        )
        # The hosted model comes back by rounds of both revisions.
        self.kill(cluster.processes["coordinator"])
        cluster.start_coordinator()
        end = 3 * int(self.run_view(cluster)["committedRound"]) + 120
        self.ctl("runs", "update", "small", f"steps={end}", address=address)
        summaries = self.finish(cluster)
        self.assert_replicas_equal(summaries)
        self.assertEqual({s["steps"] for s in summaries.values()}, {end}, summaries)
        rounds = summaries["a"]["rounds"]
        self.assertGreater(rounds, end // 3)  # most of them have two steps
        # A fork takes the outer optimizer's state along, unless it has another one.
        said = self.ctl("runs", "fork", "small", "again", "steps=30", address=address)
        self.assertNotIn("It starts without", said)
        self.start_nodes(cluster, "again")
        self.assert_replicas_equal(self.finish(cluster))
        said = self.ctl(
            *("runs", "fork", "small", "plain", "steps=30", "outer.kind=OUTER_KIND_SGD"),
            "outer.momentum=",
            address=address,
        )
        print(said)
        self.assertIn("It starts without the outer optimizer's state, which starts at zero", said)
        self.assert_store_is_sound(cluster, f"'small' of {rounds} rounds")
        self.assert_store_is_sound(cluster, "'again' of 15 rounds", "/runs/again")

    def assert_store_is_sound(self, cluster, text, folder=""):
        """The coordinator ends, and its folder is checked."""
        if cluster.processes["coordinator"].poll() is None:
            self.kill(cluster.processes["coordinator"])
        command = [BINARIES["coordinator"], f"--check_store={cluster.coordinator_state()}{folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(text, done.stdout)
        self.assertIn("the run is finished", done.stdout)

    def test_a_run_is_created_and_one_is_forked_from_a_snapshot(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=8)
        cluster.start_coordinator()
        address = cluster.address
        other = self.folder / "other.txtpb"
        text = SPEC.format(
            steps=5, quorum=0, deadline_ms=0, lease_ms=3000, deterministic="false", frozen=""
        ).replace('run: "small"', 'run: "other"')
        other.write_text(text)
        said = self.ctl("runs", "create", other, address=address)
        print(said)
        self.assertIn("its agents join with --run=other", said)
        unnamed = self.ctl("runs", "show", address=address, code=1)
        self.assertIn("this coordinator has runs 'other', 'small'", unnamed)
        other.write_text(text.replace("steps: 5", "steps: 0"))
        self.assertIn("steps is 0", self.ctl("runs", "create", other, address=address, code=1))

        saved = self.folder / "saved"
        self.start_nodes(cluster, "small", [f"--save={saved}"])
        self.finish(cluster)
        said = self.ctl("runs", "fork", "small", "again", "steps=6", "seed=8", address=address)
        print(said)
        self.assertIn("the state of run small after round 8", said)
        self.kill(cluster.processes["coordinator"])
        cluster.start_coordinator()
        self.assertEqual(self.run_view(cluster, "again")["forkedFrom"]["run"], "small")
        out = self.folder / "start.safetensors"
        self.ctl("checkpoint", "export", "again", f"--out={out}", "--round=0", address=address)
        self.assertEqual(tensors(out), tensors(saved))

        for run, steps in (("again", 6), ("other", 5)):
            self.start_nodes(cluster, run)
            summaries = self.finish(cluster)
            self.assert_replicas_equal(summaries)
            self.assertEqual({s["rounds"] for s in summaries.values()}, {steps}, summaries)
        print(self.ctl("runs", "list", address=address))
        listed = self.ctl_json("runs", "list", address=address)["runs"]
        self.assertEqual([one["run"] for one in listed], ["again", "other", "small"])
        self.assertEqual({one["state"] for one in listed}, {"RUN_STATE_FINISHED"})
        self.assert_store_is_sound(cluster, "'again' of 6 rounds", "/runs/again")

    def start_nodes(self, cluster, run, flags_of_a=()):
        """Starts agents and trainers for a run; those of the run before have ended."""
        for node in cluster.ranks:
            if f"agent-{node}" in cluster.processes:
                agent = cluster.processes[f"agent-{node}"]
                agent.send_signal(signal.SIGTERM)
                agent.wait()
            cluster.start_agent(node, f"--run={run}")
            cluster.start_trainers(node, self.text, flags_of_a if node == "a" else [])


if __name__ == "__main__":
    main()
