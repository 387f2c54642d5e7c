"""Faults of the disk that are no crash: bits that rot, no room, slowness.

r3    Random bits of a state folder are flipped, one at a time: each is named, or does no harm.
r4    The disk is full while the run goes on, and then there is room again (tmpfs).
r6    Every fdatasync takes 300 ms longer (strace).
"""

import contextlib
import random
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from demo_cluster import RunError

from .case import Case, Skipped, state_of, strace, tool, undisturbed

PAIR = {"a": 1, "b": 1}
FILE_NAMES = re.compile(r"\.(log|sst|blob)|MANIFEST|CURRENT|OPTIONS")


def _say_of(bench, folder):
    """What --check_store says of a folder: (sound, lines)."""
    done = subprocess.run(
        [bench.binaries["coordinator"], f"--check_store={folder}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    text = (done.stdout + done.stderr).replace(str(folder), "FOLDER")
    if done.returncode not in (0, 1):
        raise RunError(f"r3: --check_store ended with {done.returncode}: {text[-2000:]}")
    return done.returncode == 0, text


def _state_folder(bench, folder):
    """A folder with tables, blob files and a log: a run that was started again half way."""
    with Case(bench, PAIR, rounds=60, preset="full", more="snapshot { every_rounds: 20 }") as case:
        case.start(30)
        case.signal("coordinator", 15)
        case.processes["coordinator"].wait(timeout=30)
        case.step(case.run.step + 10)
        case.processes["coordinator"].kill()
        case.processes["coordinator"].wait()
        shutil.copytree(case.cluster.coordinator_state(), folder)


def _rounds_of(text):
    found = re.search(r"rounds \d+ to (\d+)", text)
    return int(found.group(1)) if found else 0


def r3(bench):
    """Bit rot."""
    flips = 60 if bench.short else 1000
    draw = random.Random(bench.seed)
    with tempfile.TemporaryDirectory(prefix="isthmus-fault-") as name:
        good, bad = Path(name) / "good", Path(name) / "bad"
        _state_folder(bench, good)
        sound, expected = _say_of(bench, good)
        # Those that RocksDB writes for people are not read.
        files = [f for f in sorted(good.rglob("*")) if f.is_file()]
        files = [f for f in files if not f.name.startswith(("LOG", "LOCK", "OPTIONS"))]
        sizes = [f.stat().st_size for f in files]
        named, equal, tail, silent = 0, 0, 0, 0
        shutil.copytree(good, bad)
        for _ in range(flips):
            at = draw.choices(files, sizes)[0]
            target = bad / at.relative_to(good)
            data = bytearray(at.read_bytes())
            bit = draw.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            target.write_bytes(data)
            ok, said = _say_of(bench, bad)
            if not ok and FILE_NAMES.search(said):
                named += 1
            elif ok and said == expected:
                equal += 1
            elif ok and at.suffix == ".log" and _rounds_of(said) < _rounds_of(expected):
                tail += 1  # the nodes' last round shows it
            else:
                silent += 1
                bench.say(f"r3: bit {bit} of {at.name} ({len(data)} bytes): ok={ok}: {said}")
            shutil.copyfile(at, target)
            for file in bad.rglob("*"):
                if file.is_file() and not (good / file.relative_to(bad)).exists():
                    file.unlink()
    bench.result(
        "r3",
        sound and silent == 0,
        silent,
        0,
        "flips_not_noticed",
        named > 0,
        flips=flips,
        named=named,
        read_back_equal=equal,
        taken_for_a_torn_end=tail,
        bytes=sum(sizes),
    )


ROOM_BYTES = 3 << 20
RESUME_S_MAX = 5
HEALTH_S_MAX = 2


@contextlib.contextmanager
def small_disk(folder):
    """A file system of its own, with little room; gives a function that makes room."""
    tool("mount")
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Skipped(f"cannot mount a tmpfs (root's right): {made.stderr.strip()}")
    try:
        yield lambda: subprocess.run(
            ["mount", "-o", f"remount,size={64 * ROOM_BYTES}", str(folder)], check=True
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def r4(bench):
    """No room on the disk."""
    rounds = 60 if bench.short else 200
    settings = {"ranks": PAIR, "rounds": rounds, "preset": "full", "more": "overlap: 1"}
    expected = state_of(undisturbed(bench, **settings))
    with Case(bench, **settings) as case, contextlib.ExitStack() as disks:
        make_room = disks.enter_context(small_disk(case.cluster.coordinator_state()))
        disks.callback(case.cluster.stop)  # before the disk goes
        case.start()
        full_s = case.seconds_until(lambda: case.log_has("cannot store the update"), case.run.look)
        began = time.monotonic()
        case.seconds_until(lambda: not case.serves())
        health_s = time.monotonic() - began
        show = case.show()
        told = "no room" in show["waitingFor"] and show["budgets"]["diskFull"]
        pushed_back = case.seconds_until(
            lambda: any(
                "no room" in case.log(name) for name in case.processes if name != "coordinator"
            )
        )
        bench.say(f"r4: full after {full_s:.1f} s, told the nodes after {pushed_back:.1f} s")
        lives = case.processes["coordinator"].poll() is None
        passed = int(show.get("committedRound", 0))
        make_room()
        seconds = case.seconds_until(lambda: case.committed() > passed)
        case.seconds_until(case.serves)
        summaries = case.finish()
    equal = state_of(summaries) == expected and expected != ""
    bench.result(
        "r4",
        told and lives and equal and health_s <= HEALTH_S_MAX,
        seconds,
        RESUME_S_MAX,
        "s_until_commit",
        passed > 0,
        rounds=rounds,
        full_at_round=passed,
        not_serving_s=health_s,
        params_equal=equal,
    )


DELAY_MS = 300
ANSWER_S_MAX = 1


def r6(bench):
    """A slow disk."""
    tool("strace")
    rounds = 12 if bench.short else 60
    beat_s = 0.5
    with Case(bench, PAIR, rounds=rounds) as case:
        fault = strace("fdatasync", f"delay_exit={1000 * DELAY_MS}", case.folder / "strace")
        case.cluster.start_coordinator(under=fault)
        for node in case.cluster.ranks:
            case.cluster.start_agent(node, wait=False)
            case.cluster.start_trainers(node, case.text)
        slowest, silence, times = 0.0, 0.0, {}
        while case.joined() < len(PAIR) or case.committed() < rounds - 1:
            case.run.look()
            begin = time.monotonic()
            nodes = case.ask("nodes", "list")["nodes"]
            slowest = max(slowest, time.monotonic() - begin)
            ages = [int(node["heartbeatMs"]) for node in nodes if "heartbeatMs" in node]
            silence = max([silence, *(age / 1000 for age in ages)])
            times = case.show()["writeTimes"]
        summaries = case.finish()
    slow = sum(
        int(count)
        for up_to, count in zip([*times["upToMs"], 1 << 30], times["counts"], strict=True)
        if up_to > DELAY_MS
    )
    bench.result(
        "r6",
        len(summaries) == len(PAIR) and slow >= rounds // 2 and silence <= beat_s + ANSWER_S_MAX,
        slowest,
        ANSWER_S_MAX,
        "s_until_answered",
        slow > 0,
        rounds=rounds,
        delay_ms=DELAY_MS,
        writes_in_slow_buckets=slow,
        heartbeat_s_max=silence,
    )


CASES = {"r3": r3, "r4": r4, "r6": r6}
