"""Faults of time: a coordinator that is paused, clocks that jump, links on which nothing happens.

r11   The coordinator is stopped for 30 s with a lease of 15: nobody loses its lease for that, and
      the next commit comes soon.
r40   The wall clock jumps by an hour, back by one, and to the year 2038, at the coordinator and at
      a node: no round notices.
c8    A run that waits, with nothing to say on its watch for four keepalive intervals: no connection
      is made anew, and nobody is told of too many pings.
"""

import json
import signal
import time

from demo_cluster import RunError

from .case import Case, all_equal

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
            case.cluster.flags[program] = ["--log_level=debug"]
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


CASES = {"r11": r11, "r40": r40, "c8": c8}
