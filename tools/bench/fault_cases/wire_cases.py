"""What nodes and networks do to calls: tests that speak to the coordinator's real process.

r14   What an earlier release left on disk and said (tests/releases): gone on with, understood.
r15   SIGTERM with calls, four watches and half an upload under way (the case C7).
r24   Calls and pieces that are repeated, in any order: counted once, with the same answer.
r25   Other bytes under one name: refused, the first stand.
r27   One more than each limit: refused with limit and value, at little cost.
r28   Payloads that are made to hurt whoever decodes them: refused, the round goes on.
r29   Values that are no numbers: refused, the node is flagged, the round goes on.
r30   Another model, run, round or shape: refused before its payload is read.
c5    One value of a million is no number; then all nodes send one.
"""

from .case import measured

GROWN_PERCENT_MAX = 200


def r14(bench):
    """Rolling upgrade."""
    program = "tests/releases/release_test"
    good, got = measured(bench, "r14", "*", program, "All/ReleaseTest")
    bench.result(
        "r14",
        good,
        0 if good else 1,
        0,
        "records_not_understood",
        got["messages"] > 0 and got["rounds"] > 0,
        **got,
    )


def r15(bench):
    """Graceful stop."""
    good, got = measured(bench, "r15", "SigtermUnderLoadEndsInOrder")
    held = good and got["exit_code"] == 0 and got["not_serving_ms"] <= 1000
    bench.result("r15", held, got["exit_ms"] / 1e3, 5, "s_until_exit", **got)


def r24(bench):
    """Replays."""
    good, got = measured(bench, "r24", "RepeatedCallsAndPiecesCountOnce")
    wrong = got["counted_twice"] + got["other_answers"]
    bench.result(
        "r24",
        good,
        wrong,
        0,
        "counted_twice_or_answered_otherwise",
        got["pieces_again"] > 100,
        **got,
    )


def r25(bench):
    """Other content."""
    good, got = measured(bench, "r25", "OtherBytesUnderOneNameAreRefusedAndTheFirstStand")
    bench.result(
        "r25",
        good and got["originals_kept"] == got["of"],
        got["forgeries"] - got["already_exists"],
        0,
        "forgeries_not_refused",
        got["forgeries"] >= 30,
        **got,
    )


def r27(bench):
    """One more than each limit."""
    good, got = measured(
        bench,
        "r27",
        "OneMoreThanEachIsRefused",
        program="tests/server/wire_limits_test",
        suite="WireLimits",
    )
    held = good and got["grown_percent_of_limit"] <= GROWN_PERCENT_MAX
    bench.result(
        "r27", held, got["asked"] - got["refused"], 0, "limits_passed", got["asked"] >= 20, **got
    )


def r28(bench):
    """Payloads that are made to hurt their reader."""
    good, got = measured(
        bench,
        "r28",
        "AreRefusedAndTheRoundGoesOn",
        program="tests/server/payload_bombs_test",
        suite="PayloadBombs",
    )
    bench.result(
        "r28", good, got["bombs"] - got["refused"], 0, "bombs_taken", got["bombs"] >= 200, **got
    )


def r29(bench):
    """Payloads that are no numbers."""
    good, got = measured(bench, "r29", "ValuesThatAreNoNumbersAreRefusedDenormalOnesAreMerged")
    held = good and got["flagged"] == got["rounds_unharmed"] == got["bad"]
    bench.result(
        "r29",
        held and got["exact"] == got["denormal"],
        got["bad"] - got["refused"],
        0,
        "values_not_refused",
        **got,
    )


def r30(bench):
    """Not of this run."""
    good, got = measured(bench, "r30", "WhatIsNotOfThisRunIsRefusedBeforeItsPayload")
    bench.result(
        "r30",
        good and got["refused"] == got["asked"],
        got["ms_max"] / 1e3,
        1,
        "s_until_refusal",
        **got,
    )


def c5(bench):
    """NaN in one of a million values."""
    good, got = measured(bench, "c5", "OneNotANumberInAMillionValues")
    held = good and got["refused"] == 1 and got["included"] == 2 and got["void_rounds"] == 1
    bench.result("c5", held, got["not_finite"], 0, "values_of_updates_not_finite", **got)


CASES = {
    "r14": r14,
    "r15": r15,
    "r24": r24,
    "r25": r25,
    "r27": r27,
    "r28": r28,
    "r29": r29,
    "r30": r30,
    "c5": c5,
}
