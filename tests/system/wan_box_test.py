"""WAN in a box measured against what it claims, by traffic that is counted where it arrives."""

import hashlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
from pathlib import Path

from system_case import ROOT, WAIT_S
from wan_box import HUB, Link, WanBox, WanError
from wan_case import RELAY, WanCase
from wan_measure import flood, loss_tolerance, measure, result_line, round_trips_ms
from xml_report import main

NAMESPACES = Path("/run/netns")

# Builds a box with a process inside, says so, and waits to be killed.
OWNER = """\
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from wan_box import Link, WanBox
box = WanBox({"a": Link()}, relay=sys.argv[2]).__enter__()
inside = subprocess.Popen(box.command("a", ["sleep", "infinity"]))
print(box.namespace("a"), box._relay.pid, inside.pid, flush=True)
sys.stdin.read()
"""


def runs(pid):
    """Whether a process exists and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Claims(WanCase):
    def test_rate_round_trip_and_loss_are_as_claimed(self):
        box = self.box({"a": Link(rate_mbit=10, rtt_ms=40, loss=0.01), "b": Link(rate_mbit=100)})
        for site in ("a", "b"):
            values, met = measure(box, site, seconds=1.0)
            print(result_line(site, {**values, "met": int(met)}))
            self.assertTrue(met, values)

    def test_settings_change_while_it_runs_and_for_one_direction(self):
        box = self.box({"a": Link(rate_mbit=20)})
        box.set("a", "up", rate_mbit=5, delay_ms=15)
        self.assertAlmostEqual(flood(box, "a", "up", 8, 1.0).mbit, 5, delta=0.15)
        self.assertAlmostEqual(flood(box, "a", "down", 30, 1.0).mbit, 20, delta=0.6)
        trips = round_trips_ms(box, "a", count=10)
        self.assertTrue(15 <= min(trips) <= 17, trips)

    def test_jitter_delays_without_reordering(self):
        box = self.box({"a": Link(rtt_ms=10, jitter_ms=20)})
        sent = flood(box, "a", "up", 8, 0.5)
        self.assertEqual((sent.received, sent.late), (sent.sent, 0))
        trips = round_trips_ms(box, "a", count=30)
        self.assertGreaterEqual(min(trips), 10)
        self.assertLessEqual(statistics.median(trips), 10 + 2 * 20)
        self.assertGreater(max(trips) - min(trips), 10)

    def test_reorder_duplicate_and_corrupt_hit_their_share(self):
        box = self.box(
            {"a": Link(reorder=0.05), "b": Link(duplicate=0.05), "c": Link(corrupt=0.05)}
        )
        late = flood(box, "a", "up", 16, 1.0)
        self.assertEqual((late.received, late.twice), (late.sent, 0))
        twice = flood(box, "b", "up", 16, 1.0)
        self.assertEqual(twice.received, twice.sent + twice.twice)
        damaged = flood(box, "c", "up", 16, 1.0)  # the checksum of UDP drops these
        self.assertEqual((damaged.twice, damaged.late), (0, 0))
        for share in (late.late, twice.twice, damaged.sent - damaged.received):
            allowed = loss_tolerance(0.05, late.sent)
            self.assertAlmostEqual(share / late.sent, 0.05, delta=allowed)

    def test_a_seed_gives_the_same_losses(self):
        def lost(seed):
            with WanBox({"a": Link(loss=0.1)}, seed=seed, relay=RELAY) as box:
                sent = flood(box, "a", "up", 4, 0.5)
            return sent.sent - sent.received

        first = lost(3)
        self.assertEqual(lost(3), first)
        self.assertNotEqual((lost(4), lost(5)), (first, first))

    def test_tcp_brings_every_byte_through_a_bad_link(self):
        link = Link(rate_mbit=50, rtt_ms=4, loss=0.01, reorder=0.02, duplicate=0.02, corrupt=0.01)
        box = self.box({"a": link})
        data = b"".join(hashlib.sha256(bytes([n % 256])).digest() for n in range(1 << 14))
        listener = self.enterContext(box.socket(HUB))
        listener.bind((box.hub_address(), 0))
        listener.listen(1)
        source = self.enterContext(box.socket("a"))
        source.connect(listener.getsockname())
        arrived, _ = listener.accept()
        for end in (source, arrived):
            end.settimeout(WAIT_S)

        def send():
            source.sendall(data)
            source.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        with arrived, arrived.makefile("rb") as file:
            self.assertEqual(file.read(), data)
        sender.join()
        counts = box.stats("a")["up"]
        for what in ("lost", "reordered", "duplicated", "corrupted"):
            self.assertGreater(counts[what], 0, counts)


class Partitions(WanCase):
    def arrived(self, box, direction):
        """How many of the packets sent in a direction arrive, as a share."""
        sent = flood(box, "a", direction, 4, 0.2)
        return sent.received / sent.sent

    def test_one_way_both_ways_and_healed(self):
        box = self.box({"a": Link(), "b": Link()})
        self.assertEqual(self.arrived(box, "up"), 1)
        box.partition("a", "up")
        self.assertEqual((self.arrived(box, "up"), self.arrived(box, "down")), (0, 1))
        box.heal("a")
        box.partition("a", "down")
        self.assertEqual((self.arrived(box, "up"), self.arrived(box, "down")), (1, 0))
        box.partition("a")
        self.assertEqual((self.arrived(box, "up"), self.arrived(box, "down")), (0, 0))
        self.assertEqual(len(round_trips_ms(box, "b", count=3)), 3)
        box.heal("a")
        self.assertEqual((self.arrived(box, "up"), self.arrived(box, "down")), (1, 1))


class Life(WanCase):
    def test_a_killed_owner_leaves_nothing_for_long(self):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, ROOT / "tools/wan", RELAY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(owner.kill)
        name, relay, inside = owner.stdout.readline().split()
        with WanBox({"b": Link()}, relay=RELAY):  # a living owner's box is left alone
            self.assertTrue((NAMESPACES / name).exists())
            self.assertTrue(runs(inside))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
        self.wait_until(lambda: not runs(relay), "the relay to end with its owner")
        with WanBox({"b": Link()}, relay=RELAY):
            self.wait_until(lambda: not runs(inside), "the process inside to end")
            self.assertFalse((NAMESPACES / name).exists())

    def test_closing_ends_what_runs_inside_and_removes_all(self):
        with WanBox({"a": Link()}, relay=RELAY) as box:
            inside = subprocess.Popen(box.command("a", ["sleep", "infinity"]))
            names = [box.namespace(place) for place in (HUB, "a")]
            relay = box._relay.pid
        self.assertEqual(inside.wait(10), -signal.SIGKILL)
        self.assertFalse(runs(relay))
        for name in names:
            self.assertFalse((NAMESPACES / name).exists())

    def test_wrong_use_is_told_in_words(self):
        box = self.box({"a": Link()})
        for wrong, text in (
            (lambda: box.set("a", loss=2), "loss is '2.0'"),
            (lambda: box.set("a", los=0.1), "no setting 'los'"),
            (lambda: box.set("x", loss=0.1), "no site 'x'"),
            (lambda: box.partition("a", "left"), "up, down or both"),
            (lambda: WanBox({"hub": Link()}), "no name for a site"),
            (lambda: WanBox({"a": Link(rtt_ms=-1)}, relay=RELAY).__enter__(), "delay_ms"),
        ):
            with self.assertRaisesRegex(WanError, re.escape(text)):
                wrong()
        self.assertEqual(len(round_trips_ms(box, "a", count=1)), 1)
        self.assertIn("not built", WanBox.why_not("/nonexistent/relay"))

    def test_command_line_prints_result_lines(self):
        shown = subprocess.run(
            [sys.executable, ROOT / "tools/wan/wan_box.py", "--rate=50", "--rtt=4", "--seconds=0.5"]
            + [f"--relay={RELAY}"],
            capture_output=True,
            text=True,
        )
        print(shown.stdout)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"(?m)^result wan_box link=site .*met=1$")
        self.assertRegex(shown.stdout, r"(?m)^result wan_box link=ceiling measured_mbit=\d")


if __name__ == "__main__":
    main()
