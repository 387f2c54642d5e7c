"""isthmusctl, and any gRPC tool over reflection, against live runs: whom does it wait for?"""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from demo_cluster import free_port
from system_case import ROOT, SystemCase
from xml_report import main

CTL = ROOT / "server/ctl/isthmusctl"
BUF = Path(os.environ["TEST_SRCDIR"]) / "buf/buf"
CALL_S = 20
GRACE_MS = 2000  # of the runs here


class Ctl(SystemCase):
    def ctl(self, *words, address=None, code=0, env=None):
        """Runs isthmusctl to its end; returns its output, or its message where `code` is not 0."""
        server = [] if address is None else [f"--server={address}"]
        done = subprocess.run(
            [CTL, *server, *words],
            capture_output=True,
            text=True,
            timeout=CALL_S,
            env={"TZ": "UTC", **(env or {})},
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def ctl_json(self, *words, address):
        """The answer in JSON."""
        return json.loads(self.ctl("--json", *words, address=address))

    def running(self, **options):
        """A run of nodes a and b that is at step 3 or later."""
        cluster = self.cluster({"a": 1, "b": 1}, steps=100000, **options)
        cluster.start(self.text)
        self.wait_step(cluster, "b", 3)
        return cluster

    def wait_show(self, cluster, *texts):
        """Waits until the first line of `runs show` holds the texts; returns the whole."""
        shown = [""]

        def holds():
            shown[0] = self.ctl("runs", "show", address=cluster.address)
            return all(text in shown[0].splitlines()[0] for text in texts)

        self.wait_until(holds, f"{texts} in the first line of 'runs show'")
        return shown[0]


def tensors(path):
    """Bytes of every tensor in a safetensors file, by name."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {
        name: data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


class Export(Ctl):
    def test_the_last_state_is_exported_as_the_trainers_save_it(self):
        cluster = self.cluster({"a": 1, "b": 2}, steps=12, more='preset: "full"\n')
        cluster.start_coordinator()
        out = self.folder / "model.safetensors"
        words = ("checkpoint", "export")
        none_yet = self.ctl(*words, f"--out={out}", address=cluster.address, code=1)
        self.assertIn("has no snapshot yet", none_yet)
        self.assertIn("--out is empty", self.ctl(*words, address=cluster.address, code=2))
        saved = self.folder / "saved"
        for node in cluster.ranks:
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text, [f"--save={saved}"] if node == "a" else [])
        self.finish(cluster)
        self.assertFalse(out.exists())
        text = self.ctl(*words, f"--out={out}", address=cluster.address)
        self.assertIn("the parameters after round 12 of run small", text)
        self.assertEqual(tensors(out), tensors(saved))
        no_such = self.ctl(*words, f"--out={out}", "--round=3", address=cluster.address, code=1)
        self.assertIn("there is no snapshot of round 3", no_such)


class Live(Ctl):
    def test_a_stopped_trainer_is_named(self):
        cluster = self.running()
        frozen = cluster.processes["trainer-b-0"]
        frozen.send_signal(signal.SIGSTOP)
        self.addCleanup(frozen.send_signal, signal.SIGCONT)
        shown = self.wait_show(cluster, "stands still", " for b, ", "look at b")
        print(shown)
        self.assertIn(": waiting for b", shown)
        nodes = self.ctl_json("nodes", "list", address=cluster.address)["nodes"]
        by_name = {node["name"]: node for node in nodes}
        self.assertTrue(by_name["b"]["isWaitedFor"])
        self.assertFalse(by_name["a"]["isWaitedFor"])
        # The agent of b lives on, so b is still a member.
        self.assertEqual(by_name["b"]["state"], "NODE_STATE_MEMBER")
        frozen.send_signal(signal.SIGCONT)
        self.wait_show(cluster, "Run small runs")

    def test_a_killed_node_is_named(self):
        cluster = self.running()
        self.kill(cluster.processes["agent-b"])
        self.kill(cluster.processes["trainer-b-0"])
        shown = self.wait_show(cluster, "stands still", "b, which was lost", "look at b")
        print(shown)
        self.assertIn("b (lease ended)", shown)

    def test_rounds_list_and_names_of_runs(self):
        cluster = self.running()
        rounds = self.ctl_json("--limit=2", "rounds", "list", "small", address=cluster.address)
        self.assertEqual(len(rounds["rounds"]), 2)
        self.assertIn("2 of 2", self.ctl("rounds", "list", address=cluster.address))
        self.assertIn("small", self.ctl("runs", "list", address=cluster.address))
        self.assertIn(
            "has run 'small'", self.ctl("runs", "show", "other", address=cluster.address, code=1)
        )
        environment = {"ISTHMUS_SERVER": cluster.address}
        self.assertIn("Run small", self.ctl("runs", "show", env=environment))

    def test_watch_has_a_line_for_every_change_and_ends_with_the_run(self):
        cluster = self.cluster({"a": 1, "b": 1}, steps=8)
        cluster.start_coordinator()
        output = self.folder / "watch"
        with open(output, "wb") as file:
            watch = subprocess.Popen(
                [CTL, f"--server={cluster.address}", "rounds", "watch"],
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.addCleanup(watch.kill)
        self.wait_until(lambda: "not connected" in output.read_text(), "the watch to begin")
        for node in ("a", "b"):
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        self.finish(cluster)
        self.wait_until(lambda: watch.poll() is not None, "the watch to end")
        text = output.read_text()
        self.assertEqual(watch.returncode, 0, text)
        for number in range(1, 9):
            self.assertIn(f"round {number}: opened", text)
            self.assertIn(f"round {number}: committed after", text)
        self.assertIn("a is complete", text)
        self.assertTrue(text.endswith("the run is finished\n"), text)
        self.assertIn(
            "is finished: all 8 rounds", self.ctl("runs", "show", address=cluster.address)
        )


class Operating(Ctl):
    def node(self, cluster, name):
        """A node as `nodes list` has it."""
        nodes = self.ctl_json("nodes", "list", address=cluster.address)["nodes"]
        return next(node for node in nodes if node["name"] == name)

    def outcomes(self, cluster, limit):
        """The newest committed rounds: (round, {node: outcome}, how long it took in ms)."""
        listed = self.ctl_json(f"--limit={limit}", "rounds", "list", address=cluster.address)
        return [
            (
                int(one["round"]),
                {node["node"]: node["outcome"] for node in one["nodes"]},
                int(one["durationMs"]),
            )
            for one in listed["rounds"]
            if one["state"] == "ROUND_STATE_COMMITTED"
        ]

    def wait_rounds_of_a_alone(self, cluster, count=10):
        """So many further rounds commit with a alone, and none waits for anybody."""
        begin = int(self.ctl_json("runs", "show", address=cluster.address)["run"]["openRound"])
        found = [[]]

        def committed():
            rounds = self.outcomes(cluster, 2 * count)
            found[0] = [one for one in rounds if one[0] > begin]
            return len(found[0]) >= count

        self.wait_until(committed, f"{count} rounds after round {begin}")
        for number, nodes, duration_ms in found[0]:
            self.assertEqual(nodes["a"], "NODE_OUTCOME_INCLUDED", number)
            self.assertNotIn(nodes["b"], ("NODE_OUTCOME_INCLUDED", "NODE_OUTCOME_OUTSTANDING"))
            self.assertLess(duration_ms, GRACE_MS, f"round {number} waited")

    def wait_both(self, cluster):
        """A round commits that has both nodes."""

        def both():
            return any(
                set(nodes.values()) == {"NODE_OUTCOME_INCLUDED"}
                for _, nodes, _ in self.outcomes(cluster, 5)
            )

        self.wait_until(both, "a round of both nodes")

    def stop_node(self, cluster, node):
        """Ends a node's processes in good order."""
        for name in (f"trainer-{node}-0", f"agent-{node}"):
            cluster.processes[name].send_signal(signal.SIGTERM)
            code, output = self.wait_exit(cluster, name)
            self.assertEqual(code, 0, output)

    def assert_node_is_refused(self, cluster):
        """The processes of the evicted node b end, and their last lines say all."""
        for name in ("trainer-b-0", "agent-b"):
            code, output = self.wait_exit(cluster, name)
            self.assertEqual(code, 1, output)
            last = output.strip().splitlines()[-1]
            self.assertIn("node 'b' was evicted from run 'small'", last)
            self.assertIn("(bad disk)", last)
            self.assertIn("isthmusctl nodes admit b", last)
            del cluster.processes[name]  # its end is no accident

    def start_node(self, cluster, node):
        """Starts a node that has ended."""
        cluster.start_agent(node)
        cluster.start_trainers(node, self.text)

    def test_a_drained_node_is_not_waited_for_and_comes_back(self):
        cluster = self.running(quorum=1)
        address = cluster.address
        said = self.ctl("nodes", "drain", "b", "--reason=new fans", address=address)
        print(said)
        self.assertIn("Node b drains", said)
        self.assertIn("isthmusctl nodes admit b", said)
        self.assertIn("The coordinator says: ", said)
        self.wait_until(
            lambda: self.node(cluster, "b")["state"] == "NODE_STATE_DRAINING", "b to drain"
        )
        self.assertIn("operator: new fans", self.ctl("nodes", "list", address=address))
        self.wait_rounds_of_a_alone(cluster)
        # It goes on getting updates, so that it is in step when it is admitted.
        before = int(self.node(cluster, "b")["acknowledgedRound"])
        self.wait_until(
            lambda: int(self.node(cluster, "b")["acknowledgedRound"]) > before + 5, "updates for b"
        )
        self.stop_node(cluster, "b")
        self.wait_rounds_of_a_alone(cluster)
        self.assertIn("left, drains", self.ctl("nodes", "list", address=address))
        self.assertIn("Node b is admitted", self.ctl("nodes", "admit", "b", address=address))
        self.start_node(cluster, "b")
        self.wait_both(cluster)

    def test_an_evicted_node_ends_and_is_refused_until_it_is_admitted(self):
        # A quorum of all nodes: it must not be missed.
        cluster = self.running()
        address = cluster.address
        said = self.ctl("nodes", "evict", "b", "--reason=bad disk", address=address)
        print(said)
        self.assertIn("Node b is evicted", said)
        self.assert_node_is_refused(cluster)
        self.start_node(cluster, "b")
        self.assert_node_is_refused(cluster)
        self.wait_rounds_of_a_alone(cluster)
        self.assertEqual(self.node(cluster, "b")["state"], "NODE_STATE_EVICTED")
        # It holds over a restart of the coordinator.
        self.kill(cluster.processes["coordinator"])
        cluster.start_coordinator()
        self.assertEqual(self.node(cluster, "b")["policyReason"], "bad disk")
        self.wait_rounds_of_a_alone(cluster)
        refused = self.ctl("nodes", "drain", "b", address=address, code=1)
        self.assertIn("is evicted (bad disk)", refused)
        self.ctl("nodes", "admit", "b", address=address)
        self.start_node(cluster, "b")
        self.wait_both(cluster)

    def test_a_snapshot_is_made_when_asked_for(self):
        cluster = self.running()
        said = self.ctl("runs", "checkpoint", address=cluster.address)
        print(said)
        self.assertRegex(said, r"A snapshot of round [0-9,]+ will be kept")
        self.wait_log(cluster, "coordinator", "snapshot kept")

    def test_a_node_that_is_not_there(self):
        cluster = self.cluster({"a": 1, "b": 1})
        cluster.start_coordinator()
        said = self.ctl("nodes", "drain", "c", address=cluster.address, code=1)
        self.assertIn("its spec names a, b", said)
        self.assertIn("needs the name of a node", self.ctl("nodes", "evict", code=2))


class Reflection(Ctl):
    def buf(self, *arguments):
        """Runs buf curl; returns its output."""
        done = subprocess.run(
            [BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments],
            capture_output=True,
            text=True,
            timeout=CALL_S,
            env={"HOME": str(self.folder)},
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_buf_curl_lists_and_calls_over_reflection(self):
        cluster = self.cluster({"a": 1, "b": 1})
        cluster.start_coordinator()
        url = f"http://{cluster.address}"
        methods = self.buf("--list-methods", url).split()
        for method in (
            "isthmus.v1.CoordinatorService/JoinRun",
            "isthmus.v1.MonitorService/WatchRounds",
            "grpc.health.v1.Health/Check",
        ):
            self.assertIn(method, methods)
        run = json.loads(self.buf(f"{url}/isthmus.v1.MonitorService/GetRun"))["run"]
        self.assertEqual(run["run"], "small")
        self.assertIn("a (not connected), b (not connected)", run["waitingFor"])
        for service in ("", "isthmus.v1.MonitorService", "isthmus.v1.CoordinatorService"):
            asked = ["-d", json.dumps({"service": service}), f"{url}/grpc.health.v1.Health/Check"]
            self.assertEqual(json.loads(self.buf(*asked))["status"], "SERVING")

    def test_health_is_for_probes(self):
        cluster = self.cluster({"a": 1, "b": 1})
        cluster.start_coordinator()
        cluster.start_agent("a")
        for address in (cluster.address, f"unix:{cluster.folder}/a.sock"):
            self.assertEqual(self.ctl("health", address=address), "SERVING\n")
        answer = self.ctl_json("health", address=cluster.address)
        self.assertEqual(answer, {"status": "SERVING"})
        cluster.stop()
        self.ctl("--timeout=2s", "health", address=cluster.address, code=3)


class Usage(Ctl):
    def test_what_no_coordinator_is_asked(self):
        """Refused at once: nobody listens there."""
        nobody = f"127.0.0.1:{free_port()}"
        for words in (("runs", "fork", "a", "b"), ("checkpoint", "export", "--out=x")):
            said = self.ctl(*words, "--round=-5", address=nobody, code=2)
            self.assertIn("--round is -5; give the round of a snapshot, 0 or more", said)
        words = (b"runs", b"pause", b"small", b"--reason=f\xfcr heute")
        said = self.ctl(*words, address=nobody, code=2)
        self.assertIn("--reason is not UTF-8 ('f\\xfcr heute')", said)
        spec = self.folder / "spec.txtpb"
        spec.write_bytes(b"# first line\n# f\xfcr\n")
        said = self.ctl("runs", "create", spec, address=nobody, code=1)
        self.assertIn(f"line 2 of '{spec}' is not UTF-8", said)

    def test_wrong_usage_is_told_with_the_nearest_command(self):
        self.assertIn("did you mean 'nodes list'", self.ctl("node", "lst", code=2))
        self.assertIn("no command", self.ctl(code=2))
        self.assertIn("--timeout is", self.ctl("--timeout=0s", "runs", "list", code=2))
        self.assertIn("--limit is 0", self.ctl("--limit=0", "runs", "list", code=2))
        self.assertIn("--server", self.ctl("runs", "list", address="nowhere", code=2))
        self.ctl("--no_such_flag", code=2)
        self.assertIn("runs show", self.ctl("help"))
        self.assertIn("runs show", self.ctl("-h"))
        self.assertIn("runs show", self.ctl("--help"))
        self.assertRegex(self.ctl("version"), r"^isthmusctl \d+\.\d+\.\d+\n$")

    def test_nobody_listens(self):
        address = f"127.0.0.1:{free_port()}"
        for words in (("runs", "show"), ("rounds", "watch")):
            self.assertIn(f"at {address}", self.ctl(*words, address=address, code=3))

    def test_a_listener_that_never_answers_is_given_up(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            for words in (("nodes", "list"), ("rounds", "watch")):
                said = self.ctl("--timeout=500ms", *words, address=address, code=3)
                self.assertIn(address, said)

    def test_an_agent_is_no_coordinator(self):
        cluster = self.cluster({"a": 1, "b": 1})
        cluster.start_coordinator()
        cluster.start_agent("a")
        said = self.ctl("runs", "show", address=f"unix:{cluster.folder}/a.sock", code=1)
        self.assertIn("is an agent", said)


if __name__ == "__main__":
    main()
