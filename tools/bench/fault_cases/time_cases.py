"""Faults of time: processes that are paused, clocks that jump, links on which nothing happens.

r11   The coordinator is stopped for 30 s with a lease of 15: nobody loses its lease for that, and
      the next commit comes soon.
r40   The wall clock jumps by an hour, back by one, and to the year 2038, at the coordinator and at
      a node: no round notices.
c8    A run that waits, with nothing to say on its watch for four keepalive intervals: no connection
      is made anew, and nobody is told of too many pings.
r39   Four processes that compute without end on the same processors, with the default lease.
suspended   All processes of a node are stopped for longer than its lease, as when its machine
      sleeps; the node takes part again.
pauses   Every kind of process is stopped in turn, for shorter and for longer than the lease.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

from demo_cluster import RunError

from .case import DEBUG, Case, all_equal
from .ledger import aftermath

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
# What the clock is set to, as libfaketime reads it.
JUMPS = {"plus_1_h": "+3600", "minus_1_h": "-3600", "year_2038": "@2038-01-19 03:14:05"}
KEEPALIVE_S = 20  # kKeepaliveTimeMs of base/limits.h
PING_BYTES = 17  # of HTTP/2: 9 of its frame's head, 8 of its own


def r11(bench):
    """SIGSTOP of the coordinator."""
    pause_s, times = (7, {}) if bench.short else (
        30, {"lease_ms": 15_000, "heartbeat_ms": 3000}
    )  # fmt: skip
    with Case(bench, rounds=120, **times) as case:
        case.start(10)
        case.signal("coordinator", signal.SIGSTOP)
        case.run.wait_seconds(pause_s)
        case.run.look()
        step = case.run.step
        case.signal("coordinator", signal.SIGCONT)
        figure = case.seconds_until(lambda: case.run.step > step + 1, case.run.look)
        summaries = case.finish()
        ended = case.log().count("lease ended")
        skipped = max(summary["skipped_steps"] for summary in summaries.values())
        case.cluster.stop()
        sound, _ = case.check_store()
    held = all_equal(summaries) and sound and ended == 0 and skipped == 0
    held = held and not any(case.run.restarts[f"trainer-{node}"] for node in "ab")
    bench.result(
        "r11", held, figure, 6, "s", paused_s=pause_s, leases_ended=ended, skipped_steps=skipped
    )


def _fake(case, name, file):
    """Processes of this name take their wall clock from a file, and their durations from nowhere
    else than before."""
    file.write_text("+0\n")
    case.cluster.environment[name] = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def _skipped(case):
    """Steps that were merged without one of the nodes, so far."""
    return max(
        json.loads(case.cluster.metrics_file(node, 0).read_text().splitlines()[-2])["skipped_steps"]
        for node in case.cluster.ranks
    )


def r40(bench):
    """Wall clock jumps."""
    try:
        with open(FAKETIME, "rb"):
            pass
    except OSError as error:
        raise RunError("libfaketime is not installed: apt-get install faketime") from error
    rounds = 80 if bench.short else 200
    # A deadline that would close the round without the others if it went by the wall clock.
    settings = {"rounds": rounds, "quorum": 1, "deadline_ms": 60_000, "grace_ms": 60_000}
    settings["ranks"] = {"a": 1, "b": 1}
    gaps = {}
    with Case(bench, **settings) as case:
        for node in "ab":
            case.use_link(node, delay_s=0.01)
        clocks = {"coordinator": case.folder / "clock-coordinator", "node": case.folder / "clock-b"}
        _fake(case, "coordinator", clocks["coordinator"])
        for name in ("agent-b", "trainer-b-0"):
            _fake(case, name, clocks["node"])
        for program in ("coordinator", "agent"):
            case.cluster.flags[program] = DEBUG
        case.start(2)
        # With a quorum of 1 the first to join may have made a round alone.
        skipped_before = _skipped(case)
        each = (rounds - 20) // (len(JUMPS) * len(clocks))
        for side, file in clocks.items():
            for jump, content in JUMPS.items():
                file.write_text(content + "\n")
                begin, step = time.monotonic(), case.run.step
                case.seconds_until(lambda s=step: case.run.step > s + 1, case.run.look)
                gaps[f"{side}_{jump}"] = time.monotonic() - begin
                case.step(min(step + each, rounds))
        seen = case.log_has("2038-01-19T") and case.log_has("2038-01-19T", "agent-b")
        summaries = case.finish()
        ended = case.log().count("lease ended")
        restarts = case.run.restarts["trainer-a"] + case.run.restarts["trainer-b"]
    skipped = max(summary["skipped_steps"] for summary in summaries.values()) - skipped_before
    held = all_equal(summaries) and ended == 0 and skipped == 0 and restarts == 0 and seen
    each = ", ".join(f"{name} {gap:.2f}" for name, gap in gaps.items())
    bench.say(f"r40: seconds until two more rounds after each jump: {each}")
    bench.result(
        "r40",
        held,
        max(gaps.values()),
        5,
        "s",
        jumps=len(gaps),
        leases_ended=ended,
        skipped_steps=skipped,
    )


def c8(bench):
    """An idle watch."""
    idle_s = 2 * KEEPALIVE_S + 5 if bench.short else 4 * KEEPALIVE_S + 10
    with Case(bench, {"a": 1, "b": 1}, rounds=60, lease_ms=15_000, heartbeat_ms=3000) as case:
        links = [case.use_link(node) for node in "ab"]
        case.start(10)
        case.signal("trainer-b-0", signal.SIGSTOP)
        case.seconds_until(lambda: case.log_has(": waiting for b"))
        connections = sum(link.connections for link in links)
        before = [list(link.passed) for link in links]
        case.run.wait_seconds(idle_s)
        pings = []
        for link, old in zip(links, before, strict=True):
            passed = [new - was for new, was in zip(link.passed, old, strict=False)]
            # Heartbeats have a connection of their own; the others have pings alone.
            pings.append((sum(passed) - max(passed)) // PING_BYTES)
        again = sum(link.connections for link in links) - connections
        case.signal("trainer-b-0", signal.SIGCONT)
        summaries = case.finish()
        logs = "".join(case.log(name) for name in case.processes)
    goaway = logs.count("GOAWAY") + logs.count("too_many_pings")
    held = all_equal(summaries) and goaway == 0 and min(pings) >= idle_s // KEEPALIVE_S - 1
    bench.result(
        "c8", held, again, 0, "connections", idle_s=idle_s, pings_min=min(pings), goaway=goaway
    )


def r39(bench):
    """CPU starvation."""
    starved_s = 12 if bench.short else 60
    times = {"lease_ms": 0, "heartbeat_ms": 0}  # the defaults: 15 s, 3 s
    spinners = []
    with Case(bench, rounds=1_000_000, **times) as case:
        case.cluster.flags["agent"] = DEBUG
        case.start(10)
        calm_s = case.seconds_until(lambda s=case.run.step: case.run.step > s + 50, case.run.look)
        try:
            for _ in range(2 * (os.cpu_count() or 1)):
                spinners.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            step, slowest, until = case.run.step, 0.0, time.monotonic() + starved_s
            while time.monotonic() < until:
                seen, begin = case.run.step, time.monotonic()
                case.seconds_until(lambda s=seen: case.run.step > s, case.run.look)
                slowest = max(slowest, time.monotonic() - begin)
            steps = case.run.step - step
        finally:
            for spinner in spinners:
                spinner.kill()
                spinner.wait()
        ended = case.log().count("lease ended")
        skipped = _skipped(case)
        good = aftermath(bench, case)
    bench.result(
        "r39", good and skipped == 0 and steps > 0, ended, 0, "leases_ended",
        spinners=len(spinners), starved_s=starved_s, step_ms=1000 * starved_s / max(1, steps),
        step_ms_before=1000 * calm_s / 51, slowest_step_s=slowest,
    )  # fmt: skip


def _pause(case, names, seconds):
    """Stops processes for so long; returns how long it takes until all nodes take part again."""
    for name in names:
        case.signal(name, signal.SIGSTOP)
    case.run.wait_seconds(seconds)
    case.run.look()
    step, begin = case.run.step, time.monotonic()
    passed = case.committed() if "coordinator" not in names else 0
    for name in names:
        case.signal(name, signal.SIGCONT)
    passed = passed or case.committed()
    case.seconds_until(lambda: case.run.step > step and case.committed() > passed, case.run.look)
    case.seconds_until(lambda: all(case.is_member(n) for n in case.cluster.ranks), case.run.look)
    return time.monotonic() - begin


def suspended(bench):
    """A machine that sleeps."""
    times, lease_s = 1 if bench.short else 5, 3.0
    draw, found = random.Random(bench.seed), []
    with Case(bench, rounds=1_000_000, quorum=1, grace_ms=2000, deadline_ms=4000) as case:
        case.cluster.flags["agent"] = DEBUG
        case.use_link("a", delay_s=0.03)  # so that not too many rounds pass
        case.start(5)
        names = [name for name in case.processes if "-b" in name]
        for number in range(times):
            ended, away_s = case.log().count("lease ended"), lease_s + draw.uniform(1, 10)
            found.append(_pause(case, names, away_s))
            slept = case.log().count("lease ended") > ended
            bench.say(f"suspended {number}: {away_s:.1f} s (lease ended: {slept}), {found[-1]:.1f}")
        good = aftermath(bench, case) and slept
    bench.result(
        "suspended", good, max(found), 10, "s",
        processes=len(names), times=times, lease_s=lease_s, seed=bench.seed,
    )  # fmt: skip


def pauses(bench):
    """Stopped processes, one kind after the other."""
    draw, found = random.Random(bench.seed), {}
    kinds = ["coordinator", "agent-b", "trainer-b-0", "trainer-b-1"]
    with Case(bench, rounds=1_000_000, quorum=1, grace_ms=2000, deadline_ms=4000) as case:
        case.cluster.flags["agent"] = DEBUG
        case.use_link("a", delay_s=0.03)
        case.start(5)
        for name in kinds:
            shorter, longer = draw.uniform(0.2, 2.5), draw.uniform(4, 5 if bench.short else 12)
            for seconds in (shorter, longer):
                found[f"{name}_{seconds:.1f}"] = _pause(case, [name], seconds)
        good = aftermath(bench, case)
    each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items())
    bench.say(f"pauses: seconds until all take part after each: {each}")
    bench.result(
        "pauses", good, max(found.values()), 10, "s", pauses=len(found), lease_s=3.0,
        seed=bench.seed,
    )  # fmt: skip


CASES = {
    "r11": r11,
    "r40": r40,
    "c8": c8,
    "r39": r39,
    "suspended": suspended,
    "pauses": pauses,
}
