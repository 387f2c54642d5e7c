"""Faults of limits: what happens when there are too few of something.

r37    The coordinator runs out of descriptors while idle connections pile up: gRPC's listener is
       dead from then on. Nodes that are connected go on; the process finds out and ends.
"""

import resource
import socket

from .case import Case, descriptors

EXIT_NO_LISTENER = 4
DEAD_S_MAX, BACK_S_MAX = 15, 10
SPARE_DESCRIPTORS = 8
IDLE_CONNECTIONS = 64


def take_descriptors(process):
    """Leaves a process a few more descriptors than it has open."""
    held = descriptors(process.pid) + SPARE_DESCRIPTORS
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (held, held))


def steps_of(case):
    """Steps that node a has written down."""
    return len(case.cluster.metrics_file("a", 0).read_text().splitlines())


def r37(bench):
    """No descriptor is left for a new connection."""
    with Case(bench, rounds=100_000) as case:  # it does not end by itself meanwhile
        case.start(5)
        coordinator = case.processes["coordinator"]
        take_descriptors(coordinator)
        host, _, port = case.cluster.address.rpartition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(IDLE_CONNECTIONS)]
        steps = steps_of(case)
        seconds = case.seconds_until(lambda: coordinator.poll() is not None)
        for connection in idle:
            connection.close()
        rounds = steps_of(case) - steps
        told = case.log_has("no longer takes new connections")
        joined = case.joined()
        back_s = case.seconds_until(
            lambda: case.joined() >= joined + len(case.cluster.ranks), case.run.look
        )
        case.seconds_until(lambda: all(case.is_member(node) for node in case.cluster.ranks))
        case.step(case.committed() + 5)  # with both of them again
    held = told and coordinator.returncode == EXIT_NO_LISTENER and rounds > 0
    held = held and back_s <= BACK_S_MAX
    bench.result(
        "r37",
        held,
        seconds,
        DEAD_S_MAX,
        "s",
        exit_code=coordinator.returncode,
        rounds_meanwhile=rounds,
        back_s=back_s,
    )


CASES = {"r37": r37}
