"""Faults of processes: killed, stopped, doubled.

r8     An agent is killed at 10, 50 and 90 % of its contribution, on a slow link.
r9     An agent is killed when its contribution is with the coordinator: it counts, once.
r10    A rank is killed: its node leaves and says why (5 s for a rank that may come back, and a look
       of the coordinator).
r12    An agent is stopped for longer than its lease: what it sends then is refused, and the node
       takes part again.
r13    Everything is killed at once and started again; most of the time is the loading of LibTorch.
c6     One of three nodes is killed in the middle of a round; then the job is started again.
c10    A second process takes the name of a live node.
agents_back   The coordinator is away for 12 s: all agents are back soon after it serves.
"""

import re
import signal
import time

from chaos import kill

from .case import DEBUG, RANKS, Case, all_equal, measured

AWAY_S, BACK_S_MAX = 12, 5
# A contribution of 1.9 M values: 8 pieces, 3 s on the link.
LARGE = "layers: 1 heads: 4 width: 384 context: 32"
PAIR = {"a": 1, "b": 1}
UP_BYTES_PER_S = 2.5e6
SLOWEST_BYTES_PER_S = 0.4e6
DEADLINE_S = 12


def r9(bench):
    """Agent kill after acknowledged submit."""
    with Case(bench, rounds=40 if bench.short else 200) as case:
        case.start(5)
        case.signal("trainer-b-0", signal.SIGSTOP)  # so that the round waits for b
        case.seconds_until(lambda: case.log_has(": waiting for b"))
        joined = case.joined("a")
        kill(case.processes["agent-a"])
        case.run.look()  # starts it again
        figure = case.seconds_until(lambda: case.joined("a") > joined)
        case.signal("trainer-b-0", signal.SIGCONT)
        summaries = case.finish()
        once = all(summary["skipped_steps"] == 0 for summary in summaries.values())
        held = all_equal(summaries) and once and not case.run.restarts["trainer-a"]
    bench.result("r9", held, figure, 5, "s", params_equal=all_equal(summaries))


def r10(bench):
    """A rank dies inside its node."""
    with Case(bench, rounds=40 if bench.short else 200) as case:
        case.start(5)
        kill(case.processes["trainer-b-1"])
        figure = case.seconds_until(lambda: case.log_has("node left node=b"))
        held = case.log_has("rank 1 of 2 disconnected") or case.log_has("lost another rank")
        summaries = case.finish()
    bench.result("r10", held and all_equal(summaries), figure, 6, "s")


def r12(bench):
    """An agent paused past its lease, with a contribution of its own under way."""
    with Case(bench, rounds=150 if bench.short else 250, quorum=1) as case:
        case.cluster.flags["coordinator"] = DEBUG
        case.use_link("a", delay_s=0.03)  # so that a does not end the run by itself meanwhile
        case.start(5)
        case.signal("agent-b", signal.SIGSTOP)
        case.seconds_until(lambda: case.log_has("lease ended: the node was not heard of node=b"))
        passed = case.committed()
        case.seconds_until(lambda: case.committed() > passed + 3, case.run.look)
        joined, begin = case.joined("b"), time.monotonic()
        case.signal("agent-b", signal.SIGCONT)
        case.seconds_until(lambda: case.joined("b") > joined, case.run.look)
        case.seconds_until(
            lambda: case.is_member("b") or case.run.finished(),
            case.run.look,
        )
        figure = time.monotonic() - begin
        summaries = case.finish()
        log = case.log()
        away = log[log.index("lease ended: the node was not heard of node=b") :]
        away = away[: away.index("node joined node=b")]
        alone = away.count("included=a ") > 3 and "included=a,b" not in away.partition("opened")[2]
        held = all_equal(summaries) and alone and not case.run.restarts["trainer-b"]
    good, got = measured(bench, "r12", "ALateContributionIsRefusedAndItsNodeComesBack")
    held = held and good and got["late_refused"] == 1
    bench.result("r12", held, figure, 10, "s", skipped_steps=summaries["b"]["skipped_steps"])


def r13(bench):
    """Everything at once."""
    with Case(bench, rounds=40 if bench.short else 200) as case:
        case.start(12)
        for process in case.processes.values():
            kill(process)
        sound, said = case.check_store()
        durable = int(re.search(r"rounds 1 to (\d+)", said).group(1))
        case.run.look()
        figure = case.seconds_until(lambda: case.run.step > durable + 1, case.run.look)
        lines = re.findall(r"round opened round=(\d+)|waiting_for=\"round (\d+)", case.log())
        summaries = case.finish()
        first = next((int(b) for _, b in lines[1:] if b), 0)
    bench.result(
        "r13",
        sound and first == durable + 1 and all_equal(summaries),
        figure,
        20,
        "s",
        durable_round=durable,
        first_open_round=first,
    )


def agents_back(bench):
    """After a coordinator was away for long, its agents are back soon after it serves again."""
    with Case(bench, rounds=400) as case:
        case.start(5)
        kill(case.processes["coordinator"])
        # Long enough for the agents to have come to the longest of their delays.
        time.sleep(AWAY_S)
        joined = case.joined()
        case.cluster.start_coordinator()
        seconds = case.seconds_until(lambda: case.joined() >= joined + len(RANKS))
        held = all_equal(case.finish())
    met = held and seconds <= BACK_S_MAX
    bench.say(
        f"result recovery case=agents_back seconds={seconds:.2f} seconds_max={BACK_S_MAX} "
        f"held={int(held)} met={int(met)}"
    )
    if not met:
        bench.missed.append("agents_back")


class _Upload:
    """Node b's contributions go up a slow link, and its agent is killed in the middle of one."""

    def __init__(self, case):
        self.case = case
        self.link = case.use_link("b", up_bytes_per_s=UP_BYTES_PER_S)
        case.cluster.flags["coordinator"] = DEBUG
        case.cluster.start_coordinator()
        for node in case.cluster.ranks:
            case.cluster.start_agent(node)
            case.cluster.start_trainers(node, case.text)

    def opened(self):
        """The round that opened last."""
        return max(map(int, re.findall(r"round opened round=(\d+)", self.case.log())), default=0)

    def members(self):
        """By round."""
        found = re.findall(r"round opened round=(\d+) members=(\S*)", self.case.log())
        return {int(number): members.split(",") for number, members in found}

    def wait_opened(self, least):
        """Until a round of this number or later opens with node b; returns it and when."""
        self.case.seconds_until(
            lambda: self.opened() >= least and "b" in self.members()[self.opened()]
        )
        return self.opened(), time.monotonic()

    def kill_at(self, share):
        """Kills b's agent when so much of its contribution has passed. Returns its round, when that
        opened, and the share of it that is with the coordinator."""
        total = int(self.case.show()["contributionBytes"])
        number, began = self.wait_opened(self.opened() + 1)
        before = self.link.up_bytes
        self.case.seconds_until(lambda: self.link.up_bytes - before >= share * total)
        kill(self.case.processes["agent-b"])
        self.link.cut()  # or what its kernel still had would arrive
        return number, began, self.received() / total

    def received(self):
        """Bytes of b's contribution to the open round that the coordinator holds."""
        return int(self.case.node("b").get("receivedBytes", 0))


def _r8_resume(bench, share):
    """Started again within the lease: only what is missing is sent. Returns (held, share sent)."""
    with Case(bench, PAIR, rounds=1000, preset="full", model=LARGE, lease_ms=6000) as case:
        upload = _Upload(case)
        upload.wait_opened(3)
        number, _, arrived = upload.kill_at(share)
        total = int(case.show()["contributionBytes"])
        before = upload.link.up_bytes
        case.cluster.start_agent("b", wait=False)
        case.seconds_until(lambda: upload.opened() > number)
        sent = (upload.link.up_bytes - before) / total
        included = re.search(rf"round committed round={number} included=(\S+)", case.log())
        both = included is not None and included.group(1) == "a,b"
        bench.say(f"r8: killed at {share:.0%}, {arrived:.0%} had arrived; sent after: {sent:.0%}")
        # A piece is 7 % of the contribution, and two may be under way; 2 % are calls around it.
        held = both and sent <= 1 - arrived + 0.02 and not case.run.restarts["trainer-b"]
    return held, arrived + sent


def _r8_lost(bench, share):
    """Not started again: memory, deadline, and the way back. Returns what was measured.

    The round stays open meanwhile, for a third node whose contribution comes too slowly.
    """
    times = {"deadline_ms": DEADLINE_S * 1000, "grace_ms": DEADLINE_S * 1000}
    ranks = {"a": 1, "b": 1, "c": 1}
    with Case(bench, ranks, rounds=1000, quorum=1, preset="full", model=LARGE, **times) as case:
        slow = case.use_link("c")
        upload = _Upload(case)
        upload.wait_opened(3)
        slow.up_bytes_per_s = SLOWEST_BYTES_PER_S
        number, began, arrived = upload.kill_at(share)
        case.seconds_until(lambda: case.log_has("lease ended: the node was not heard of node=b"))
        ended = time.monotonic()
        case.seconds_until(lambda: upload.received() == 0)
        released_s, still_open = time.monotonic() - ended, upload.opened() == number
        case.seconds_until(lambda: case.log_has(f"round committed round={number} "))
        closed_s = time.monotonic() - began
        slow.up_bytes_per_s = None
        joined = case.joined("b")
        case.cluster.start_agent("b", wait=False)
        case.seconds_until(lambda: case.joined("b") > joined)
        at_join = upload.opened()
        case.seconds_until(
            lambda: any("b" in m for n, m in upload.members().items() if n > at_join)
        )
        first = min(n for n, m in upload.members().items() if n > at_join and "b" in m)
        bench.say(
            f"r8: killed at {share:.0%}, {arrived:.0%} had arrived; released {released_s:.2f} s "
            f"after the lease (round open: {still_open}); round {number} closed after "
            f"{closed_s:.1f} s; joined in round {at_join}, member again in round {first}"
        )
    return released_s if still_open else 99, closed_s, first - at_join - 1


def r8(bench):
    """Agent kill -9 in the middle of a contribution."""
    shares = (0.5,) if bench.short else (0.1, 0.5, 0.9)
    resumed = [_r8_resume(bench, share) for share in shares]
    lost = [_r8_lost(bench, share) for share in shares]
    held = all(good for good, _ in resumed)
    closed = max(closed for _, closed, _ in lost)
    missed = max(rounds for _, _, rounds in lost)
    bench.result(
        "r8",
        held and closed <= DEADLINE_S + 0.5 and missed <= 1,
        max(one[0] for one in lost),
        1,
        "s",
        kills=2 * len(shares),
        resent_and_arrived_max=max(sent for _, sent in resumed),
        closed_after_s=closed,
        deadline_s=DEADLINE_S,
        rounds_missed_max=missed,
    )


def c6(bench):
    """One of three nodes dies in the middle of a round."""
    ranks = {"a": 1, "b": 1, "c": 1}
    with Case(
        bench,
        ranks,
        rounds=60 if bench.short else 200,
        quorum=2,
        grace_ms=60_000,
        deadline_ms=60_000,
    ) as case:
        case.start(5)
        case.signal("trainer-c-0", signal.SIGSTOP)  # the round waits for c
        case.seconds_until(lambda: case.show().get("waitingNodes") == ["c"])
        passed, begin = case.committed(), time.monotonic()
        case.kill_node("c")
        case.seconds_until(lambda: case.committed() > passed)
        figure = time.monotonic() - begin
        summaries = case.finish()  # starts c again: the same job against a used coordinator
    bench.result("c6", all_equal(summaries), figure, 4, "s", lease_s=3.0)


def c10(bench):
    """Two processes with one name."""
    with Case(bench, PAIR, rounds=100_000) as case:
        case.start(5)
        flags = [
            "--node=b", f"--coordinator={case.cluster.address}", "--ranks=1",
            f"--listen=unix:{case.folder}/b2.sock", f"--state_dir={case.folder}/state-b2",
        ]  # fmt: skip

        def second():
            case.cluster.spawn("agent-b2", *flags)
            case.cluster.spawn(
                "trainer-b2-0", f"--agent=unix:{case.folder}/b2.sock", f"--data={case.text}",
                "--rank=0", "--ranks=1",
            )  # fmt: skip

        second()
        case.seconds_until(lambda: case.processes["trainer-b2-0"].poll() is not None)
        said = case.log("trainer-b2-0").strip().splitlines()[-1]
        bench.say(f"c10: the second one says: {said}")
        refused = "lives in another process" in said and case.joined("b") == 1
        # The first one is stopped, and its lease ends.
        case.signal("agent-b", signal.SIGSTOP)
        begin = time.monotonic()
        for name in ("agent-b2", "trainer-b2-0"):
            kill(case.processes[name])
        second()
        case.seconds_until(lambda: case.joined("b") == 2)
        figure = time.monotonic() - begin
        # And comes back: what it sends is refused, and it does not get its place again.
        case.signal("agent-b", signal.SIGCONT)
        case.seconds_until(lambda: case.processes["trainer-b-0"].poll() is not None)
        step = case.committed()
        case.seconds_until(lambda: case.committed() > step + 3)
        held = refused and case.joined("b") == 2
        said = case.log("trainer-b-0").strip().splitlines()[-1]
        bench.say(f"c10: the first one's trainer says: {said}")
    bench.result("c10", held, figure, 3 + 5 + 1, "s", lease_s=3.0)


CASES = {
    "r8": r8,
    "r12": r12,
    "c6": c6,
    "c10": c10,
    "r9": r9,
    "r10": r10,
    "r13": r13,
    "agents_back": agents_back,
}
