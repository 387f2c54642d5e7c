"""./dev demo as a person meets it: a whole short one, and one that is interrupted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from system_case import ROOT, SystemCase
from xml_report import main


class Demo(SystemCase):
    def start(self, *flags):
        """Starts the demo with its temporary files and its output in this test's folder."""
        self.output = self.folder / "output"
        with open(self.output, "wb") as file:
            self.demo = subprocess.Popen(
                [sys.executable, ROOT / "tools/demo.py", f"--binaries={ROOT}", *flags],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.folder), "PYTHONUNBUFFERED": "1"},
            )
        self.addCleanup(self.demo.kill)
        return self.demo

    def wait_output(self, text):
        """Waits until the demo has printed a text."""
        self.wait_until(lambda: text in self.output.read_text(), f"'{text}' in the demo's output")

    def assert_nothing_is_left(self):
        """No process and no file of the demo is there any more."""
        self.assertEqual(list(self.folder.glob("isthmus-demo-*")), [])
        self.assertEqual(list(Path("/run/netns").glob(f"isthmus-wan-{self.demo.pid}.*")), [])
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(str(self.folder), cmdline.read_bytes().decode(errors="replace"))
            except FileNotFoundError:
                pass  # it has just ended

    def test_short_run_ends_with_equal_parameters(self):
        demo = self.start("--steps", "10")
        self.wait_until(lambda: demo.poll() is not None, "the demo to end")
        output = self.output.read_text()
        self.assertTrue(output.startswith("link: "), output)
        result = re.search(r"^result demo (.*)$", output, re.MULTILINE)
        self.assertIsNotNone(result, output)
        values = dict(pair.split("=") for pair in result.group(1).split())
        self.assertEqual(values["params_equal"], "1")
        self.assertEqual(values["rounds"], "10")
        up, dense = int(values["up_bytes_per_round"]), int(values["dense_bytes_per_round"])
        self.assertLessEqual(up * 50, dense)
        # Ten rounds do not reach the loss that the demo promises, and it says so.
        self.assertEqual((values["met"], demo.returncode), ("0", 1))
        self.assert_nothing_is_left()

    def test_loopback_on_request(self):
        demo = self.start("--steps", "2", "--link", "loopback")
        self.wait_until(lambda: demo.poll() is not None, "the demo to end")
        output = self.output.read_text()
        self.assertTrue(output.startswith("link: loopback (as asked for)"), output)
        self.assertIn("params_equal=1", output)
        self.assert_nothing_is_left()

    def test_interrupt_leaves_nothing_behind(self):
        demo = self.start("--steps", "100000")
        self.wait_output("round ")
        demo.send_signal(signal.SIGINT)
        self.assertEqual(demo.wait(20), 130)
        self.assertIn("nothing is left running", self.output.read_text())
        self.assert_nothing_is_left()

    def test_interrupt_while_processes_start(self):
        demo = self.start("--minutes", "1")
        self.wait_output("measuring")
        demo.send_signal(signal.SIGTERM)
        self.assertEqual(demo.wait(20), 143)
        self.assert_nothing_is_left()


if __name__ == "__main__":
    main()
