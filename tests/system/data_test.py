"""Data as people have it: token files with headers, held-out files, nodes that were away."""

import json
import random
import signal
import struct
import subprocess

from demo_cluster import Cluster
from system_case import BINARIES, SystemCase
from xml_report import main

SPEC = """\
run: "data"
seed: 7
steps: {steps}
quorum: {quorum}
nodes {{ name: "a" }}
nodes {{ name: "b" }}
model {{ layers: 1 heads: 2 width: 32 context: 32 vocab: {vocab} }}
data {{ sequences_per_node: 4 eval_sequences: 8 format: {format} }}
optimizer {{ lr: {lr} }}
timing {{ lease_ms: 3000 heartbeat_ms: 500 grace_ms: 2000 deadline_ms: {deadline_ms} }}
"""
HEADERS = {"H": (20240520, 1), "I": (20240801, 7)}


class Data(SystemCase):
    def run_of(self, ranks, **fields):
        """A run of nodes a and b; `fields` of SPEC."""
        folder = self.folder / f"run{len(list(self.folder.glob('run*')))}"
        folder.mkdir()
        values = {
            "steps": 8,
            "quorum": 0,
            "deadline_ms": 0,
            "vocab": 256,
            "format": "TOKEN_FORMAT_BYTES",
            "lr": 0.004,
        }
        cluster = Cluster(BINARIES, folder, SPEC.format(**{**values, **fields}), ranks)
        self.addCleanup(cluster.stop)
        return cluster

    def write_tokens(self, name, count, below, code, header):
        """`count` random tokens of struct's type `code`; the name is the seed."""
        draw = random.Random(name)
        tokens = [draw.randrange(below) for _ in range(count)]
        data = struct.pack(f"<{count}{code}", *tokens)
        if header:
            magic, version = HEADERS[code]
            data = struct.pack("<256i", magic, version, count, *([0] * 253)) + data
        path = self.folder / name
        path.write_bytes(data)
        return path

    def start_nodes(self, cluster, data, more_flags):
        """`more_flags` by node."""
        cluster.start_coordinator()
        for node in cluster.ranks:
            cluster.start_agent(node)
            cluster.start_trainers(node, data, more_flags.get(node, ()))

    def metrics(self, cluster, node):
        """The lines of rank 0, by step."""
        text = cluster.metrics_file(node, 0).read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return {line["step"]: line for line in lines}

    def start_beside(self, cluster, node, other):
        """Starts a node while the other one, which would run away from it, stands still."""
        frozen = cluster.processes[f"trainer-{other}-0"]
        frozen.send_signal(signal.SIGSTOP)
        self.addCleanup(frozen.send_signal, signal.SIGCONT)
        cluster.start_agent(node)
        cluster.start_trainers(node, self.text)
        self.wait_log(cluster, f"trainer-{node}-0", f"waiting for {other}")
        frozen.send_signal(signal.SIGCONT)
        metrics_file = cluster.metrics_file(node, 0)
        self.wait_until(
            lambda: metrics_file.exists() and '"included":true' in metrics_file.read_text(),
            f"node {node} to take part",
        )

    def evaluate(self, *arguments):
        """What trainer --eval_only prints; fails when it fails."""
        command = [BINARIES["trainer"], *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_token_files_of_a_pattern_with_held_out_ones(self):
        for code, name in {"H": "UINT16", "I": "UINT32"}.items():
            self.write_tokens(f"train_{name}_0.bin", 5000, 700, code, header=False)
            self.write_tokens(f"train_{name}_1.bin", 5000, 700, code, header=True)
            held_out = self.write_tokens(f"val_{name}.bin", 3000, 700, code, header=True)
            cluster = self.run_of({"a": 1, "b": 2}, vocab=700, format=f"TOKEN_FORMAT_{name}")
            saved = self.folder / f"saved_{name}"
            flags = [f"--heldout_data={held_out}"]
            self.start_nodes(
                cluster,
                self.folder / f"train_{name}_*.bin",
                {"a": [*flags, f"--save={saved}/"], "b": flags},
            )
            summaries = self.finish(cluster)
            self.assert_replicas_equal(summaries)
            evaluated = self.evaluate(
                "--eval_only", saved, held_out, f"--format={name.lower()}", "--eval_sequences=8"
            )
            self.assertAlmostEqual(evaluated["loss"], summaries["a"]["val_loss"], places=5)
            self.assertEqual(evaluated["tokens"], 8 * 32)

    def test_eval_only_repeats_the_loss_of_the_run(self):
        cluster = self.run_of({"a": 1, "b": 1})
        saved = self.folder / "model.safetensors"
        self.start_nodes(cluster, self.text, {"a": [f"--save={saved}"]})
        summary = self.finish(cluster)["a"]
        self.assertEqual(summary["skipped_steps"], 0)
        self.assertEqual(summary["skipped_sequences"], 0)
        same = ["--heldout_permille=50", "--eval_sequences=8"]
        evaluated = self.evaluate(*same, f"--eval_only={saved}", f"--data={self.text}")
        self.assertAlmostEqual(evaluated["loss"], summary["val_loss"], places=5)
        whole = self.evaluate("--eval_only", saved, self.text)
        self.assertEqual(whole["tokens"], (self.text.stat().st_size - 1) // 32 * 32)

    def test_eval_only_refuses_what_is_for_a_run(self):
        for flag in ("--agent=unix:/x", "--rank=0", "--save=/x", "--sample=9", "--device=cuda"):
            command = [BINARIES["trainer"], "--eval_only=/x", flag, str(self.text)]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{flag.split('=')[0]} is for a run", done.stderr)

    def test_nodes_with_different_held_out_tokens(self):
        cluster = self.run_of({"a": 1, "b": 1}, steps=100000)
        cluster.start_coordinator()
        for node in ("a", "b"):
            cluster.start_agent(node)
            held_out = self.write_text(f"held-out-{node}", seed=node)
            cluster.start_trainers(node, self.text, [f"--heldout_data={held_out}"])
            if node == "a":
                self.wait_log(cluster, "coordinator", "joined")
        code, output = self.wait_exit(cluster, "trainer-b-0")
        self.assertEqual(code, 1)
        self.assertIn("node 'b' holds out tokens", output)
        self.assertIn("--heldout_data", output)

    def test_data_that_does_not_fit_the_run(self):
        shorts = self.write_tokens("shorts.bin", 5000, 700, "H", header=True)
        wrong = {
            "TOKEN_FORMAT_BYTES": ["shorts.bin", "set it to TOKEN_FORMAT_UINT16"],
            "TOKEN_FORMAT_UINT16": ["shorts.bin", "model.vocab of the run is 600"],
        }
        for name, texts in wrong.items():
            cluster = self.run_of({"a": 1}, vocab=600, format=name)
            self.start_nodes(cluster, shorts, {})
            code, output = self.wait_exit(cluster, "trainer-a-0")
            self.assertEqual(code, 1)
            for text in texts:
                self.assertIn(text, output)

    def test_a_pattern_that_matches_nothing(self):
        cluster = self.run_of({"a": 1})  # no agent: it is told before any wait
        cluster.start_trainers("a", self.folder / "train_*.bin")
        code, output = self.wait_exit(cluster, "trainer-a-0")
        self.assertEqual(code, 1)
        self.assertIn("train_*.bin' matches no file", output)

    def test_a_node_that_was_away_goes_on_with_the_samples_of_the_step(self):
        # The parameters stay as they are, so that the loss of a step tells which samples it had.
        still = {"lr": 1e-12}
        steady = self.run_of({"b": 2}, steps=150, quorum=1, deadline_ms=2000, **still)
        self.start_nodes(steady, self.text, {})
        self.finish(steady)
        reference = self.metrics(steady, "b")
        self.assertEqual(len(reference), 150)

        away = self.run_of({"a": 1, "b": 1}, steps=100000, quorum=1, deadline_ms=2000, **still)
        away.start_coordinator()
        away.start_agent("a")
        away.start_trainers("a", self.text)
        self.wait_step(away, "a", 3)
        self.start_beside(away, "b", "a")
        self.kill(away.processes.pop("trainer-b-0"))
        self.kill(away.processes.pop("agent-b"))
        before = self.metrics(away, "b")
        away.metrics_file("b", 0).unlink()
        self.wait_step(away, "a", max(before) + 20)
        self.start_beside(away, "b", "a")
        self.wait_log(away, "trainer-b-0", "their samples are skipped")
        after = self.metrics(away, "b")

        first = min(after)
        self.assertGreater(first, max(before) + 19)
        print(f"node b: steps {min(before)} to {max(before)}, then from {first} on")
        for step, line in {**before, **after}.items():
            if step in reference:
                self.assertAlmostEqual(line["loss"], reference[step]["loss"], places=5)
        self.assertLess(first, 150, "nothing was compared after the gap")
        self.assertGreater(len({round(line["loss"], 5) for line in reference.values()}), 100)
        # Of the steps before it came back, all are skipped but those it had taken part in. It may
        # have ended before it wrote down the last one of them.
        skipped = after[first]["skipped_steps"]
        passed = first - 1 - sum(line["included"] for line in before.values())
        self.assertIn(skipped, (passed - 1, passed))
        self.assertEqual(after[first]["skipped_sequences"], 4 * skipped)


if __name__ == "__main__":
    main()
