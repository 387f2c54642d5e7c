"""Faults of the way to the coordinator: its address, a proxy on it, many nodes on it at once.

c11    The coordinator on IPv6, on both families, on a machine that has no IPv6, and behind a name
       that has addresses of both; and addresses that cannot be read.
moved  The coordinator's name leads to another address: because the way there is dead, without a
       word, or because it was started on another machine.
proxy  A plain TCP proxy in the middle dies and comes back, at random moments.
r22    The coordinator is killed and started again with 64 agents: they do not come all at once.
"""

import pathlib
import random
import subprocess
import tempfile
import time

from chaos import kill
from wan_box import Link as WanLink

from .case import CALL_S, DEBUG, Case, boxed, measured, spec_text, write_text
from .ledger import aftermath
from .link import Link

PAIR = {"a": 1, "b": 1}
ENDLESS = 1_000_000
BACK_S_MAX = 5
# kKeepaliveTimeMs and kKeepaliveTimeoutMs of base/limits.h: when silence is noticed.
SILENCE_S = 20 + 10
NAME = "coordinator.test"
# In a mount namespace of its own a process sees other names: $0 is a file like /etc/hosts.
OTHER_HOSTS = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


def _prepared(bench, box=None):
    case = Case(bench, PAIR, rounds=ENDLESS, box=box)
    for program in ("coordinator", "agent"):
        case.cluster.flags[program] = [*DEBUG, "--allow_plaintext"]
    return case


def _trains(bench, what, listen, routes, box=None):
    """Whether a run does with such addresses: PORT stands for one that is free."""
    with _prepared(bench, box) as case:
        port = case.free_port()
        case.cluster.address = listen.replace("PORT", port)
        for node, address in zip(PAIR, routes, strict=True):
            case.cluster.routes[node] = address.replace("PORT", port)
        case.ask_at = case.cluster.routes["a"]
        if box is not None:  # all of it on one machine
            names = [f"{kind}-{node}" for node in PAIR for kind in ("agent", "trainer")]
            case.cluster.places = dict.fromkeys([*names, "trainer-a-0", "trainer-b-0"], box.hub)
        case.start(5)
        good = aftermath(bench, case)
    bench.say(f"c11: {what}: {'good' if good else 'bad'}")
    return good


def _refusals(bench, folder):
    """Addresses that cannot be read: each program must say so, and what to write."""
    spec = pathlib.Path(folder) / "run.txtpb"
    spec.write_text(spec_text(PAIR))
    text = spec.with_name("text")
    write_text(text)
    bad = []
    for address in ("::1:7070", "::1", "[::1]", "[::1:7070", "fe80::1:7070", "[no]:7070"):
        for program, flags in (
            ("server/coordinator", [f"--run_spec={spec}", "--listen="]),
            ("worker/agent", ["--node=a", "--listen=unix:/nowhere/a.sock", "--coordinator="]),
            ("worker/trainer", ["--rank=0", "--ranks=1", f"--data={text}", "--agent="]),
            ("server/ctl/isthmusctl", ["runs", "show", "--server="]),
        ):
            done = subprocess.run(
                [bench.bazel_bin / program, *flags[:-1], flags[-1] + address],
                capture_output=True, text=True, check=False, timeout=CALL_S,
            )  # fmt: skip
            said = done.stdout + done.stderr
            if done.returncode <= 0 or address not in said or "bracket" not in said:
                bad.append(f"{program} {address}: {done.returncode} {said.strip()}")
    for text in bad:
        bench.say(f"c11: {text}")
    return len(bad)


def c11(bench):
    """Forms of addresses."""
    forms = [
        ("IPv6", "[::1]:PORT", ("[::1]:PORT",) * 2),
        ("both families", "[::]:PORT", ("127.0.0.1:PORT", "[::1]:PORT")),
        ("a name with both, IPv4 served", "127.0.0.1:PORT", ("localhost:PORT", "127.0.0.1:PORT")),
        ("a name with both, IPv6 served", "[::1]:PORT", ("localhost:PORT", "[::1]:PORT")),
    ]
    bad = sum(not _trains(bench, *form) for form in (forms[1:2] if bench.short else forms))
    only_v4 = [("a name", "localhost:PORT", ("localhost:PORT", "127.0.0.1:PORT"))]
    only_v4 += [("all addresses", "[::]:PORT", ("localhost:PORT", "127.0.0.1:PORT"))]
    for what, *form in only_v4[:1] if bench.short else only_v4:
        with boxed(bench, {"a": WanLink()}) as box:
            bad += not _trains(bench, f"without IPv6, {what}", *form, box)
    with tempfile.TemporaryDirectory(prefix="isthmus-fault-") as folder:
        refused = _refusals(bench, folder)
    bench.result("c11", True, bad + refused, 0, "forms_that_fail", runs=len(forms) + len(only_v4))


def _back(case, joined):
    """Seconds until all nodes are members again and rounds go on."""
    everybody = case.cluster.ranks
    seconds = case.seconds_until(
        lambda: all(case.joined(node) > joined[node] for node in everybody), case.run.look
    )
    seconds += case.seconds_until(lambda: all(case.is_member(node) for node in everybody))
    case.step(case.run.step + 3)
    return seconds


def _joined(case):
    return {node: case.joined(node) for node in case.cluster.ranks}


def moved(bench):
    """Another address."""
    with _prepared(bench) as case:
        port = case.free_port()
        case.cluster.address = f"127.0.0.2:{port}"
        hosts = case.folder / "hosts"
        way = case.add_link(Link(int(port), host="127.0.0.2", listen=("127.0.0.4", int(port))))
        hosts.write_text(f"127.0.0.4 {NAME}\n")
        case.cluster.under["agent"] = [*OTHER_HOSTS, str(hosts)]
        case.cluster.routes = dict.fromkeys(PAIR, f"{NAME}:{port}")
        case.start(5)
        silent_s = 0.0
        if bench.short:
            way.cut()
        else:
            joined = _joined(case)
            way.dead = True
            hosts.write_text(f"127.0.0.2 {NAME}\n")
            silent_s = _back(case, joined)
        joined = _joined(case)
        kill(case.processes["coordinator"])
        case.cluster.address = f"127.0.0.3:{port}"
        case.cluster.start_coordinator()
        time.sleep(random.Random(bench.seed).uniform(0, 3))  # names are changed late
        hosts.write_text(f"127.0.0.3 {NAME}\n")
        seconds = _back(case, joined)
        good = aftermath(bench, case)
    bench.result(
        "moved", good and silent_s <= SILENCE_S + BACK_S_MAX, seconds, BACK_S_MAX, "s",
        silent_s=silent_s, silent_s_max=SILENCE_S + BACK_S_MAX, seed=bench.seed,
    )  # fmt: skip


def proxy(bench):
    """A proxy that dies."""
    times, draw, slowest = 2 if bench.short else 10, random.Random(bench.seed), 0.0
    with _prepared(bench) as case:
        links = {node: case.use_link(node) for node in PAIR}
        case.start(5)
        for number in range(times):
            case.run.wait_seconds(draw.uniform(0, 1))
            node, away_s = draw.choice(sorted(PAIR)), draw.uniform(0.1, 4 if bench.short else 8)
            joined = {node: case.joined(node)}
            links[node].close()
            case.run.wait_seconds(away_s)
            links[node] = case.add_link(links[node].again())
            seconds = case.seconds_until(
                lambda n=node, j=joined[node]: case.joined(n) > j and case.is_member(n),
                case.run.look,
            )
            case.step(case.run.step + 3)
            slowest = max(slowest, seconds)
            bench.say(f"proxy {number}: of {node}, away {away_s:.1f} s: back {seconds:.2f} s")
        good = aftermath(bench, case)
    bench.result("proxy", good, slowest, BACK_S_MAX, "s", deaths=times, seed=bench.seed)


def r22(bench):
    """64 agents come back."""
    good, got = measured(
        bench, "r22", "AgentsComeBackSpread", program="tests/server/reconnect_test",
        suite="ReconnectTest",
    )  # fmt: skip
    # The bar is a least; the figure is what lacks.
    spread_s, least_s = got["spread_ms"] / 1000, 2
    bench.result(
        "r22", good and got["joined_again"] == got["agents"], max(0.0, least_s - spread_s), 0,
        "s_that_lack_of_2", spread_s=spread_s, agents=got["agents"], back_s=got["back_ms"] / 1000,
        most_in_100_ms=got["most_in_100_ms"],
    )  # fmt: skip


CASES = {"c11": c11, "moved": moved, "proxy": proxy, "r22": r22}
