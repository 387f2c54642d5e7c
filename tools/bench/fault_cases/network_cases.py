"""Faults of networks, in a WAN in a box (tools/wan): all packets go through its relay.

r16   One of three nodes is cut off, in both directions and in one: the others close their round at
      its deadline, both sides find out, and the node is back with the next round.
r17   All links are cut one after the other, and restored in random order.
r18   1 % of the packets are lost, at 40 ms: rounds take little longer than without.
r19   A link of 100 Mbit/s is used, and a node on a slow one delays a round to its deadline at most.
r21   All connections are killed every 200 ms for 30 s (ss -K): rounds go on, and nodes do not
      connect in a storm.
"""

import datetime
import random
import re
import statistics
import subprocess
import time
from pathlib import Path

from wan_box import Link

from .case import DEBUG, LAST_STEPS, TRIO, Case, RunError, boxed, tool
from .ledger import aftermath

DIRECTIONS = ("both", "up", "down")
# kKeepaliveTimeMs, kKeepaliveTimeoutMs of base/limits.h, and a second.
DETECTED_S_MAX = 20 + 10 + 1
LEASE_S, DEADLINE_S = 6, 3
# What closes a round does so at a look of the coordinator (kTickMs), on a busy machine.
LATE_S = 0.5
# Rounds of about a second, as real ones: what is missed while a node catches up counts in rounds.
SLOW_ROUNDS = {"preset": "diloco", "local_steps": 400}
PAIR = {"a": 1, "b": 1}
# A contribution of 1.9 M values (7.5 MB), and one of 30 MB.
LARGE = "layers: 1 heads: 4 width: 384 context: 32"
# "ip route ... rto_min", for lines that lose packets.
RTO_MIN = "20ms"
SMALL_BYTES = 1_000_000
LAST_SLOW = 4  # of steps that take seconds
LARGER = "layers: 1 heads: 4 width: 768 context: 32"


class BoxedCase(Case):
    """A case in a box of its own, with histories to be judged."""

    def __init__(self, bench, links, congestion=None, **settings):
        self._box = boxed(bench, links, congestion).__enter__()
        try:
            settings = {"rounds": 1_000_000, **settings}
            super().__init__(bench, dict.fromkeys(links, 1), box=self._box, **settings)
        except BaseException:
            self._box.close()
            raise
        for program in ("coordinator", "agent"):
            self.cluster.flags[program] = DEBUG

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            self._box.close()

    @property
    def box(self):
        """The network of the case."""
        return self._box

    def network_file(self, name, process="coordinator"):
        """A file of /proc/net in the namespace of a process."""
        return Path(f"/proc/{self.processes[process].pid}/net/{name}").read_text()


def events(log):
    """What the coordinator's log tells in order: (opened, committed or joined, of what, nodes)."""
    pattern = re.compile(
        r": (round opened|round committed|node joined) (?:round|node)=(\S+)"
        r"(?: (?:members|included)=(\S*))?"
    )
    found = pattern.findall(log)
    return [(what.split()[1], one, names.split(",")) for what, one, names in found]


def _longest(log, begin):
    """Seconds from the opening of a round to its commit, at most; of rounds committed behind
    `begin`, a place in the log."""
    opened, longest = {}, 0.0
    pattern = r"^(\S+) \S+ coordinator: round (opened|committed) round=(\d+)"
    for match in re.finditer(pattern, log, re.MULTILINE):
        stamp, what, number = match.groups()
        at = datetime.datetime.fromisoformat(stamp)
        if what == "opened":
            opened[number] = at
        elif match.start() >= begin:
            longest = max(longest, (at - opened[number]).total_seconds())
    return longest


def _rounds_until_whole(log, nodes, names):
    """Rounds that were committed after the last of the nodes had joined again (none count
    before) and before one that includes everybody; None: there was none yet."""
    count = 0
    joined = False
    for what, one, included in events(log):
        if what == "joined" and one in nodes:
            count, joined = 0, True
        elif what == "committed" and sorted(included) == sorted(names):
            return count
        elif what == "committed" and joined:
            count += 1
    return None


def _wait_whole(case, begin, nodes):
    """Until a round has been committed with all nodes; returns the rounds since the last of `nodes`
    joined again (0 where none had to)."""
    names = list(case.cluster.ranks)

    def rounds():
        return _rounds_until_whole(case.log()[begin:], nodes, names)

    case.seconds_until(lambda: rounds() is not None, case.run.look)
    return rounds()


def _cut_off(bench, case, direction):
    """Node b is cut off in a direction. Returns seconds until the round closed and until each side
    knew, and the rounds missed after b had come back."""
    begin, said = len(case.log()), len(case.log("agent-b"))
    case.box.partition("b", direction)
    cut, passed = time.monotonic(), case.committed()
    # One round may have had all contributions.
    case.seconds_until(lambda: case.committed() > passed + 1, case.run.look)
    closed_s = _longest(case.log(), begin)
    case.seconds_until(lambda: "lease ended: the node was not" in case.log()[begin:])
    left_s = time.monotonic() - cut
    case.seconds_until(lambda: "the coordinator at" in case.log("agent-b")[said:], case.run.look)
    told_s = time.monotonic() - cut
    case.box.heal("b")
    begin = len(case.log())
    # The one that was open when it joined is not missed for being slow to come back.
    missed = max(0, _wait_whole(case, begin, ["b"]) - 1)
    back_s = time.monotonic() - cut - told_s
    bench.say(
        f"r16 {direction}: the others' round closed after {closed_s:.1f} s, the lease ended "
        f"after {left_s:.1f} s, the agent knew after {told_s:.1f} s; back {back_s:.1f} s after "
        f"it healed, {missed} rounds missed after it joined"
    )
    return closed_s, told_s, missed, back_s


def r16(bench):
    """A partition of one node."""
    directions = ("down",) if bench.short else DIRECTIONS
    links = dict.fromkeys(TRIO, Link(rate_mbit=100, rtt_ms=20))
    times = {"lease_ms": LEASE_S * 1000, "heartbeat_ms": 1000}
    times |= {"deadline_ms": DEADLINE_S * 1000, "grace_ms": DEADLINE_S * 1000}
    with BoxedCase(bench, links, quorum=2, **times, **SLOW_ROUNDS) as case:
        case.start(5)
        found = [_cut_off(bench, case, direction) for direction in directions]
        good = aftermath(bench, case)
    closed, told, missed, back = (max(values) for values in zip(*found, strict=True))
    held = good and closed <= DEADLINE_S + LATE_S and missed <= 1
    bench.result(
        "r16", held, told, DETECTED_S_MAX, "s_until_detected",
        cuts=len(found), closed_after_s=closed, deadline_s=DEADLINE_S, rounds_missed_max=missed,
        back_after_s=back,
    )  # fmt: skip


def _swizzle(bench, case, draw, number):
    """Cuts all links one by one, restores them. Returns (rounds, seconds) until all take part."""
    cut, restored = draw.sample(sorted(TRIO), 3), draw.sample(sorted(TRIO), 3)
    for node in cut:
        case.box.partition(node)
        case.run.wait_seconds(draw.uniform(0.05, 1.5))
    case.run.wait_seconds(draw.uniform(0, 5))
    for node in restored:
        case.box.heal(node)
        begin, at = len(case.log()), time.monotonic()
        if node != restored[-1]:
            case.run.wait_seconds(draw.uniform(0.05, 1.5))
    rounds = _wait_whole(case, begin, sorted(TRIO))
    seconds = time.monotonic() - at
    bench.say(
        f"r17 {number}: cut {', '.join(cut)}, restored {', '.join(restored)}: "
        f"{rounds} rounds, {seconds:.1f} s"
    )
    return rounds, seconds


def r17(bench):
    """Swizzle."""
    times = 2 if bench.short else 20
    links = dict.fromkeys(TRIO, Link(rate_mbit=100, rtt_ms=20))
    with BoxedCase(bench, links, quorum=2, grace_ms=3000, **SLOW_ROUNDS) as case:
        case.start(5)
        found = [
            _swizzle(bench, case, random.Random(f"{bench.seed}-{number}"), number)
            for number in range(times)
        ]
        good = aftermath(bench, case)
    bench.result(
        "r17", good, max(rounds for rounds, _ in found), 2, "rounds_until_all_take_part",
        swizzles=times, seed=bench.seed, back_after_s=max(seconds for _, seconds in found),
        back_after_s_p50=statistics.median(seconds for _, seconds in found),
    )  # fmt: skip


def _set_least_timeout(box):
    """What a lost last packet of a small message costs: the kernel's 200 ms are long for a line of
    40 ms, and a route can say so."""
    for place in (box.hub, *box.links):
        listed = subprocess.run(
            box.command(place, ["ip", "route", "show"]), capture_output=True, text=True, check=True
        )
        for route in listed.stdout.splitlines():
            change = ["ip", "route", "replace", *route.split(), "rto_min", RTO_MIN]
            subprocess.run(box.command(place, change), check=True, capture_output=True)


def _round_s(bench, loss, rounds, **settings):
    """Trains over such links. Returns (mean seconds of a round, rounds that lack a node, good)."""
    links = dict.fromkeys(PAIR, Link(rate_mbit=100, rtt_ms=40, loss=loss))
    with BoxedCase(bench, links, congestion="bbr", **settings) as case:
        _set_least_timeout(case.box)
        case.start(3)
        first, begin = case.committed(), time.monotonic()
        case.step(first + rounds)
        last, end = case.committed(), time.monotonic()
        payload = int(case.show()["contributionBytes"])
        lost = sum(case.box.stats("a")[way]["lost"] for way in ("up", "down"))
        good = aftermath(bench, case, LAST_SLOW if payload > SMALL_BYTES else LAST_STEPS)
        failed = sum(
            what == "committed" and len(names) < len(PAIR) for what, _, names in events(case.log())
        )
    mean = (end - begin) / (last - first)
    bench.say(
        f"r18: {payload} bytes, loss {loss:.0%} ({lost} packets of a's link): {mean * 1000:.1f} ms "
        f"a round in {last - first} rounds, {failed} without a node"
    )
    return mean, failed, good


def r18(bench):
    """Loss and delay."""
    sizes = {"small": ({}, 60 if bench.short else 200)}
    if not bench.short:
        sizes["large"] = ({"model": LARGE, "preset": "full"}, 40)
    held, failed, slower = True, 0, {}
    for name, (settings, rounds) in sizes.items():
        calm, missed, good = _round_s(bench, 0, max(40, rounds // 2), **settings)
        rough, missed_too, good_too = _round_s(bench, 0.01, rounds, **settings)
        held, failed = held and good and good_too, failed + missed + missed_too
        slower[name] = rough / calm
    bench.result(
        "r18", held and failed == 0, max(slower.values()), 1.5, "x_of_time_without_loss",
        **slower, rounds=sum(rounds for _, rounds in sizes.values()), rounds_without_a_node=failed,
    )  # fmt: skip


class _Uploads:
    """Samples what a node's link brings, to find when each contribution was on it."""

    STEP_S, BUSY_BYTES, QUIET_S = 0.01, 8_000, 0.1

    def __init__(self, case, index, payload):
        self.case, self.index, self.payload = case, index, payload
        self.times = []
        self._begin = self._quiet = None
        self._bytes = self._last = 0

    def sample(self):
        """To be called every STEP_S."""
        line = re.search(rf"wan{self.index}:\s*(\d+)", self.case.network_file("dev"))
        now, total = time.monotonic(), int(line.group(1))
        delta, self._last = total - self._last, total
        if delta >= self.BUSY_BYTES:
            if self._begin is None:
                self._begin, self._bytes = now - self.STEP_S, 0
            self._quiet = now
        if self._begin is not None:
            self._bytes += delta
            if now - self._quiet > self.QUIET_S:
                if 0.98 * self.payload <= self._bytes <= 1.3 * self.payload:
                    self.times.append(self._quiet - self._begin)
                self._begin = None
        time.sleep(self.STEP_S)


def _use_of_link(bench, uploads):
    """Median seconds of a contribution on a link of 100 Mbit/s, over what it would take at best."""
    links = dict.fromkeys(PAIR, Link(rate_mbit=100, rtt_ms=10))
    with BoxedCase(bench, links, model=LARGER, preset="full") as case:
        case.start(2)
        payload = int(case.show()["contributionBytes"])
        seen = _Uploads(case, 0, payload)
        case.seconds_until(lambda: len(seen.times) >= uploads, seen.sample)
        good = aftermath(bench, case, LAST_SLOW)
    best = payload * 8 / 100e6
    each = ", ".join(f"{seconds:.2f}" for seconds in seen.times)
    bench.say(f"r19: {payload} bytes, {best:.2f} s at the link's rate; took {each} s")
    return statistics.median(seen.times) / best, good


def _slow_node(bench, rounds):
    """The longest of some rounds while one node's link is far too slow."""
    links = dict.fromkeys(TRIO, Link(rate_mbit=100, rtt_ms=10))
    times = {"deadline_ms": DEADLINE_S * 1000, "grace_ms": DEADLINE_S * 1000}
    with BoxedCase(bench, links, quorum=2, model=LARGE, preset="full", **times) as case:
        case.start(2)
        case.box.set("c", rate_mbit=1)
        begin = len(case.log())
        case.step(case.committed() + 2 + rounds)
        slowest = _longest(case.log(), begin)
        without_c = sum(what == "committed" and "c" not in n for what, _, n in events(case.log()))
        case.box.set("c", rate_mbit=100)
        good = aftermath(bench, case, LAST_SLOW)
    bench.say(f"r19: with c on 1 Mbit/s the slowest round took {slowest:.2f} s")
    return slowest, without_c, good


def r19(bench):
    """Rates."""
    use, good = _use_of_link(bench, 2 if bench.short else 5)
    slowest, without_c, good_too = _slow_node(bench, 2 if bench.short else 6)
    held = good and good_too and without_c > 0 and slowest <= DEADLINE_S + LATE_S
    bench.result(
        "r19", held, use, 1.25, "x_of_best_time_on_the_link",
        share_of_rate=1 / use, slowest_round_s=slowest, deadline_s=DEADLINE_S,
        rounds_without_the_slow_node=without_c,
    )  # fmt: skip


def _opened(case, node):
    """Connections that were made in a node's namespace; its trainers need none."""
    lines = [line.split() for line in case.network_file("snmp", f"agent-{node}").splitlines()]
    names, values = (line for line in lines if line[0] == "Tcp:")
    return int(values[names.index("ActiveOpens")])


def r21(bench):
    """Connections are killed all the time."""
    tool("ss", "iproute2")
    storm_s = 10 if bench.short else 30
    links = dict.fromkeys(PAIR, Link(rate_mbit=100, rtt_ms=20))
    with BoxedCase(bench, links) as case:
        case.start(5)
        port = case.cluster.address.rpartition(":")[2]
        before, passed = {node: _opened(case, node) for node in PAIR}, case.committed()
        begin = case.run.step
        until, kills, killed = time.monotonic() + storm_s, 0, 0
        while (now := time.monotonic()) < until:
            for node in PAIR:
                done = subprocess.run(
                    case.box.command(node, ["ss", "-K", "-H", "-t", f"dport = :{port}"]),
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                killed += len(done.stdout.splitlines())
            kills += 1
            case.run.wait_seconds(max(0, now + 0.2 - time.monotonic()))
        if killed == 0:
            raise RunError("ss -K killed no connection; the kernel may lack INET_DIAG_DESTROY")
        rates = {node: (_opened(case, node) - before[node]) / storm_s for node in PAIR}
        rounds = case.run.step - begin
        back_s = case.seconds_until(lambda: case.committed() > passed + rounds + 3, case.run.look)
        good = aftermath(bench, case)
    bench.result(
        "r21", good and rounds > 0, max(rates.values()), 5, "connects_a_second_and_node",
        storm_s=storm_s, times=kills, killed=killed, rounds_meanwhile=rounds, back_s=back_s,
    )  # fmt: skip


CASES = {"r16": r16, "r17": r17, "r18": r18, "r19": r19, "r21": r21}
