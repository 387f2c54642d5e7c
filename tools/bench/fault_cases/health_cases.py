"""Health tells the truth, soon.

r45    The coordinator is killed, its disk is full, it is told to end, it takes no new connections:
       each time what `isthmusctl health` says is compared with what is so.
"""

import contextlib
import signal
import socket
import threading
import time

from .case import Case
from .disk_cases import PAIR, small_disk
from .limit_cases import IDLE_CONNECTIONS, take_descriptors

WRONG_S_MAX = 2
LATE_S = WATCH_S = 1.5 * WRONG_S_MAX
EVERY_S = 0.05
ROUNDS = 100_000  # it does not end by itself meanwhile


class Health:
    """Asks again and again, each time by a new connection, while a `with` statement lasts."""

    def __init__(self, case):
        self._case = case
        self._samples = []  # (when it was asked, when it was answered, whether it serves)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _ask(self):
        while not self._ended.wait(EVERY_S):
            asked = time.monotonic()
            serves = self._case.serves()
            self._samples.append((asked, time.monotonic(), serves))

    def until(self, serves):
        """Waits until it says so, asked from now on."""
        now = time.monotonic()
        self._case.seconds_until(
            lambda: any(said == serves for asked, _, said in list(self._samples) if asked >= now),
            self._case.run.look,
        )

    def watch(self, look=lambda: None):
        """Waits until it has been asked for so long from now on that a lie would miss the bar."""
        until = time.monotonic() + WATCH_S
        self._case.seconds_until(
            lambda: any(asked >= until for asked, _, _ in list(self._samples)), look
        )

    def wrong_s(self, bad_at, good_at, good_from=None):
        """The longest time that it said something else than what was so: good from `good_from`
        (None: nothing is said of that time), bad from `bad_at` until `good_at`, good since."""
        begins = bad_at if good_from is None else good_from
        last = max((answered for _, answered, _ in self._samples), default=good_at)
        times = ((begins, bad_at, True), (bad_at, good_at, False), (good_at, last, True))
        return max(longest_wrong_s(self._samples, *each) for each in times)


def longest_wrong_s(samples, begin, end, is_good):
    """The longest unbroken time of wrong answers between two moments. What lies between a right
    answer and a wrong one counts as wrong, and so does a time without answers: nobody knows
    better."""
    longest, right_at, wrong, known = 0.0, begin, False, begin >= end
    for asked, answered, serves in samples:
        if asked < begin or answered > end:
            continue  # it may have been answered on either side
        known = True
        if serves != is_good:
            wrong = True
            longest = max(longest, answered - right_at)
            continue
        if wrong:
            longest = max(longest, answered - right_at)
        right_at, wrong = asked, False
    return longest if known and not wrong else max(longest, end - right_at)


def _asked_when(case, answers):
    """Waits until calls are answered, or are not; returns when the call that shows it was made."""
    asked = 0.0

    def so():
        nonlocal asked
        asked = time.monotonic()
        return case.succeeds("runs", "show") == answers

    case.seconds_until(so, case.run.look if answers else lambda: None)
    return asked


def _ended(bench, how):
    """The coordinator ends by a signal, is away for a while, and is started again."""
    with Case(bench, PAIR, rounds=ROUNDS) as case, Health(case) as health:
        case.start(5)
        health.until(True)
        good_from = time.monotonic()
        case.step(case.committed() + 5)
        before = case.processes["coordinator"]
        bad_at = time.monotonic()
        before.send_signal(how)
        case.seconds_until(lambda: before.poll() is not None)
        health.watch()
        good_at = _asked_when(case, True)
        health.watch(case.run.look)
        case.step(case.committed() + 5)
    return health.wrong_s(bad_at, good_at, good_from)


def _full_disk(bench):
    """There is no room, and then there is."""
    with Case(bench, PAIR, rounds=ROUNDS, preset="full") as case, contextlib.ExitStack() as stack:
        make_room = stack.enter_context(small_disk(case.cluster.coordinator_state()))
        stack.callback(case.cluster.stop)  # before the disk goes
        health = stack.enter_context(Health(case))
        case.start()
        case.seconds_until(lambda: case.log_has("cannot store the update"), case.run.look)
        bad_at = time.monotonic()
        health.watch()
        passed = case.committed()
        make_room()
        case.seconds_until(lambda: case.committed() > passed)
        good_at = time.monotonic()
        health.watch(case.run.look)
    return health.wrong_s(bad_at, good_at)


def _no_descriptors(bench):
    """No new connection is taken; the process finds out, ends, and is started again."""
    with Case(bench, PAIR, rounds=ROUNDS) as case, Health(case) as health:
        case.start(5)
        health.until(True)
        good_from = time.monotonic()
        coordinator = case.processes["coordinator"]
        take_descriptors(coordinator)
        host, _, port = case.cluster.address.rpartition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(IDLE_CONNECTIONS)]
        bad_at = _asked_when(case, False)
        case.seconds_until(lambda: coordinator.poll() is not None)
        for connection in idle:
            connection.close()
        good_at = _asked_when(case, True)
        health.watch(case.run.look)
    return health.wrong_s(bad_at, good_at, good_from)


def _finds_lies():
    """Whether answers that are LATE_S late are measured as such: a measure that cannot fail shows
    nothing."""
    bad_at, good_at = 10.0, 10.0 + WATCH_S
    asked = [0.1 * i for i in range(200)]
    late = [(at, at + 0.01, not bad_at <= at - LATE_S < good_at) for at in asked]
    true = [(at, at + 0.01, not bad_at <= at < good_at) for at in asked]
    times = ((0, bad_at, True), (bad_at, good_at, False), (good_at, 20, True))
    wrong = [max(longest_wrong_s(said, *each) for each in times) for said in (late, true)]
    return wrong[0] >= LATE_S - 0.1 > WRONG_S_MAX > wrong[1] == 0


def r45(bench):
    """What health says, and what is so."""
    lags = {
        "killed_s": _ended(bench, signal.SIGKILL),
        "told_to_end_s": _ended(bench, signal.SIGTERM),
        "no_descriptors_s": _no_descriptors(bench),
        "full_disk_s": _full_disk(bench),
    }
    bench.result("r45", _finds_lies(), max(lags.values()), WRONG_S_MAX, "s", **lags)


CASES = {"r45": r45}
