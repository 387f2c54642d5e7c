"""Checkpoints are those of Hugging Face Transformers: the same logits, ours in theirs and back."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from demo_cluster import Cluster
from system_case import BINARIES, ROOT, SystemCase
from torch_python import cpu_environment
from xml_report import main

LARGEST_DIFFERENCE = 1e-4
PRINT_LOGITS = ROOT / "tests/worker/print_logits"
JOB = Path(__file__).with_name("transformers_job.py")
SPEC = """\
run: "transformers"
seed: 7
steps: 20
nodes { name: "a" }
model { layers: 3 heads: 4 width: 64 context: 48 vocab: 256 }
data { sequences_per_node: 8 eval_sequences: 8 }
optimizer { lr: 0.003 }
"""


class Transformers(SystemCase):
    def setUp(self):
        super().setUp()
        stand_ins = self.folder / "stand-ins"
        stand_ins.mkdir()
        (torch,) = importlib.util.find_spec("torch").submodule_search_locations
        self.environment = cpu_environment(torch, stand_ins)

    def transformers(self, *jobs):
        """Runs jobs of transformers_job.py in one process; returns their results."""
        done = subprocess.run(
            [sys.executable, JOB],
            input=json.dumps(jobs),
            env={**self.environment, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def our_logits(self, checkpoint, tokens):
        """[position][token], by our own code."""
        done = subprocess.run(
            [PRINT_LOGITS, checkpoint, *map(str, tokens)], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return [[float(value) for value in line.split()] for line in done.stdout.splitlines()]

    def assert_close(self, name, ours, theirs):
        """Prints the largest difference, which must be small; the logits must differ in size."""
        self.assertEqual([len(row) for row in ours], [len(row) for row in theirs])
        pairs = list(zip(sum(ours, []), sum(theirs, []), strict=True))
        largest = max(abs(one - other) for one, other in pairs)
        spread = max(one for one, _ in pairs) - min(one for one, _ in pairs)
        print(f"{name}: {len(pairs)} logits, largest difference {largest:.3g}, spread {spread:.3g}")
        self.assertLessEqual(largest, LARGEST_DIFFERENCE)
        self.assertGreater(spread, 0.1)

    def tokens(self, count, vocab):
        draw = random.Random(count)
        return [draw.randrange(vocab) for _ in range(count)]

    def train(self, *flags):
        """A run of one node in a folder of its own; its summary."""
        folder = self.folder / f"run{len(list(self.folder.glob('run*')))}"
        folder.mkdir()
        cluster = Cluster(BINARIES, folder, SPEC, {"a": 1})
        self.addCleanup(cluster.stop)
        cluster.start_coordinator()
        cluster.start_agent("a")
        cluster.start_trainers("a", self.text, flags)
        return self.finish(cluster)["a"]

    def test_our_trained_checkpoint_in_transformers(self):
        saved = self.folder / "saved"
        summary = self.train(f"--save={saved}/")
        self.assertLess(summary["val_loss"], summary["start_loss"] - 0.5)
        tokens = self.tokens(48, 256)
        (result,) = self.transformers({"do": "logits", "folder": str(saved), "tokens": tokens})
        for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertEqual(result[keys], [], keys)
        self.assert_close("ours in theirs", self.our_logits(saved, tokens), result["logits"])

    def test_checkpoints_of_transformers_in_ours(self):
        tokens = self.tokens(40, 256)
        kinds = {
            "float32": {},
            "bfloat16": {},
            "float16": {},
            "sharded": {"max_shard_size": "90KB"},
        }
        folders = {name: str(self.folder / name) for name in kinds}
        config = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 48, "vocab_size": 256}
        jobs = []
        for name, options in kinds.items():
            dtype = name if "float" in name else "float32"
            folder = {"folder": folders[name]}
            jobs.append({"do": "save", "config": config, "dtype": dtype, "save": options, **folder})
            jobs.append({"do": "logits", "tokens": tokens, **folder})
        results = self.transformers(*jobs)[1::2]
        for name, result in zip(kinds, results, strict=True):
            ours = self.our_logits(folders[name], tokens)
            self.assert_close(f"theirs ({name}) in ours", ours, result["logits"])
        self.assertTrue(os.path.exists(folders["sharded"] + "/model.safetensors.index.json"))

        # A run that starts from one: before the first step it has the loss of that checkpoint.
        summary = self.train(f"--start_file={folders['sharded']}")
        command = [BINARIES["trainer"], "--eval_only", folders["sharded"], self.text]
        same = ["--heldout_permille=50", "--eval_sequences=8"]
        done = subprocess.run([*command, *same], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(json.loads(done.stdout)["loss"], summary["start_loss"], places=5)


if __name__ == "__main__":
    main()
