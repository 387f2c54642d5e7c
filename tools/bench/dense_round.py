"""A round of 10 M float32 values of two nodes, there and back, beside two peers that average.

Ours: a coordinator and two nodes (//bench:dense_round), each a process, over gRPC on loopback. A
node writes its values in the format, sends them, gets the mean of both in float32 and reads all of
it. The time of a round is that of the slower node. With durable=1 the update is in the store on
disk before it is sent. Peers: hivemind's DecentralizedAverager and torchft's Manager over Gloo,
two processes each, float32 (dense_peer.py says what their times hold).

A hub moves twice the bytes of an all-reduce: each of two nodes sends all values and gets all back,
160 MB in a round over loopback, where two peers that average halves of each other send 80 MB.

Ours, hivemind and torchft take turns in one run, so that what else the machine does hits all
alike; figures are medians. speedup is hivemind's time over ours. The target, for float32 that is
not durable, is 1.5; the other lines have none.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import run

ELEMENTS = 10_000_000
NODES = ("east", "west")
FORMATS = {
    name: f"numbers {{ format: NUMBER_FORMAT_{name.upper()} }}"
    for name in ("f32", "int8", "int4", "sign1")
}
SPEEDUP_MIN = 1.5
ROUNDS = {False: 10, True: 30}
# Not counted: the first rounds touch new memory, and peers find each other.
WARM_UP = 2
# Updates that a coordinator keeps, so that its memory is that of a few of them.
KEEP_BYTES = 200_000_000
START_S = 60
HERE = pathlib.Path(__file__).resolve().parent


def spec_text(numbers):
    """The nodes' values are averaged and nothing else is done with them."""
    nodes = " ".join(f'nodes {{ name: "{name}" }}' for name in NODES)
    return f"""run: "dense" steps: 1000000 {nodes}
optimizer {{ lr: 0.001 }} source: SOURCE_PARAM_DELTA schedule {{ local_steps: 1 }}
codec {{ kind: CODEC_KIND_NUMBERS {numbers} reply {{ format: NUMBER_FORMAT_F32 }} }}
aggregate {{ kind: AGGREGATE_KIND_MEAN }} outer {{ kind: OUTER_KIND_ASSIGN }}
preset: "local_sgd" placement: PLACEMENT_REPLICATED
timing {{ lease_ms: 600000 heartbeat_ms: 60000 }}
"""


class Driven:
    """A process that does a round for each line it gets, and answers with one."""

    def __init__(self, *command, stderr=None):
        self.child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def read(self):
        line = self.child.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.child.args[:3]} ended without an answer")
        return line

    def begin(self):
        self.child.stdin.write("round\n")
        self.child.stdin.flush()

    def answer(self):
        """The numbers of a round."""
        return {key: float(value) for key, value in (w.split("=") for w in self.read().split())}

    def close(self):
        self.child.stdin.close()
        try:
            self.child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Ours:
    """A coordinator and its nodes."""

    def __init__(self, bazel_bin, folder, numbers, durable):
        folder.mkdir()
        spec = folder / "run.txtpb"
        spec.write_text(spec_text(numbers), encoding="utf-8")
        ready = folder / "ready"
        flags = [f"--run_spec={spec}", f"--ready_file={ready}", f"--keep_bytes={KEEP_BYTES}"]
        flags += ["--listen=127.0.0.1:0", "--log_level=warning"]
        if durable:
            flags.append(f"--state_dir={folder}/state")
        self.nodes = []
        self.coordinator = subprocess.Popen([bazel_bin / "server" / "coordinator", *flags])
        try:
            self.start_nodes(bazel_bin / "bench" / "dense_round", spec, ready)
        except BaseException:
            self.close()
            raise

    def start_nodes(self, program, spec, ready):
        until = time.monotonic() + START_S
        while not ready.exists() or not ready.read_text(encoding="utf-8").strip():
            if self.coordinator.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the coordinator did not start; its message is above")
            time.sleep(0.01)
        address = ready.read_text(encoding="utf-8").split()[0]
        shared = [f"--run_spec={spec}", f"--coordinator={address}", f"--elements={ELEMENTS}"]
        for name in NODES:
            self.nodes.append(Driven(program, *shared, f"--node={name}"))
        for node in self.nodes:
            node.read()

    def round(self):
        """What the slower node says."""
        for node in self.nodes:
            node.begin()
        return max((node.answer() for node in self.nodes), key=lambda answer: answer["ms"])

    def close(self):
        for node in self.nodes:
            node.close()
        self.coordinator.terminate()
        self.coordinator.wait(timeout=30)


class Peers:
    """Two processes of another project; the first prints what the second needs to find it."""

    def __init__(self, python, name, log):
        command = [python, HERE / "dense_peer.py", name, ELEMENTS]
        self.peers = [Driven(*command, stderr=log)]
        try:
            self.peers.append(Driven(*command, self.peers[0].read(), stderr=log))
            for peer in self.peers:
                peer.read()
        except BaseException:
            self.close()
            raise

    def round(self):
        for peer in self.peers:
            peer.begin()
        return max(peer.answer()["ms"] for peer in self.peers)

    def close(self):
        # The first one is what the second reports to.
        for peer in reversed(self.peers):
            peer.close()


def start_peers(log):
    """Those that can be had, by name; says why one cannot. What they have to say goes to `log`."""
    try:
        python = run.environment_python("dense_round")
    except run.NotInstalled as error:
        print(f"hivemind and torchft are left out: {error}", flush=True)
        return {}
    peers = {}
    for name in ("hivemind", "torchft"):
        try:
            peers[name] = Peers(python, name, log)
        except (OSError, RuntimeError) as error:
            print(f"{name} is left out: {error}", flush=True)
    return peers


def peer_round(peers, name, times_ms):
    """One round of a peer; one that fails is left out from here on."""
    try:
        times_ms[name].append(peers[name].round())
    except (OSError, RuntimeError) as error:
        print(f"{name} is left out: {error}", flush=True)
        peers.pop(name).close()
        times_ms.pop(name)


def measure(ours, peers, rounds):
    """(answers of ours, times of each peer), one for each round that counts."""
    answers, times_ms = [], {name: [] for name in peers}
    for _ in range(WARM_UP + rounds):
        answers.append(ours.round())
        for name in list(peers):
            peer_round(peers, name, times_ms)
    return answers[WARM_UP:], {name: times[WARM_UP:] for name, times in times_ms.items()}


def report(name, durable, answers, times_ms):
    medians = {key: statistics.median(a[key] for a in answers) for key in answers[0]}
    print(
        f"{name}, durable={durable}: of {medians['ms']:.0f} ms a node writes and hashes for "
        f"{medians['encode_ms']:.0f}, waits for the update for {medians['wait_ms']:.0f} and reads "
        f"it for {medians['decode_ms']:.0f}; it sends {medians['up_bytes'] / 1e6:.1f} MB and gets "
        f"{medians['down_bytes'] / 1e6:.1f} MB",
        flush=True,
    )
    line = f"result dense_round format={name} durable={durable} ours_ms={medians['ms']:.1f}"
    peer_ms = {peer: statistics.median(times) for peer, times in times_ms.items()}
    for peer in ("hivemind", "torchft"):
        line += f" {peer}_ms={peer_ms[peer]:.1f}" if peer in peer_ms else f" {peer}_ms=none"
    if "hivemind" not in peer_ms:
        print(f"{line} speedup=none skipped=no_hivemind", flush=True)
        return
    speedup = peer_ms["hivemind"] / medians["ms"]
    has_bar = name == "f32" and not durable
    bar, met = (f"{SPEEDUP_MIN}", int(speedup >= SPEEDUP_MIN)) if has_bar else ("none", 1)
    print(f"{line} speedup={speedup:.2f} bar={bar} met={met}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench dense_round")
    parser.add_argument("--bazel-bin", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help="30 rounds in place of 10")
    parser.add_argument("--formats", default=",".join(FORMATS), help="which, with commas between")
    options = parser.parse_args()
    log = open(options.out / "dense_round_peers.log", "w", encoding="utf-8")
    peers = start_peers(log)
    print(
        f"{ELEMENTS} values, {len(NODES)} nodes. As float32 a hub moves {16 * ELEMENTS / 1e6:.0f} "
        f"MB in a round over loopback, an all-reduce of two {8 * ELEMENTS / 1e6:.0f} MB.",
        flush=True,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in options.formats.split(","):
                for durable in (0, 1):
                    place = pathlib.Path(folder) / f"{name}-{durable}"
                    ours = Ours(options.bazel_bin, place, FORMATS[name], durable)
                    try:
                        report(name, durable, *measure(ours, peers, ROUNDS[options.full]))
                    finally:
                        ours.close()
    finally:
        for peer in peers.values():
            peer.close()


if __name__ == "__main__":
    sys.exit(main())
