"""What is on disk: kills at every write, power cuts, failed disks, long runs, resumed training.

r1    kill -9 of the coordinator at every call that writes or syncs (tests/system/durability_test).
r2    The last write torn at every byte, and power lost at every operation (rocks_store_test).
r5    fdatasync fails once: the process ends and nothing is answered after that.
r7    10,000 rounds leave a bounded folder, and a start that is not longer for them.
c9    The coordinator is killed before, in and after aggregation and in its broadcast.
c15   20 rounds at once, and 10 and 10 with a restart of everything: the same, residual included.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chaos import kill
from demo_cluster import RunError, free_port

from .case import DEBUG, LIMIT_S, Case, all_equal, plain, state_of, strace, tool, undisturbed

PAIR = {"a": 1, "b": 1}
READY_S_MAX = 2.0


def r1(bench):
    """Kills at every write."""
    tool("strace")
    runfiles = (bench.bazel_bin / "tests/system/durability_test.runfiles").resolve()
    environment = dict(os.environ, TEST_SRCDIR=str(runfiles), TEST_WORKSPACE="isthmus")
    environment["PYTHONPATH"] = "tests/system:tools:tools/wan"
    environment.pop("XML_OUTPUT_FILE", None)
    if not bench.short:
        environment["ISTHMUS_KILL_POINTS"] = "all" if bench.full else "20"
    done = subprocess.run(
        [sys.executable, "tests/system/durability_test.py"]
        + ["Durability.test_killed_at_its_writes_the_run_ends_bit_equal"],
        cwd=runfiles / "isthmus", env=environment, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    said = re.search(r"(\d+) kills of (\d+), serving again in ([\d.]+) s", done.stdout)
    if said is None:
        raise RunError(f"r1: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    kills, points, ready_s = int(said[1]), int(said[2]), float(said[3])
    bench.result(
        "r1",
        done.returncode == 0,
        ready_s,
        READY_S_MAX,
        "s_until_serving",
        kills == points,
        kills=kills,
        points=points,
    )


def r2(bench):
    """Power cuts."""
    good, said = bench.run_test(
        "tests/server/rocks_store_test",
        "RocksStoreTest.ATornLastWriteIsCutOffAtEveryByte:RocksStoreTest.PowerLostAtEveryOperation",
        {} if bench.short else {"ISTHMUS_FAULTS": "all"},
    )
    tears = re.search(r"torn at (\d+) points", said)
    cuts = re.search(r"power lost at (\d+) operations", said)
    if tears is None or cuts is None:
        raise RunError("r2: the test did not say how many points it tried")
    bench.result(
        "r2",
        good,
        0 if good else 1,
        0,
        "points_not_recovered",
        bench.short or (int(tears[1]) >= 100 and int(cuts[1]) >= 10),
        tear_points=int(tears[1]),
        power_cuts=int(cuts[1]),
    )


def _last_round(case):
    """The last round in the state folder; 0: none. None: the folder is damaged."""
    sound, said = case.check_store()
    rounds = re.search(r"rounds \d+ to (\d+)", said)
    return (int(rounds.group(1)) if rounds else 0) if sound else None


def r5(bench):
    """EIO of an fdatasync."""
    tool("strace")
    points = (15,) if bench.short else (15, 9, 4, 23, 36)
    rounds = 60 if bench.short else 120
    expected = state_of(undisturbed(bench, ranks=PAIR, rounds=rounds))
    with Case(bench, PAIR, rounds=rounds) as case:
        held, codes = True, []
        for number, point in enumerate(points):
            fault = strace("fdatasync", f"error=EIO:when={point}", case.folder / "strace")
            if number == 0:
                case.cluster.address = f"127.0.0.1:{free_port()}"
            case.cluster.spawn_coordinator(under=fault)
            if number == 0:
                for node in case.cluster.ranks:
                    case.cluster.start_agent(node, wait=False)
                    case.cluster.start_trainers(node, case.text)
            process = case.processes["coordinator"]
            case.seconds_until(lambda p=process: p.poll() is not None)
            log = case.cluster.output("coordinator")
            # 1: it failed before anything was served; 3: in the middle of a run.
            told = "Input/output error" in log or "the disk failed" in log
            held = held and process.returncode in (1, 3) and told
            codes.append(process.returncode)
            # What the nodes have was durable: nobody got an update that the folder does not hold.
            last = _last_round(case)
            have = max(_applied(case, node) for node in PAIR)
            held = held and last is not None and have <= last
            bench.say(
                f"r5: EIO at sync {point}: code {process.returncode}, rounds on disk "
                f"{last}, nodes have {have}, said: {told}"
            )
        begin = time.monotonic()
        case.cluster.start_coordinator()
        slowest = time.monotonic() - begin
        summaries = case.finish()
    held = held and state_of(summaries) == expected
    bench.result(
        "r5",
        held,
        slowest,
        READY_S_MAX,
        "s_until_serving",
        3 in codes,
        faults=len(points),
        while_serving=codes.count(3),
        params_equal=state_of(summaries) == expected,
    )


def _applied(case, node):
    """The last round that a node has applied, as its metrics say."""
    try:
        lines = case.cluster.metrics_file(node, 0).read_text().splitlines()
    except OSError:
        return 0
    return max((json.loads(line)["round"] for line in lines if line.endswith("}")), default=0)


HISTORY_SPEC = """run: "history" steps: 1000000 nodes { name: "a" } nodes { name: "b" }
optimizer { lr: 0.001 }
"""
KEEP_BYTES = 4 << 20
# What the folder holds beside the updates that it keeps: logs and tables of 32 MiB buffers, blob
# files of which some part is garbage, digests of 100,000 rounds.
BESIDE_BYTES = 256 << 20


def _folder_bytes(folder):
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size
        except OSError:
            pass  # it was deleted meanwhile
    return size


def r7(bench):
    """Pruning, and a start after it."""
    rounds = 1000 if bench.short else 10_000
    with tempfile.TemporaryDirectory(prefix="isthmus-fault-") as name:
        folder = Path(name)
        spec, state, ready = folder / "spec", folder / "state", folder / "ready"
        spec.write_text(HISTORY_SPEC)
        making = subprocess.Popen(
            [bench.bazel_bin / "bench/rounds", f"--run_spec={spec}", f"--rounds={rounds}"]
            + ["--die", f"--state_dir={state}", f"--keep_bytes={KEEP_BYTES}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        most = 0
        while making.poll() is None:
            most = max(most, _folder_bytes(state))
            time.sleep(0.1)
        made = json.loads(making.stdout.read())
        written = made["down_bytes"] * rounds
        begin = time.monotonic()
        coordinator = subprocess.Popen(
            [bench.binaries["coordinator"], f"--run_spec={spec}", "--listen=127.0.0.1:0"]
            + [f"--state_dir={state}", f"--ready_file={ready}", "--log_level=warning"]
            + [f"--keep_bytes={KEEP_BYTES}"]
        )
        try:
            while not ready.exists() and time.monotonic() - begin < 60:
                time.sleep(0.005)
            seconds = time.monotonic() - begin
        finally:
            coordinator.kill()
            coordinator.wait()
        log_bytes = sum(file.stat().st_size for file in state.glob("*.log"))
        read_begin, size = time.monotonic(), 0
        for file in state.rglob("*"):
            size += len(file.read_bytes()) if file.is_file() else 0
        rate = size / max(time.monotonic() - read_begin, 1e-6)
    limit_s = READY_S_MAX + log_bytes / rate
    bench.result(
        "r7",
        making.returncode == -signal.SIGKILL and most <= KEEP_BYTES + BESIDE_BYTES,
        seconds,
        limit_s,
        "s_until_serving",
        bench.short or written > 4 * BESIDE_BYTES // 2,
        rounds=rounds,
        written_bytes=written,
        folder_bytes_max=most,
        folder_bytes_bound=KEEP_BYTES + BESIDE_BYTES,
    )


LARGE = "layers: 1 heads: 4 width: 384 context: 32"


def _before(case):
    """One contribution is there, the other not."""
    case.signal("trainer-b-0", signal.SIGSTOP)
    case.seconds_until(lambda: case.show().get("waitingNodes") == ["b"])
    kill(case.processes["coordinator"])
    case.signal("trainer-b-0", signal.SIGCONT)


def _in_aggregation(case):
    """Both are there, and their sum is being made: it is not in the log yet."""
    for _ in range(20):
        opened = case.log().count("round opened")
        case.seconds_until(lambda n=opened: case.log().count("round opened") > n)
        total = int(case.show()["contributionBytes"])
        done = f"round committed round={case.committed() + 1} "

        def all_there(total=total):
            nodes = case.ask("nodes", "list")["nodes"]
            return all(int(node.get("receivedBytes", 0)) >= total for node in nodes)

        case.seconds_until(lambda w=done, there=all_there: there() or case.log_has(w))
        if case.log_has(done):
            continue
        kill(case.processes["coordinator"])
        if not case.log_has(done):
            return
        case.cluster.start_coordinator()
    raise RunError("c9: no kill fell into an aggregation")


def _after(case):
    """The sum is made, and the record is not durable: killed at its fdatasync."""
    kill(case.processes["coordinator"])
    # More than the main thread makes in a start, so that it is one of the thread that commits.
    fault = strace("fdatasync", "signal=SIGKILL:when=14", case.folder / "strace")
    case.cluster.spawn_coordinator(under=fault)
    case.seconds_until(lambda: case.processes["coordinator"].poll() is not None)


def _in_broadcast(case):
    """Some of what nodes are sent has left: killed at a sendmsg."""
    kill(case.processes["coordinator"])
    for point in (6, 11, 17):
        fault = strace("sendmsg", f"signal=SIGKILL:when={point}", case.folder / "strace")
        case.cluster.spawn_coordinator(under=fault)
        case.seconds_until(lambda: case.processes["coordinator"].poll() is not None)


PHASES = {
    "before": _before, "in_aggregation": _in_aggregation, "after": _after,
    "in_broadcast": _in_broadcast,
}  # fmt: skip


def c9(bench):
    """Kills of the coordinator in each phase of a round."""
    tool("strace")
    settings = {"ranks": PAIR, "rounds": 24 if bench.short else 40}
    settings |= {"preset": "full", "model": LARGE} if not bench.short else {}
    expected = state_of(undisturbed(bench, **settings))
    slowest, phases = 0.0, dict(PHASES)
    if bench.short:
        phases.pop("in_aggregation")  # a small model's is too short to be met
    with Case(bench, **settings) as case:
        case.cluster.flags["coordinator"] = DEBUG
        case.start(2)
        for name, phase in phases.items():
            case.step(case.run.step + 2)
            phase(case)
            begin, passed = time.monotonic(), None
            case.cluster.start_coordinator()
            passed = case.committed()
            case.seconds_until(lambda p=passed: case.committed() > p, case.run.look)
            slowest = max(slowest, time.monotonic() - begin)
            bench.say(f"c9: killed {name}, {plain(time.monotonic() - begin)} s to the next commit")
        summaries = case.finish()
    equal = state_of(summaries) == expected and expected != ""
    bench.result(
        "c9", equal, slowest, 3 + 5, "s_until_commit", phases=len(phases), params_equal=equal
    )


def _checkpoints(case):
    """The bytes of all checkpoint files of the last round, by name, without what names a life."""
    found = {}
    for node in case.cluster.ranks:
        for file in sorted((case.folder / f"checkpoints-{node}").rglob("*.safetensors")):
            data = file.read_bytes()
            header = int.from_bytes(data[:8], "little")
            found[f"{node}/{file.relative_to(case.folder / f'checkpoints-{node}')}"] = data[
                8 + header :
            ]
    return found


def c15(bench):
    """Training that is resumed."""
    whole, half = (12, 6) if bench.short else (20, 10)
    settings = {"rounds": whole, "deterministic": True, "checkpoint_every": half}
    with Case(bench, **settings) as case:
        case.start()
        expected = state_of(case.finish())
        at_once = _checkpoints(case)
    with Case(bench, **settings) as case:
        case.start()
        case.seconds_until(
            lambda: case.log_has("checkpoint_round") or case.run.step >= half + 1, case.run.look
        )
        for process in case.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in case.processes.values():
            process.wait(timeout=30)
        begin = time.monotonic()
        case.run.start()
        summaries = case.finish()
        seconds = time.monotonic() - begin
        resumed = min(summary["resumed_round"] for summary in summaries.values())
        in_two = _checkpoints(case)
    same = sum(at_once.get(name) == data for name, data in in_two.items())
    held = state_of(summaries) == expected and expected != "" and resumed == half
    held = held and same == len(in_two) == len(at_once) > 0
    bench.result(
        "c15",
        held,
        len(in_two) - same,
        0,
        "checkpoint_files_that_differ",
        files=len(in_two),
        resumed_round=resumed,
        params_equal=state_of(summaries) == expected,
        seconds=seconds,
        all_equal=all_equal(summaries),
    )


CASES = {"r1": r1, "r2": r2, "r5": r5, "r7": r7, "c9": c9, "c15": c15}
