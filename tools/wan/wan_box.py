"""WAN in a box: a hub and its sites as network namespaces, joined by links that behave like a WAN.

    with WanBox({"frankfurt": Link(rate_mbit=10, rtt_ms=40, loss=0.01), "virginia": Link()}) as box:
        subprocess.Popen(box.command(HUB, ["coordinator", f"--listen={box.hub_address()}:0", …]))
        subprocess.Popen(box.command("virginia", ["agent", …]))
        box.partition("virginia", "up")
        box.heal("virginia")

Every packet between two namespaces goes through one relay process (relay.h), which limits, delays,
loses, reorders, doubles, damages or stops it; settings change while it runs. Nothing of the
machine's own network is touched, so any number of boxes may run beside each other.

The box goes with its owner: leaving it ends what still runs in its namespaces and removes them.
After a kill -9 of the owner the relay ends by itself, and the next box that starts on the machine
removes the rest, which carries the owner's process id and start time in its name.

On its own, `python3 wan_box.py --rate 10 --rtt 40 --loss 0.01` measures a link against its claims.
"""

import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass, fields
from pathlib import Path

HUB = "hub"
DIRECTIONS = ("up", "down", "both")

NAMESPACES = Path("/run/netns")
NAME_PREFIX = "isthmus-wan"
# Owner's process id and start time (both, as ids are used again), number of the box, place.
NAME = re.compile(NAME_PREFIX + r"-(\d+)\.(\d+)-\d+-.+")
SITE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
SITES_MAX = 200
NETWORK = "10.77.0.0/16"
HUB_ADDRESS = "10.77.255.1"
# What a device holds while the relay waits for a processor; the queue of the link is the relay's.
DEVICE_PACKETS = "5000"
ANSWER_TIMEOUT_S = 10
COMMAND_TIMEOUT_S = 20
CLONE_NEWNET = 0x40000000

ROOT = Path(__file__).resolve().parent.parent.parent
RELAY_PLACES = (Path(__file__).resolve().parent / "relay", ROOT / "bazel-bin/tools/wan/relay")


class WanError(Exception):
    """A sentence for the person at the terminal."""


@dataclass(frozen=True)
class Link:
    """What the link of a site does, the same in both directions. Probabilities are 0 to 1."""

    rate_mbit: float = 0  # 10^6 bits of IP packets a second and direction; 0: no limit
    rtt_ms: float = 0  # half of it in each direction
    loss: float = 0  # a packet and direction
    jitter_ms: float = 0  # a packet is late by 0 to this, in order, in each direction
    reorder: float = 0  # a packet comes 5 ms late and others overtake it
    duplicate: float = 0
    corrupt: float = 0  # one bit behind the IP header is flipped
    queue_kbyte: float = 0  # before the bottleneck; 0: 100 ms at the rate, at least 64 kB

    def settings(self):
        """The relay's words for it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["delay_ms"] = values.pop("rtt_ms") / 2
        return values


def _start_ticks(pid):
    """When a process began, in clock ticks after boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _write_setting(key, value):
    """Sets a network setting in the calling thread's namespace."""
    path = Path("/proc/sys/net", key)
    if not path.exists():  # kernels without IPv6 have nothing to turn off
        return
    try:
        path.write_text(value)
    except OSError as error:
        raise WanError(f"the kernel refuses {value} for net/{key}: {error.strerror}") from error


def _ip(*arguments, check=True):
    """Runs `ip`; raises WanError with its own words."""
    done = subprocess.run(
        ["ip", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if check and done.returncode != 0:
        raise WanError(f"'ip {' '.join(arguments)}' failed: {done.stderr.strip()}")
    return done.stdout


def _remove_namespace(name):
    """Ends what runs in a namespace and removes it; no error if it is gone already."""
    for pid in _ip("netns", "pids", name, check=False).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    _ip("netns", "del", name, check=False)


def remove_leftovers():
    """Removes the namespaces of boxes whose owner is gone; returns their names."""
    removed = []
    for path in sorted(NAMESPACES.glob(NAME_PREFIX + "-*")) if NAMESPACES.exists() else []:
        match = NAME.fullmatch(path.name)
        if match and _start_ticks(match.group(1)) != int(match.group(2)):
            _remove_namespace(path.name)
            removed.append(path.name)
    return removed


class WanBox:
    """Use it in a `with` statement. One thread at a time may use a box."""

    hub = HUB
    _numbers = itertools.count()

    def __init__(self, links, seed=1, relay=None, congestion=None):
        """`links`: a Link for each site, by name; `seed` starts all random draws of the relay.

        `congestion`: what TCP uses, such as "reno" or "bbr"; None: what the machine uses. It
        decides how fast a link with loss is. The kernel takes only those of its setting
        net.ipv4.tcp_allowed_congestion_control.
        """
        for site in links:
            if site == HUB or not SITE_NAME.fullmatch(site):
                raise WanError(f"'{site}' is no name for a site: a-z, 0-9, -, and not '{HUB}'")
        if not 1 <= len(links) <= SITES_MAX:
            raise WanError(f"a box has 1 to {SITES_MAX} sites, not {len(links)}")
        self.links = dict(links)
        self._seed = seed
        self._congestion = congestion
        self._relay_path = Path(relay) if relay else find_relay()
        self._relay = None
        self._sites = list(links)
        self._name = f"{NAME_PREFIX}-{os.getpid()}.{_start_ticks(os.getpid())}-"
        self._name += str(next(WanBox._numbers))

    @staticmethod
    def why_not(relay=None):
        """Why no box can run on this machine, in a sentence; None if one can."""
        if not (Path(relay) if relay else find_relay()).exists():
            return "the relay is not built (bazel build //tools/wan:relay)"
        if shutil.which("ip") is None:
            return "there is no ip command (Debian package iproute2)"
        if os.geteuid() != 0:
            return "network namespaces need root, and this is another user"
        try:
            os.close(os.open("/dev/net/tun", os.O_RDWR))
        except OSError as error:
            return f"/dev/net/tun does not open ({error.strerror})"
        probe = f"{NAME_PREFIX}-{os.getpid()}.{_start_ticks(os.getpid())}-"
        probe += f"{next(WanBox._numbers)}-probe"
        try:
            _ip("netns", "add", probe)
            _ip("netns", "exec", probe, "true")
        except WanError as error:
            return f"network namespaces are not allowed here ({error})"
        finally:
            _remove_namespace(probe)
        return None

    def __enter__(self):
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _build(self):
        for place in (HUB, *self._sites):
            _ip("netns", "add", self.namespace(place))
            self._prepare(place)
        self._relay = subprocess.Popen(
            [self._relay_path, str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for the owner, who still needs the network then
        )
        hub = self.namespace(HUB)
        for index, site in enumerate(self._sites):
            ends = f"{NAMESPACES}/{hub} wan{index} {NAMESPACES}/{self.namespace(site)} wan"
            self._ask(f"link {site} {ends}")
            self._address(site, index)
            self.set(site, **self.links[site].settings())

    def _prepare(self, place):
        """Loopback; IPv4 only; the hub passes on between sites."""
        name = self.namespace(place)
        _ip("-n", name, "link", "set", "lo", "up")
        # Saved windows of earlier connections would make one measurement depend on another.
        settings = ["ipv6/conf/all/disable_ipv6=1", "ipv6/conf/default/disable_ipv6=1"]
        settings += ["ipv4/tcp_no_metrics_save=1", "ipv4/ip_forward=1"]
        if self._congestion:
            settings.append(f"ipv4/tcp_congestion_control={self._congestion}")
        with self.inside(place):
            for setting in settings:
                _write_setting(*setting.split("="))
        if place == HUB:
            _ip("-n", name, "addr", "add", f"{HUB_ADDRESS}/32", "dev", "lo")

    def _address(self, site, index):
        hub, name = self.namespace(HUB), self.namespace(site)
        near, far = f"10.77.{index}.1", f"10.77.{index}.2"
        _ip("-n", hub, "addr", "add", near, "peer", far, "dev", f"wan{index}")
        _ip("-n", hub, "link", "set", f"wan{index}", "up", "txqueuelen", DEVICE_PACKETS)
        _ip("-n", name, "addr", "add", far, "peer", near, "dev", "wan")
        _ip("-n", name, "link", "set", "wan", "up", "txqueuelen", DEVICE_PACKETS)
        # No default route: whoever asks a name server learns at once that there is none.
        _ip("-n", name, "route", "add", NETWORK, "via", near)

    def close(self):
        """Ends the relay and what still runs in the box, and removes its namespaces."""
        if self._relay:
            self._relay.stdin.close()
            try:
                self._relay.wait(ANSWER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._relay.kill()
                self._relay.wait()
            self._relay.stdout.close()
            self._relay = None
        for place in (HUB, *self._sites):
            if (NAMESPACES / self.namespace(place)).exists():
                _remove_namespace(self.namespace(place))

    def namespace(self, place):
        """The name of the network namespace of HUB or a site."""
        if place != HUB and place not in self.links:
            raise WanError(f"there is no site '{place}'; there are {', '.join(self._sites)}")
        return f"{self._name}-{place}"

    def command(self, place, argv):
        """The command line that runs `argv` at HUB or a site; its process has the id of argv's."""
        return ["ip", "netns", "exec", self.namespace(place), *map(str, argv)]

    def hub_address(self, _site=None):
        """The IPv4 address of the hub, the same one from every site."""
        return HUB_ADDRESS

    def site_address(self, site):
        """The IPv4 address of a site."""
        return f"10.77.{self._sites.index(site)}.2"

    def congestion(self):
        """What TCP uses in the box."""
        with self.inside(HUB):
            return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    def inside(self, place):
        """Within this `with` statement the calling thread is in the namespace of a place."""
        return _Inside(NAMESPACES / self.namespace(place))

    def socket(self, place, kind=socket.SOCK_STREAM):
        """A new IPv4 socket at a place, for this process to use."""
        with self.inside(place):
            return socket.socket(socket.AF_INET, kind)

    def set(self, site, direction="both", **settings):
        """Changes a link while it runs, in one direction ("up": to the hub) or both.

        Takes the names of Link's fields, and delay_ms, one way, in place of rtt_ms.
        """
        if "rtt_ms" in settings:
            settings["delay_ms"] = settings.pop("rtt_ms") / 2
        words = " ".join(f"{name}={float(value)!r}" for name, value in settings.items())
        self._set(site, direction, words)

    def partition(self, site, direction="both"):
        """Lets nothing through any more, without a word to either side, until `heal`."""
        self._set(site, direction, "cut=1")

    def heal(self, site):
        """Ends a partition."""
        self._set(site, "both", "cut=0")

    def _set(self, site, direction, words):
        self.namespace(site)  # names an unknown site in words
        self._ask(f"set {site} {direction} {words}")

    def stats(self, site):
        """Counts of packets since the start, such as {"up": {"passed": …, "lost": …}, …}."""
        counts = {"up": {}, "down": {}}
        for part in self._ask(f"stats {site}").split():
            name, value = part.split("=")
            way, what = name.split(".")
            counts[way][what] = int(value)
        return counts

    def _ask(self, line):
        """Sends a command to the relay and returns its answer without the "ok"."""
        give_up = threading.Timer(ANSWER_TIMEOUT_S, self._relay.kill)
        give_up.start()
        try:
            self._relay.stdin.write(line + "\n")
            answer = self._relay.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            give_up.cancel()
        if not answer:
            raise WanError(f"the relay ended or gave no answer to '{line}'")
        word, _, rest = answer.strip().partition(" ")
        if word != "ok":
            raise WanError(rest)
        return rest


class _Inside:
    """Moves the calling thread into a network namespace and back."""

    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self, path):
        self._path = path
        self._home = None

    def __enter__(self):
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self._path, os.O_RDONLY)
        self._enter(there)
        os.close(there)

    def __exit__(self, *_):
        self._enter(self._home)
        os.close(self._home)

    def _enter(self, namespace):
        if self._libc.setns(namespace, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise WanError(f"cannot enter the namespace {self._path}: {os.strerror(code)}")


def find_relay():
    """The built relay beside this file or in Bazel's folder; the last place if there is none."""
    return next((path for path in RELAY_PLACES if path.exists()), RELAY_PLACES[-1])


if __name__ == "__main__":
    import sys

    from wan_measure import main

    sys.exit(main())
