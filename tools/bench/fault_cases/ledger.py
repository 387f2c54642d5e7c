"""The history of a run of real processes, for the judge in tests/history.

What is durable comes from the coordinator's state folder (tests/history:store_history), what each
node computed, received and was told of its contributions from its agent's log at the level debug,
and the state that it ended with from its trainer's summary. A life of a node is a trainer group,
whose number is its attempt.
"""

import json
import re
import subprocess

from .case import LAST_STEPS, all_equal

LINE = re.compile(
    r"agent \S+: (?P<what>all ranks are there, joining|joined the run|contribution|update) "
    r"(?P<fields>.*)"
)
FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')


class _Node:
    """Events of one node, in order, each with the round that must be durable before it."""

    def __init__(self, name):
        self.name = name
        self.events = []
        self.life = self.received = self.joining_round = 0
        self.joining_attempt = 0
        self.open = {}  # round -> digest
        self.told = {}  # round -> outcome, of this life

    def add(self, needs, event, **fields):
        fields = {"event": event, "node": self.name, "life": self.life, **fields}
        self.events.append((needs, fields))

    def drop_open(self):
        """What a life had not settled is lost with it."""
        for number, digest in sorted(self.open.items()):
            self.add(0, "settled", round=number, digest=digest, outcome="dropped")
        self.open.clear()

    def begin(self, life):
        self.drop_open()
        self.life, self.received, self.told = life, self.joining_round, {}
        self.add(self.received, "restored", round=self.received)

    def line(self, what, fields):
        """One line of the agent's log."""
        if what.startswith("all ranks"):
            self.joining_round = int(fields["last_round"])
            self.joining_attempt = int(fields["attempt"])
        elif what.startswith("joined"):
            if int(fields["attempt"]) != self.life:
                self.begin(int(fields["attempt"]))
        elif what == "contribution":
            number, digest = int(fields["round"]), fields["digest"]
            if self.open.get(number) == digest or number in self.told:
                return  # sent again
            self.open[number] = digest
            self.add(0, "computed", round=number, digest=digest)
        else:
            self.update(int(fields["round"]), fields["sha256"], fields["own_included"] == "yes")

    def update(self, number, sha256, included):
        if number <= self.received:
            return  # an agent that started again is told again
        self.received = number
        self.add(number, "received", round=number, sha256=sha256)
        self.told[number] = included
        for open_round in sorted(n for n in self.open if n <= number):
            outcome = "included" if included and open_round == number else "left_out"
            digest = self.open.pop(open_round)
            self.add(0, "settled", round=open_round, digest=digest, outcome=outcome)
        self.add(0, "applied", round=number, sha256=sha256)


def _read_node(case, node):
    events = _Node(node)
    for line in case.log(f"agent-{node}").splitlines():
        if match := LINE.search(line):
            fields = {key: value.strip('"') for key, value in FIELD.findall(match["fields"])}
            events.line(match["what"], fields)
    events.drop_open()
    return events


def write_history(bench, case, summaries, path):
    """Writes the file that check_history reads."""
    done = subprocess.run(
        [bench.bazel_bin / "tests/history/store_history", case.cluster.coordinator_state()],
        capture_output=True,
        text=True,
        check=True,
    )
    durable = {}
    for line in done.stdout.splitlines():
        durable.setdefault(json.loads(line)["round"], []).append(line)
    streams = []
    for node in case.cluster.ranks:
        stream = _read_node(case, node)
        last = max(i for i, (_, e) in enumerate(stream.events) if e["event"] == "applied")
        stream.events[last][1]["state"] = summaries[node]["state_sha256"]
        streams.append(stream.events)
    with open(path, "w", encoding="utf-8") as file:
        for number in [*sorted(durable), None]:
            # A node's events go as far as they know of no round that is not there yet.
            for events in streams:
                while events and (number is None or events[0][0] < number):
                    file.write(json.dumps(events.pop(0)[1]) + "\n")
            for line in durable.get(number, ()):
                file.write(line + "\n")


def judge(bench, case, summaries):
    """The history of a run that has ended, whose agents had DEBUG. Returns (good, what the judge
    said)."""
    case.cluster.stop()
    file = case.folder / "history"
    write_history(bench, case, summaries, file)
    done = subprocess.run(
        [bench.bazel_bin / "tests/history/check_history", file, "complete"]
        + [str(case.settings["local_steps"])],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout.strip() + done.stderr.strip()


def aftermath(bench, case, last_steps=LAST_STEPS):
    """Lets a run end whose processes nobody was allowed to end: replicas must be equal, the history
    exact (I1 to I4), and no process have been started again (I5). Returns whether that holds."""
    restarts = sum(case.run.restarts.values())  # at the end an agent is gone before its trainers
    summaries = case.wind_up(last_steps)
    exact, said = judge(bench, case, summaries)
    equal = all_equal(summaries)
    bench.say(f"afterwards: replicas equal: {equal}; restarts: {restarts}; history: {said}")
    return equal and exact and restarts == 0
