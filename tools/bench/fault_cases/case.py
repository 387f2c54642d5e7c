"""What the cases share: how they are run and told, and a run of real processes for one fault."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/wan"))

from chaos import SupervisedRun, kill  # noqa: E402
from demo_cluster import Cluster, RunError, free_port, programs  # noqa: E402
from wan_box import WanBox  # noqa: E402

from .link import Link  # noqa: E402

LIMIT_S = 600
CALL_S = 20
CHECKPOINT_EVERY = 10
# Of steps that take some ms.
LAST_STEPS = 100
WORDS = "whatever is killed is started again and goes on from where the run stands".split()
RANKS = {"a": 1, "b": 2}
TRIO = {"a": 1, "b": 1, "c": 1}
# For case.cluster.flags: what an agent must say for its history to be judged, for one.
DEBUG = ["--log_level=debug"]

SPEC = """\
run: "faults"
seed: {seed}
steps: {rounds}
quorum: {quorum}
preset: "{preset}"
deterministic: {deterministic}
{nodes}
model {{ {model} vocab: 256 }}
data {{ sequences_per_node: 4 eval_sequences: {eval_sequences} }}
optimizer {{ lr: {lr} warmup_steps: 2 clip_norm: 1.0 }}
timing {{ lease_ms: {lease_ms} heartbeat_ms: {heartbeat_ms} grace_ms: {grace_ms}
  deadline_ms: {deadline_ms} }}
{more}
"""
DEFAULTS = {
    "seed": 7,
    "rounds": 200,
    "quorum": 0,  # all
    "preset": "demo",
    "more": "",  # further lines of the spec
    "local_steps": 1,
    "deterministic": False,
    "model": "layers: 1 heads: 2 width: 64 context: 32",
    "eval_sequences": 8,
    "lr": 0.004,
    "lease_ms": 3000,
    "heartbeat_ms": 500,
    "grace_ms": 0,
    "deadline_ms": 0,
}


class Skipped(Exception):
    """Why a case cannot be tried on this machine, in a sentence."""


class Bench:
    """What a case is given: the programs, a seed, and whether it is to be short or thorough."""

    def __init__(self, bazel_bin, seed, short, full=False):
        self.bazel_bin = pathlib.Path(bazel_bin)
        self.binaries = programs(self.bazel_bin)
        self.seed = seed
        self.short = short
        self.full = full
        self.missed = []

    def say(self, text):
        """A line for people, as soon as it is known."""
        print(text, flush=True)

    def result(self, case, held, figure, figure_max, unit, enough=True, **more):
        """The line of a case. `held`: what must hold, did. `figure`: the worst that was measured,
        which must be at most `figure_max`; `enough`: the case has provoked what it set out to."""
        met = bool(held) and bool(enough) and figure <= figure_max
        words = " ".join(f"{key}={plain(value)}" for key, value in more.items())
        print(
            f"result faults case={case} held={int(bool(held))} figure={plain(figure)} "
            f"figure_max={plain(figure_max)} unit={unit}{' ' if words else ''}{words} "
            f"met={int(met)}",
            flush=True,
        )
        if not met:
            self.missed.append(case)

    def run_test(self, label, cases="*", environment=None):
        """Runs cases (a GoogleTest pattern) of a built test; returns (all passed, its output)."""
        program = self.bazel_bin / label
        # Where a test finds the programs that it starts, and its files.
        runfiles = program.with_name(program.name + ".runfiles") / "isthmus"
        done = subprocess.run(
            [program.resolve(), f"--gtest_filter={cases}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=runfiles if runfiles.is_dir() else self.bazel_bin,
            env={**os.environ, **(environment or {})},
            timeout=LIMIT_S,
        )
        passed = re.search(r"\[  PASSED  \] (\d+) test", done.stdout)
        good = done.returncode == 0 and passed is not None and int(passed.group(1)) > 0
        if not good:
            self.say(done.stdout[-4000:] + done.stderr[-2000:])
        return good, done.stdout


def plain(value):
    """A value of a result line: a plain decimal, or a word."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.{3 if abs(value) >= 0.001 else 6}f}".rstrip("0").rstrip(".")
    return str(value)


def write_text(path):
    """The text that everybody trains on."""
    draw = random.Random(1)
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(40_000)))


def spec_text(ranks, **settings):
    """A run of these nodes."""
    values = {**DEFAULTS, **settings}
    values["deterministic"] = str(values["deterministic"]).lower()
    if values["local_steps"] != 1:
        values["more"] += f"\nschedule {{ local_steps: {values['local_steps']} }}"
    values["nodes"] = "\n".join(f'nodes {{ name: "{name}" }}' for name in ranks)
    return SPEC.format(**values)


class Case:
    """A run for one fault, in a folder of its own:

        with Case(bench, rounds=100, quorum=1) as case:
            case.start(5)            # its processes, until step 5 is done
            kill(case.processes["agent-b"])
            seconds = case.seconds_until(lambda: case.log_has("lease ended"))
            summaries = case.finish()

    Nothing is started again but by case.run.look(), which the waits `step` and `finish` call.
    `box`: a WanBox in which it takes place; see boxed().
    """

    def __init__(self, bench, ranks=None, checkpoint_every=CHECKPOINT_EVERY, box=None, **settings):
        self.bench = bench
        self.settings = {**DEFAULTS, **settings}
        ranks = dict(ranks or RANKS)
        self._holder = tempfile.TemporaryDirectory(prefix="isthmus-fault-")
        self.folder = pathlib.Path(self._holder.name)
        self.text = self.folder / "text"
        write_text(self.text)
        self.cluster = Cluster(
            bench.binaries, self.folder, spec_text(ranks, **self.settings), ranks, box
        )
        self.run = SupervisedRun(self.cluster, self.text, checkpoint_every)
        self.deadline = time.monotonic() + LIMIT_S
        self.ask_at = None  # where operators find the coordinator; None: at its address
        self._links = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # a stopped one would not hear of the end
        self.cluster.stop()
        for link in self._links:
            link.close()
        self._holder.cleanup()

    @property
    def processes(self):
        """By name: coordinator, agent-NODE, trainer-NODE-RANK."""
        return self.cluster.processes

    def use_link(self, node, **options):
        """Puts a link (see there) between a node's agent and the coordinator, from its next start
        on."""
        if self.cluster.address is None:
            self.cluster.address = f"127.0.0.1:{free_port()}"
        link = Link(port=int(self.cluster.address.rpartition(":")[2]), **options)
        self.cluster.routes[node] = link.address
        return self.add_link(link)

    def add_link(self, link):
        """Closes a link when the case ends; returns it."""
        self._links.append(link)
        return link

    @staticmethod
    def free_port():
        """A port, as a text."""
        return str(free_port())

    def start(self, step=0):
        """Starts everything and waits until the run has done so many steps with all nodes; 0: none
        is waited for."""
        self.run.start()
        if step == 0:
            return
        self.seconds_until(lambda: self.joined() >= len(self.cluster.ranks), self.run.look)
        self.seconds_until(lambda: all(self.is_member(node) for node in self.cluster.ranks))
        self.step(self.committed() + step)

    def step(self, step):
        """Looks until the run has done a step; starts again what has ended."""
        self.run.wait_step(step, self.deadline)

    def finish(self):
        """Looks until the run is finished; returns what each node reached."""
        return self.run.wait_finished(self.deadline)

    def wind_up(self, last_steps=LAST_STEPS):
        """Lets a run whose end is far away end soon; returns what each node reached.

        `last_steps`: what is left of it, more than is done while it is told so.
        """
        more = max(last_steps, 4 * self.settings["local_steps"])
        self.run.look()
        self.ask("runs", "update", "faults", f"steps={self.run.step + more}")
        return self.finish()

    def seconds_until(self, condition, look=lambda: None, limit_s=120):
        """How long it takes until a condition holds."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() > min(self.deadline, started + limit_s):
                tails = "\n".join(self.cluster.log_tail(name, 15) for name in self.processes)
                raise RunError(f"a condition did not come to hold in {limit_s} s.\n{tails}")
            look()
            time.sleep(0.01)
        return time.monotonic() - started

    def log(self, name="coordinator"):
        """All that a process, and those of its name before it, have said."""
        return self.cluster.log_file(name).read_text(errors="replace")

    def log_has(self, text, name="coordinator"):
        """Whether a process has said something."""
        return text in self.log(name)

    def joined(self, node=None):
        """How often the coordinator has admitted a node; None: any."""
        return self.log().count("node joined" if node is None else f"node joined node={node}")

    def signal(self, name, number):
        """Sends a signal to a process."""
        self.processes[name].send_signal(number)

    def kill_node(self, node):
        """kill -9 of all that a node has."""
        for name in list(self.processes):
            if name == f"agent-{node}" or name.startswith(f"trainer-{node}-"):
                kill(self.processes[name])

    def ask(self, *words):
        """What isthmusctl answers, from JSON."""
        command = [self.bench.bazel_bin / "server/ctl/isthmusctl"]
        command += [f"--server={self.ask_at or self.cluster.address}", "--json", *words]
        box = self.cluster.box
        done = subprocess.run(
            box.command(box.hub, command) if box else command,
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
        if done.returncode != 0:
            raise RunError(f"isthmusctl {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def succeeds(self, *words):
        """Whether isthmusctl does this within a second, by a new connection."""
        done = subprocess.run(
            [self.bench.bazel_bin / "server/ctl/isthmusctl", f"--server={self.cluster.address}"]
            + ["--timeout=1s", *words],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def serves(self):
        """Whether the coordinator says that it serves."""
        return self.succeeds("health")

    def show(self):
        """The run, as operators see it."""
        return self.ask("runs", "show")["run"]

    def node(self, name):
        """A node, as operators see it."""
        nodes = self.ask("nodes", "list")["nodes"]
        return next(node for node in nodes if node["name"] == name)

    def is_member(self, name):
        """Whether the open round is one of this node, too."""
        return self.node(name).get("state") == "NODE_STATE_MEMBER"

    def committed(self):
        """The last committed round."""
        return int(self.show().get("committedRound", 0))

    def check_store(self):
        """Whether the state folder of a coordinator that has ended is sound; what was said."""
        done = subprocess.run(
            [self.bench.binaries["coordinator"]]
            + [f"--check_store={self.cluster.coordinator_state()}"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0, done.stdout + done.stderr


def boxed(bench, links, congestion=None):
    """A WanBox with a Link for each node, to be used in a `with` statement."""
    relay = bench.bazel_bin / "tools/wan/relay"
    why_not = WanBox.why_not(relay)
    if why_not:
        raise Skipped(f"WAN in a box cannot run: {why_not}")
    return WanBox(links, seed=bench.seed, relay=relay, congestion=congestion)


# Of Student's distribution with 2 degrees of freedom: 95 % of what is drawn lies within.
STUDENT_OF_3 = 4.303


def noise_of_three(losses):
    """How far from their mean one more seed's loss would be at most, 19 times of 20."""
    return STUDENT_OF_3 * statistics.stdev(losses) * (1 + 1 / 3) ** 0.5


def all_equal(summaries):
    """Whether the replicas are."""
    return len({summary["state_sha256"] for summary in summaries.values()}) == 1


def state_of(summaries):
    """The state that all nodes have; an empty text where they differ."""
    states = {summary["state_sha256"] for summary in summaries.values()}
    return states.pop() if len(states) == 1 else ""


def undisturbed(bench, **settings):
    """What a run without faults comes to, by node name."""
    with Case(bench, **settings) as case:
        case.start()
        return case.finish()


def measured(bench, name, test, program="tests/server/served_faults_test", suite="ServedFaults"):
    """Runs a case of a test that prints `measured NAME key=value ...`; returns (passed, values)."""
    good, said = bench.run_test(program, f"{suite}.{test}")
    line = re.search(rf"measured {name} (.*)", said)
    if line is None:
        raise RunError(f"{name}: the test measured nothing")
    pairs = (pair.split("=") for pair in line.group(1).split())
    return good, {key: int(value) if value.isdigit() else value for key, value in pairs}


def rss_bytes(pid, what="VmRSS"):
    """Resident memory of a process; RssAnon: without what can be read from files again."""
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith(what))
    return int(line.split()[1]) * 1024


def descriptors(pid):
    """How many a process has open."""
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def strace(calls, inject, output):
    """A command that starts a process and does `inject` (error=EIO:when=3, say) to its calls."""
    return [
        "strace", "-f", "-qq", "-o", str(output),
        "-e", f"trace={calls}", "-e", f"inject={calls}:{inject}",
    ]  # fmt: skip


def tool(name, package=None):
    """Whether a program is there; else how to get it."""
    if shutil.which(name) is None:
        raise RunError(f"{name} is not installed: apt-get install {package or name}")
