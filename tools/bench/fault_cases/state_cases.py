"""Nodes whose states differ from each other.

divergence         A bit of the parameters of one of three nodes is flipped: it is found out, and
                   heals from a snapshot of another one while the others go on.
divergence_choice  The same with two nodes, of which none is right by itself: the run stands until
                   an operator chooses one.
"""

import re
import time

from demo_cluster import RunError

from .case import Case, all_equal

CHECK_EVERY = 20
FLIP_ROUND = 30
HEALED_S_MAX = 10
# Of the trainer, for tests alone.
FLIP = {"ISTHMUS_TEST_FLIP_ROUND": str(FLIP_ROUND)}
FLIPPED = "a bit of the state is flipped"
DIFFERS = "a node's state differs"
HEALED = "a node is healed"
# Ended by wind_up.
MANY_ROUNDS = 100_000


def _case(bench, ranks):
    """A run whose node b will have another state than the others."""
    case = Case(bench, ranks, rounds=MANY_ROUNDS, more=f"check_every: {CHECK_EVERY}")
    case.cluster.environment["trainer-b-0"] = FLIP
    return case


def _wait_member(case):
    """Until node b has healed and is a member again."""
    case.seconds_until(lambda: case.log_has(HEALED), case.run.look)
    case.seconds_until(lambda: case.is_member("b"), case.run.look)


def _is_sound(case, summaries):
    """Afterwards: nothing was started again, all is equal, and b alone was healed, once."""
    log = case.log()
    named = set(re.findall(rf"{DIFFERS}.* node=(\S+)", log))
    # b had the state of another node, and gave its own to nobody.
    kept = set(re.findall(r"snapshot kept round=\d+ from=(\S+)", log[: log.index(HEALED)]))
    healed = log.count(HEALED)
    # Agents end with the run, at times before the supervisor sees their trainers do so.
    again = [name for name in case.run.restarts if name.startswith("trainer")]
    case.bench.say(
        f"named: {sorted(named)}, snapshots of: {sorted(kept)}, healed: {healed}, "
        f"equal: {all_equal(summaries)}, started again: {again}"
    )
    return (
        named == {"b"} and kept and "b" not in kept and healed == 1
        and all_equal(summaries) and not again
    )  # fmt: skip


def divergence(bench):
    """One of three."""
    with _case(bench, {"a": 1, "b": 2, "c": 1}) as case:
        case.start(5)
        case.seconds_until(lambda: case.log_has(FLIPPED, "trainer-b-0"), case.run.look)
        began = time.monotonic()
        case.seconds_until(lambda: case.log_has(DIFFERS), case.run.look)
        found_s, passed = time.monotonic() - began, case.committed()
        _wait_member(case)
        figure = time.monotonic() - began
        meanwhile = case.committed() - passed
        agreed = int(case.show()["stateCheck"]["agreedRound"])
        case.seconds_until(
            lambda: int(case.show()["stateCheck"]["agreedRound"]) > agreed, case.run.look
        )
        held = _is_sound(case, case.wind_up()) and meanwhile > 0
    bench.result(
        "divergence", held, figure, HEALED_S_MAX, "s", found_s=found_s, rounds_meanwhile=meanwhile
    )


def divergence_choice(bench):
    """One against one."""
    with _case(bench, {"a": 1, "b": 1}) as case:
        case.start(5)
        case.seconds_until(lambda: case.show()["state"] == "RUN_STATE_DISPUTED", case.run.look)
        run = case.show()
        states = {one["node"]: one["sha256"] for one in run["stateCheck"]["disputed"]}
        sentence = run["waitingFor"]
        told = (
            len(set(states.values())) == 2
            and " on a" in sentence and " on b" in sentence
            and f"the last round in agreement is {run['stateCheck']['agreedRound']}" in sentence
            and case.log().count(sentence) == 1
        )  # fmt: skip
        stood = case.committed()
        try:
            case.ask("runs", "resume", "faults")
            told = False
        except RunError as error:
            told = told and "runs choose" in str(error)
        case.ask("runs", "choose", "faults", "--node=a")
        began = time.monotonic()
        again = case.ask("runs", "choose", "faults", "--node=a")
        _wait_member(case)
        figure = time.monotonic() - began
        told = told and stood == int(run["committedRound"]) and again["right"] == ["a"]
        held = _is_sound(case, case.wind_up()) and told
    bench.result("divergence_choice", held, figure, HEALED_S_MAX, "s", stood_at_round=stood)


CASES = {"divergence": divergence, "divergence_choice": divergence_choice}
