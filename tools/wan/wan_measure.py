"""Measures the links of a WAN in a box by traffic of its own, to hold them against their claims.

All sockets belong to this process and lie in the box's namespaces; what arrives is counted by the
receiver, not by the relay. Rates count IP packets, as the relay does.
"""

import argparse
import math
import os
import re
import socket
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from wan_box import HUB, Link, WanBox, WanError

UDP_AND_IP_BYTES = 28
FULL_PAYLOAD = 1472  # a packet of 1500 bytes
SMALL_PAYLOAD = 100
PINGS = 50
# A flood asks for this much more than the rate, so that the queue never runs dry.
FLOOD_OVER_RATE = 1.3
# Losses are counted at this share of the rate, so that no packet is lost to a full queue.
LOSS_AT_RATE = 0.5
# More than Python sends and counts on a busy core would measure Python.
PACKETS_PER_S_MAX = 10_000
# How far a measurement may be from its claim. Rate: the queue's first fill and the clock's ends.
# RTT: what two switches to the relay cost on a busy machine. Loss: 4 deviations of the count.
RATE_TOLERANCE = 0.03
RTT_TOLERANCE_MS = 2.0
LOSS_DEVIATIONS = 4
BUFFER_BYTES = 1 << 22
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; Python does not name it
QUIET_S = 0.3


@dataclass
class Flood:
    """What a stream of numbered packets did: counts, and the rate at which they arrived."""

    sent: int
    received: int
    late: int  # arrived behind a packet with a higher number
    twice: int
    mbit: float

    @property
    def loss(self):
        """The share of packets that never arrived."""
        return 1 - (self.received - self.twice) / self.sent


def _pair(box, site, direction, kind):
    """Sockets (sender, receiver, receiver's address) for one direction of a link."""
    sender, receiver = (site, HUB) if direction == "up" else (HUB, site)
    source, sink = box.socket(sender, kind), box.socket(receiver, kind)
    sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    address = box.hub_address() if receiver == HUB else box.site_address(site)
    sink.bind((address, 0))
    return source, sink, sink.getsockname()


@contextmanager
def _at_once():
    """The calling thread gets a processor as soon as it wants one, where that is permitted.

    Otherwise the round trips of a busy machine would measure its processors.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        pass
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def round_trips_ms(box, site, count=PINGS, timeout_s=1.0):
    """The times of `count` UDP round trips of 1 packet each, without those that were lost."""
    source, sink, address = _pair(box, site, "up", socket.SOCK_DGRAM)
    times = []
    with source, sink, _at_once():
        source.settimeout(timeout_s)
        sink.settimeout(timeout_s)
        for number in range(count):
            payload = number.to_bytes(8, "little")
            begun = time.perf_counter()
            source.sendto(payload, address)
            try:
                back = None
                while back != payload:
                    got, sender = sink.recvfrom(64)
                    sink.sendto(got, sender)
                    back = source.recv(64) if got == payload else None
                times.append(1000 * (time.perf_counter() - begun))
            except TimeoutError:
                pass
    return times


def _count(sink, done, counts):
    """Receives until nothing has come for QUIET_S after `done`; fills `counts`."""
    sink.settimeout(QUIET_S)
    packet = bytearray(2048)
    seen, highest, total = set(), -1, 0
    first = last = time.perf_counter()
    received = late = bytes_after_first = 0
    while True:
        try:
            size = sink.recv_into(packet)
        except TimeoutError:
            if done.is_set():
                break
            continue
        last = time.perf_counter()
        if received == 0:
            first = last
        else:
            bytes_after_first += size + UDP_AND_IP_BYTES
        received += 1
        number = int.from_bytes(packet[:8], "little")
        total += number in seen
        seen.add(number)
        late += number < highest
        highest = max(highest, number)
    mbit = bytes_after_first * 8e-6 / (last - first) if last > first else 0.0
    counts.update(received=received, late=late, twice=total, mbit=mbit)


def flood(box, site, direction, mbit, seconds, payload_bytes=FULL_PAYLOAD):
    """Sends numbered UDP packets at a steady rate in one direction; returns a Flood.

    Waits for what is on its way, at most QUIET_S between two packets and the link's delay.
    """
    source, sink, address = _pair(box, site, direction, socket.SOCK_DGRAM)
    per_s = min(mbit * 1e6 / 8 / (payload_bytes + UDP_AND_IP_BYTES), PACKETS_PER_S_MAX)
    packets = max(1, int(per_s * seconds))
    rest = bytes(payload_bytes - 8)
    done, counts = threading.Event(), {}
    with source, sink:
        reader = threading.Thread(target=_count, args=(sink, done, counts))
        reader.start()
        begun = time.perf_counter()
        for number in range(packets):
            ahead = begun + number / per_s - time.perf_counter()
            if ahead > 0.001:
                time.sleep(ahead)
            source.sendto(number.to_bytes(8, "little") + rest, address)
        done.set()
        reader.join()
    return Flood(sent=packets, **counts)


def tcp_mbit(box, site, direction, seconds):
    """Payload that one TCP stream brings across in one direction, in Mbit/s."""
    source, listener, address = _pair(box, site, direction, socket.SOCK_STREAM)
    stop = time.perf_counter() + seconds

    def send():
        block = bytes(1 << 18)
        source.settimeout(seconds + 5)
        with source:
            source.connect(address)
            try:
                while True:
                    source.sendall(block)
            except OSError:  # the receiver has heard enough
                pass

    with listener:
        listener.listen(1)
        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = listener.accept()
        total, begun, now = 0, time.perf_counter(), 0.0
        with connection:
            block = bytearray(1 << 20)
            while now < stop:
                size = connection.recv_into(block)
                now = time.perf_counter()
                total += size
        sender.join()
    return total * 8e-6 / (now - begun)


def loss_tolerance(loss, packets):
    """How far a count of so many packets may be from a loss, as a share."""
    return LOSS_DEVIATIONS * math.sqrt(max(loss * (1 - loss), 0.0) / packets)


def measure(box, site, seconds):
    """Measures each direction of a link; returns (values for the result line, whether all hold)."""
    link = box.links[site]
    trips = round_trips_ms(box, site)
    rtt = statistics.median(trips) if trips else math.inf
    met = link.rtt_ms <= rtt <= link.rtt_ms + 2 * link.jitter_ms + RTT_TOLERANCE_MS
    values = {"claimed_rtt_ms": link.rtt_ms, "measured_rtt_ms": rtt}
    rates, losses = [], []
    for direction in ("up", "down"):
        rate = link.rate_mbit or 1000
        sent = flood(box, site, direction, rate * LOSS_AT_RATE, seconds, SMALL_PAYLOAD)
        losses.append(sent.loss)
        met &= abs(sent.loss - link.loss) <= loss_tolerance(link.loss, sent.sent)
        if link.rate_mbit:
            # What is lost has used the link: the link sent more than what arrived.
            arrived = flood(box, site, direction, rate * FLOOD_OVER_RATE, seconds).mbit
            rates.append(arrived / (1 - link.loss))
            met &= abs(rates[-1] / rate - 1) <= RATE_TOLERANCE
    for name, claimed, measured in (("mbit", link.rate_mbit, rates), ("loss", link.loss, losses)):
        if measured:
            values[f"claimed_{name}"] = claimed
            values[f"measured_{name}"] = max(measured, key=lambda value: abs(value - claimed))
    return values, met


def ceiling(seed=1, relay=None, seconds=2.0):
    """(TCP Mbit/s, RTT in ms) of a link without any limit: what the box itself can carry."""
    with WanBox({"a": Link()}, seed=seed, relay=relay) as box:
        rtt = statistics.median(round_trips_ms(box, "a"))  # first, while nothing is queued
        return tcp_mbit(box, "a", "up", seconds), rtt


def result_line(link, values):
    """A line for people and scripts."""
    words = " ".join(
        f"{name}={value if isinstance(value, str) else format(value, '.4g')}"
        for name, value in values.items()
    )
    return f"result wan_box link={link} {words}"


def main():
    """The command line of wan_box.py."""
    parser = argparse.ArgumentParser(
        prog="wan_box.py", description="Measures a link of a WAN in a box against its claims."
    )
    parser.add_argument("--rate", type=float, default=10, help="Mbit/s; 0: no limit")
    parser.add_argument("--rtt", type=float, default=40, help="round-trip time in ms")
    parser.add_argument("--loss", type=float, default=0, help="share of packets, 0 to 1")
    parser.add_argument("--jitter", type=float, default=0, help="in ms, each way")
    parser.add_argument("--seconds", type=float, default=4, help="for each measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--congestion", help="of TCP, such as reno or bbr; else the machine's")
    parser.add_argument("--relay", help="the built relay, where it is not found by itself")
    given = parser.parse_args()
    reason = WanBox.why_not(given.relay)
    if reason:
        print(f"wan_box: cannot run: {reason}", file=sys.stderr)
        print(f"result wan_box skipped={re.sub('[^a-z0-9.-]+', '_', reason.lower()).strip('_')}")
        return 1
    link = Link(rate_mbit=given.rate, rtt_ms=given.rtt, loss=given.loss, jitter_ms=given.jitter)
    try:
        with WanBox({"site": link}, given.seed, given.relay, given.congestion) as box:
            values, met = measure(box, "site", given.seconds)
            values["tcp_mbit"] = tcp_mbit(box, "site", "up", given.seconds)
            values["congestion"] = box.congestion()
            values["met"] = int(met)
            print(result_line("site", values))
        mbit, rtt = ceiling(given.seed, given.relay)
    except WanError as error:
        print(f"wan_box: {error}", file=sys.stderr)
        return 1
    print(result_line("ceiling", {"measured_mbit": mbit, "measured_rtt_ms": rtt}))
    return 0 if met else 1
