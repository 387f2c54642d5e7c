"""The experiments of papers, as far as that goes without a cluster.

Every field of a RunSpec says where it comes from, and what the scripts would start has flags that
the programs know.
"""

import ast
import os
import pathlib
import re
import subprocess
import unittest

import xml_report

EXPERIMENTS = pathlib.Path("experiments")
MAINS = {
    "coordinator": "server/main.cc",
    "agent": "worker/agent_main.cc",
    "trainer": "worker/trainer_main.cc",
}
FIELD = re.compile(r"^\s*[a-z0-9_]+:")
FLAG = re.compile(r"--([a-z_]+)")


def flags_of_program(name):
    text = pathlib.Path(MAINS[name]).read_text(encoding="utf-8")
    return set(re.findall(r"ABSL_FLAG\(\s*[^,]+,\s*([a-z_]+),", text))


def flags_of_python(path):
    """The options that a script's parser is given."""
    calls = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call))
    texts = (arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant))
    return {text[2:] for text in texts if isinstance(text, str) and text.startswith("--")}


def would_start(script, *arguments, **variables):
    """The commands that a dry run of a script prints, each as a list of words."""
    environment = dict(os.environ, DRY_RUN="1", **variables)
    for name in [name for name in environment if name.startswith("SLURM")]:
        del environment[name]
    done = subprocess.run(
        ["bash", str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{script} {arguments}: {done.stdout}{done.stderr}")
    return [line.split()[2:] for line in done.stdout.splitlines()]


class RunSpecsTest(unittest.TestCase):
    def test_every_field_says_where_it_comes_from(self):
        files = sorted(EXPERIMENTS.rglob("*.txtpb"))
        self.assertGreaterEqual(len(files), 18)
        for file in files:
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                if FIELD.match(line):
                    self.assertRegex(line, r"  # source: \S", f"{file}:{number} names no source")
                else:
                    self.assertRegex(line, r"^($|#|\s*[a-z_]+ \{$|\s*\}$)", f"{file}:{number}")


class ScriptsTest(unittest.TestCase):
    def check_programs(self, commands, spec, nodes, ranks):
        """Flags are known, and each node has one agent and one group of trainers."""
        seen = {name: [] for name in MAINS}
        for words in (words for words in commands if words[0] != "mkdir"):
            for name in MAINS:
                at = [i for i, w in enumerate(words) if re.search(rf"/{name}(_cuda)?$", w)]
                if not at:
                    continue
                flags = words[at[0] + 1 :]
                seen[name].append(" ".join(words))
                unknown = {f for w in flags for f in FLAG.findall(w)[:1]} - flags_of_program(name)
                self.assertFalse(unknown, f"{name} has no flag {unknown}")
        for name in ("agent", "trainer"):
            self.assertEqual(len(seen[name]), len(nodes), seen[name])
        for node, agent, trainer in zip(nodes, seen["agent"], seen["trainer"], strict=True):
            self.assertIn(f"--node={node} ", agent)
            self.assertIn(f"--ranks={ranks} ", agent)
            self.assertIn(f"--ntasks={ranks} ", trainer)
            # Ranks reach the agent at the socket it listens on.
            socket = re.search(r"--listen=(\S+)", agent).group(1)
            self.assertIn(f"--agent={socket} ", trainer)
        for coordinator in seen["coordinator"]:
            self.assertIn(f"--run_spec={spec} ", coordinator)
        return seen["coordinator"]

    def test_bash_can_read_them(self):
        scripts = sorted(EXPERIMENTS.rglob("*.sh"))
        self.assertGreaterEqual(len(scripts), 7)
        for script in scripts:
            done = subprocess.run(["bash", "-n", str(script)], check=False, capture_output=True)
            self.assertEqual(done.returncode, 0, f"{script}: {done.stderr}")

    def test_two_sites_in_one_job(self):
        spec = EXPERIMENTS / "flexdemo" / "gpt2_124m_demo.txtpb"
        script = EXPERIMENTS / "slurm" / "all_sites.sh"
        commands = would_start(script, str(spec), DATA="/data", HOSTS="h0 h1")
        coordinators = self.check_programs(commands, spec, ["east", "west"], 8)
        self.assertEqual(len(coordinators), 1)
        self.assertIn("--listen=h0:7070 ", coordinators[0])

    def test_eight_workers_on_one_host(self):
        spec = EXPERIMENTS / "sign_momentum" / "gpt2_124m_sign_h12.txtpb"
        script = EXPERIMENTS / "slurm" / "all_sites.sh"
        commands = would_start(script, str(spec), DATA="/data", HOSTS="h0")
        self.check_programs(commands, spec, [f"w{i}" for i in range(8)], 1)
        ports = [w for words in commands for w in words if w.startswith("--master_port=")]
        self.assertEqual(len(set(ports)), 8, "groups on one host need ports of their own")

    def test_a_job_for_the_coordinator_and_one_a_site(self):
        spec = EXPERIMENTS / "flexdemo" / "gpt2_355m_flexdemo.txtpb"
        coordinator = would_start(EXPERIMENTS / "slurm" / "coordinator.sh", str(spec))
        self.assertEqual(len(self.check_programs(coordinator, spec, [], 0)), 1)
        site = EXPERIMENTS / "slurm" / "site.sh"
        commands = would_start(site, str(spec), "west", DATA="/data", COORDINATOR="c:7070")
        self.check_programs(commands, spec, ["west"], 8)
        with self.assertRaisesRegex(AssertionError, "has no node 'north'"):
            would_start(site, str(spec), "north", DATA="/data", COORDINATOR="c:7070")

    def test_data_steps(self):
        known = {
            name: flags_of_python(path)
            for name, path in (
                ("download_text.py", EXPERIMENTS / "download_text.py"),
                ("prepare_data.py", pathlib.Path("tools/prepare_data.py")),
            )
        }
        for experiment in ("flexdemo", "sign_momentum"):
            script = EXPERIMENTS / experiment / "data.sh"
            commands = would_start(script, "/data/text", "tokenizer.json")
            for name, flags in known.items():
                of_it = [words for words in commands if any(w.endswith(name) for w in words)]
                self.assertEqual(len(of_it), 1, f"{experiment} does not start {name} once")
                given = {f for w in of_it[0] for f in re.findall(r"^--([a-z_]+)", w)}
                self.assertTrue(given and given <= flags, f"{name}: {given - flags}")


if __name__ == "__main__":
    xml_report.main()
