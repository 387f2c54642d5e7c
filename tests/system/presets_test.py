"""Every preset through real processes, and what must not change the numbers: who does the outer
step, and in how many ranks."""

import subprocess

from system_case import ROOT, SystemCase
from xml_report import main

CTL = ROOT / "server/ctl/isthmusctl"
RANKS = {"a": 1, "b": 2}
# Of every step: no schedule to shorten.
EVERY_STEP = {"demo", "flexdemo", "random", "striding", "slicing", "full", "dist_lion"}
STEPS = 12
LOCAL_STEPS = "schedule { local_steps: 3 }\n"


def preset_names():
    """As isthmusctl lists them; `none` keeps no common state."""
    text = subprocess.run([CTL, "presets"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in text.splitlines() if "  (" in line and line[0] != " "]
    return [name for name in names if name != "none"]


class Presets(SystemCase):
    def train(self, name, more):
        """One run; returns the summaries of its nodes, which must end equal."""
        cluster = self.cluster(RANKS, steps=STEPS, name=name, more=more)
        cluster.start_coordinator()
        for node in RANKS:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        summaries = self.finish(cluster)
        cluster.stop()
        self.assert_replicas_equal(summaries)
        return summaries["a"]

    def test_every_preset_trains_and_keeps_replicas_equal(self):
        names = preset_names()
        self.assertGreaterEqual(len(names), 11)
        for name in names:
            with self.subTest(preset=name):
                every_step = name in EVERY_STEP
                more = f'preset: "{name}"\n' + ("" if every_step else LOCAL_STEPS)
                summary = self.train(f"run-{name}", more)
                self.assertEqual(summary["steps"], STEPS)
                self.assertEqual(summary["rounds"], STEPS if every_step else STEPS // 3)
                self.assertLess(summary["val_loss"], summary["start_loss"])

    def test_what_a_method_of_every_step_may_do_beside(self):
        cases = {
            "rows-bf16": 'preset: "slicing" codec { numbers { format: NUMBER_FORMAT_BF16 } }',
            "published": 'preset: "random" codec { rules: METHOD_RULES_PUBLISHED rate: 0.5 }',
            "no-sign": "codec { sign: false lr_in_momentum: false }",
        }
        for name, more in cases.items():
            with self.subTest(case=name):
                summary = self.train(f"run-{name}", more + "\n")
                self.assertEqual(summary["rounds"], STEPS)
                self.assertLess(summary["val_loss"], summary["start_loss"])

    def test_nodes_step_alone_between_exchanges(self):
        cluster = self.cluster(
            RANKS, steps=STEPS, name="alone", more="schedule { every: 5 } allow_drift: true\n"
        )
        cluster.start_coordinator()
        for node in RANKS:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        for summary in self.finish(cluster).values():
            self.assertEqual((summary["steps"], summary["rounds"]), (STEPS, 3))  # 5, 10, 12
            self.assertEqual(summary["skipped_steps"], 0)
            self.assertLess(summary["val_loss"], summary["start_loss"])

    def test_who_does_the_outer_step_changes_no_bit(self):
        random_sign = "sign: OUTER_SIGN_RANDOM_TWO_POINT bound: 2"
        for number, outer in enumerate(
            ["", f"outer {{ kind: OUTER_KIND_SIGN_MOMENTUM {random_sign} }}"]
        ):
            spec = f'preset: "diloco"\n{LOCAL_STEPS}{outer}\n'
            losses = [
                self.train(f"run-{number}-{placement}", f"{spec}placement: PLACEMENT_{placement}\n")
                for placement in ("HOSTED", "REPLICATED")
            ]
            # Bit-equal parameters have one loss; the hash of a replicated run covers its outer
            # optimizer as well.
            self.assertEqual(losses[0]["val_loss"], losses[1]["val_loss"])

    def test_codecs_both_ways(self):
        codecs = [
            "numbers { format: NUMBER_FORMAT_INT8 } reply { format: NUMBER_FORMAT_INT8 }",
            "numbers { format: NUMBER_FORMAT_INT4 hadamard: 32 } feedback { } "
            "reply { format: NUMBER_FORMAT_BF16 }",
            "numbers { format: NUMBER_FORMAT_F16 } reply { format: NUMBER_FORMAT_INT4 }",
        ]
        dense = 4
        for number, codec in enumerate(codecs):
            with self.subTest(codec=codec):
                spec = f'preset: "diloco"\n{LOCAL_STEPS}codec {{ {codec} }}\n'
                summary = self.train(f"run-{number}", spec)
                self.assertLess(summary["val_loss"], summary["start_loss"])
                elements = summary["dense_bytes_per_round"] / dense
                self.assertLess(summary["up_bytes_per_round"], 2.2 * elements)


if __name__ == "__main__":
    main()
