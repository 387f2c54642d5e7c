"""What people do wrong: each must end in a sentence that names what is wrong, and an exit code."""

import json
import os
import re
import subprocess

from demo_cluster import free_port
from system_case import BINARIES, SystemCase
from xml_report import main


class BadInput(SystemCase):
    def assert_fails(self, cluster, name, *texts, code=None):
        """The process ends with an exit code other than 0 and says all of `texts`."""
        got, output = self.wait_exit(cluster, name)
        self.assertNotEqual(got, 0, output)
        if code is not None:
            self.assertEqual(got, code, output)
        for text in texts:
            self.assertIn(text, output)

    def start_coordinator(self, ranks, **options):
        cluster = self.cluster(ranks, **options)
        cluster.start_coordinator()
        return cluster

    def test_missing_data_file(self):
        cluster = self.cluster({"a": 1})  # no agent: a wrong path is told before any wait
        cluster.start_trainers("a", self.folder / "nowhere.txt")
        self.assert_fails(cluster, "trainer-a-0", "nowhere.txt")

    def test_result_in_a_missing_folder(self):
        cluster = self.cluster({"a": 1})
        cluster.start_trainers("a", self.text, [f"--save={self.folder}/nowhere/model"])
        self.assert_fails(cluster, "trainer-a-0", "nowhere/model")

    def test_help_shows_the_flags_of_each_program(self):
        for name, flag in {"coordinator": "run_spec", "agent": "node", "trainer": "data"}.items():
            shown = subprocess.run([BINARIES[name], "--help"], capture_output=True, text=True)
            self.assertEqual(shown.returncode, 0, name)
            self.assertIn(f"--{flag} ", shown.stdout)

    def test_data_file_that_is_cut_while_it_is_used(self):
        cluster = self.start_coordinator({"a": 1}, steps=100000, quorum=1, deadline_ms=2000)
        cluster.start_agent("a")
        cluster.start_trainers("a", self.text)
        self.wait_step(cluster, "a", 2)
        before = self.text.stat().st_size
        os.truncate(self.text, 0)
        self.assert_fails(cluster, "trainer-a-0", str(self.text), f"had {before} bytes", code=1)
        self.wait_log(cluster, "coordinator", "node left")

    def test_run_spec_that_does_not_parse(self):
        cluster = self.cluster({"a": 1})
        cluster.spec_file.write_text('run: "x"\nsteps: many\n')
        cluster.spawn("coordinator", f"--run_spec={cluster.spec_file}", "--listen=127.0.0.1:0")
        self.assert_fails(cluster, "coordinator", "2:", "steps", code=2)

    def test_run_spec_out_of_range(self):
        cluster = self.cluster({"a": 1}, quorum=3)
        cluster.spawn("coordinator", f"--run_spec={cluster.spec_file}", "--listen=127.0.0.1:0")
        self.assert_fails(cluster, "coordinator", "quorum", "3", "2", code=2)

    def test_missing_run_spec(self):
        cluster = self.cluster({"a": 1})
        cluster.spawn("coordinator", "--run_spec=/nonexistent/spec", "--listen=127.0.0.1:0")
        self.assert_fails(cluster, "coordinator", "/nonexistent/spec", code=2)

    def test_address_in_use(self):
        cluster = self.start_coordinator({"a": 1})
        taken = cluster.address
        cluster.spawn("coordinator-2", f"--run_spec={cluster.spec_file}", f"--listen={taken}")
        self.assert_fails(cluster, "coordinator-2", taken, "in use", code=1)

    def test_agent_socket_in_use(self):
        cluster = self.start_coordinator({"a": 1})
        cluster.start_agent("a")
        socket = f"unix:{cluster.folder}/a.sock"
        cluster.spawn(
            "agent-2",
            "--node=a",
            f"--coordinator={cluster.address}",
            "--ranks=1",
            f"--listen={socket}",
        )
        self.assert_fails(cluster, "agent-2", "a.sock", "in use", code=1)

    def test_plaintext_beyond_loopback(self):
        cluster = self.cluster({"a": 1})
        cluster.spawn("coordinator", f"--run_spec={cluster.spec_file}", "--listen=0.0.0.0:0")
        self.assert_fails(cluster, "coordinator", "0.0.0.0:0", "--allow_plaintext")

    def test_node_that_the_run_does_not_name(self):
        cluster = self.start_coordinator({"c": 1})
        cluster.start_agent("c")
        self.assert_fails(cluster, "agent-c", "'c'", "a, b", code=1)

    def test_second_live_node_of_the_same_name(self):
        cluster = self.start_coordinator({"a": 1, "b": 1}, steps=100000)
        for node in ("a", "b"):
            cluster.start_agent(node)
            cluster.start_trainers(node, self.text)
        self.wait_step(cluster, "a", 2)
        impostor = f"unix:{cluster.folder}/impostor.sock"
        cluster.spawn(
            "agent-impostor",
            "--node=a",
            f"--coordinator={cluster.address}",
            "--ranks=1",
            f"--listen={impostor}",
        )
        self.wait_until((cluster.folder / "impostor.sock").exists, "the impostor's socket")
        cluster.spawn(
            "trainer-impostor",
            f"--agent={impostor}",
            f"--data={self.text}",
            "--rank=0",
            "--ranks=1",
            "--master_addr=127.0.0.1",
            f"--master_port={free_port()}",
        )
        self.assert_fails(cluster, "trainer-impostor", "'a'", "lives")
        before = self.last_step(cluster, "a")
        self.wait_step(cluster, "a", before + 2)

    def last_step(self, cluster, node):
        """The last step that a node's metrics name."""
        text = cluster.metrics_file(node, 0).read_text().replace(" ", "")
        return int(re.findall(r'"step":(\d+),', text)[-1])

    def saved_model(self):
        """The model of a short run as a safetensors file."""
        first = self.cluster({"a": 1}, quorum=1, steps=2)
        first.start_coordinator()
        first.start_agent("a")
        saved = self.folder / "saved.safetensors"
        first.start_trainers("a", self.text, [f"--save={saved}"])
        self.finish(first)
        first.stop()
        first.folder.rename(self.folder / "first")
        return saved

    def test_start_files_that_differ_in_a_frozen_tensor(self):
        saved = self.saved_model()
        data = bytearray(saved.read_bytes())
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        name = "transformer.wpe.weight"
        data[8 + header_bytes + header[name]["data_offsets"][0]] ^= 1
        other = self.folder / "other.safetensors"
        other.write_bytes(data)

        cluster = self.start_coordinator({"a": 1, "b": 1}, steps=100000, frozen=name)
        for node in ("a", "b"):
            cluster.start_agent(node)
        cluster.start_trainers("a", self.text, [f"--start_file={saved}"])
        self.wait_log(cluster, "coordinator", "joined")
        cluster.start_trainers("b", self.text, [f"--start_file={other}"])
        self.assert_fails(cluster, "trainer-b-0", "start state")

    def test_other_start_state(self):
        saved = self.saved_model()
        cluster = self.start_coordinator({"a": 1, "b": 1}, steps=100000)
        for node in ("a", "b"):
            cluster.start_agent(node)
        cluster.start_trainers("a", self.text)
        self.wait_log(cluster, "coordinator", "joined")
        cluster.start_trainers("b", self.text, [f"--start_file={saved}"])
        self.assert_fails(cluster, "trainer-b-0", "start state")

    def test_start_file_of_another_model(self):
        wrong = self.folder / "wrong.safetensors"
        header = b'{"wte.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}'
        wrong.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
        cluster = self.start_coordinator({"a": 1})
        cluster.start_agent("a")
        cluster.start_trainers("a", self.text, [f"--start_file={wrong}"])
        self.assert_fails(cluster, "trainer-a-0", "wte.weight", "wrong.safetensors")

    def test_two_trainers_of_one_node_with_different_data(self):
        cluster = self.start_coordinator({"a": 2})
        cluster.start_agent("a")
        port = free_port()
        cluster.start_trainer("a", 0, port, self.text)
        short = self.folder / "short"
        short.write_text(self.text.read_text()[:-100])
        cluster.start_trainer("a", 1, port, short)
        names = ("trainer-a-0", "trainer-a-1")
        self.wait_until(
            lambda: any(cluster.processes[name].poll() is not None for name in names),
            "one of the trainers to be refused",
        )
        output = "".join(cluster.log_file(name).read_text() for name in names)
        self.assertIn("data", output)
        self.assertIn(str(self.text.stat().st_size), output)

    def test_trainer_with_another_rank_count_than_its_agent(self):
        cluster = self.start_coordinator({"a": 2})
        cluster.start_agent("a")
        cluster.ranks["a"] = 1
        cluster.start_trainers("a", self.text)
        self.assert_fails(cluster, "trainer-a-0", "1", "2", "rank")

    def test_sequences_that_ranks_do_not_divide(self):
        cluster = self.start_coordinator({"a": 3})
        cluster.start_agent("a")
        cluster.start_trainers("a", self.text)
        self.assert_fails(cluster, "trainer-a-0", "sequences_per_node", "4", "3")

    def test_trainer_says_what_it_waits_for(self):
        cluster = self.cluster({"a": 1})
        cluster.address = f"127.0.0.1:{free_port()}"
        cluster.start_agent("a")
        cluster.start_trainers("a", self.text)
        self.wait_log(cluster, "trainer-a-0", cluster.address)


if __name__ == "__main__":
    main()
