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

    def wrong_s(self, bad_at, good_at, good_from=None):
        """How long it said something else than what was so: good from `good_from` (None: nothing is
        said of that time), bad from `bad_at` until `good_at`, good since. A moment in the middle of
        a time counts as if it had begun or ended with it."""
        begins = bad_at if good_from is None else good_from
        times = ((begins, bad_at, True), (bad_at, good_at, False), (good_at, float("inf"), True))
        return max(
            (
                min(asked - begin, end - answered)
                for begin, end, is_good in times
                for asked, answered, serves in self._samples
                if begin <= asked and answered < end and serves != is_good
            ),
            default=0.0,
        )


def _ended(bench, how):
    """The coordinator ends by a signal and is started again."""
    with Case(bench, PAIR, rounds=ROUNDS) as case, Health(case) as health:
        case.start(5)
        health.until(True)
        good_from = time.monotonic()
        case.step(case.committed() + 5)
        before = case.processes["coordinator"]
        bad_at = time.monotonic()
        before.send_signal(how)
        case.seconds_until(lambda: before.poll() is not None)
        case.seconds_until(lambda: case.succeeds("runs", "show"), case.run.look)
        good_at = time.monotonic()
        health.until(True)
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
        health.until(False)
        passed = case.committed()
        make_room()
        case.seconds_until(lambda: case.committed() > passed)
        good_at = time.monotonic()
        health.until(True)
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
        case.seconds_until(lambda: not case.succeeds("runs", "show"))
        bad_at = time.monotonic()
        case.seconds_until(lambda: coordinator.poll() is not None)
        for connection in idle:
            connection.close()
        case.seconds_until(lambda: case.succeeds("runs", "show"), case.run.look)
        good_at = time.monotonic()
        health.until(True)
    return health.wrong_s(bad_at, good_at, good_from)


def r45(bench):
    """What health says, and what is so."""
    lags = {
        "killed_s": _ended(bench, signal.SIGKILL),
        "told_to_end_s": _ended(bench, signal.SIGTERM),
        "no_descriptors_s": _no_descriptors(bench),
        "full_disk_s": _full_disk(bench),
    }
    bench.result("r45", True, max(lags.values()), WRONG_S_MAX, "s", **lags)


CASES = {"r45": r45}
