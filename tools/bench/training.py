"""Training runs for benchmarks that compare methods: one model, one text, one number of tokens.

A GPT of 0.84 M parameters on the demo's text, two nodes of one rank each, through coordinator,
agents and trainers. All runs see the same model, start, data order, tokens and schedule. The
held-out loss is in nats a token (a token is a byte).
"""

import tempfile
import time

from demo_cluster import Cluster, MetricsTail

NODES = {"frankfurt": 1, "virginia": 1}
SEQUENCES_PER_NODE = 4
CONTEXT = 128
TOKENS_A_STEP = len(NODES) * SEQUENCES_PER_NODE * CONTEXT
STEPS = 2012  # 2.06 million tokens
SEEDS = (1, 2, 3)
# Of tunings, which benchmarks do not use.
TUNE_SEED = 101

SPEC = """\
run: "{run}"
seed: {seed}
steps: {steps}
{nodes}
model {{ layers: 4 heads: 4 width: 128 context: {context} vocab: 256 }}
data {{ sequences_per_node: {sequences} heldout_permille: 50 eval_sequences: 64
       eval_every: {every} }}
optimizer {{ lr: {lr} warmup_steps: {warmup} lr_final_ratio: 0.05 clip_norm: 1.0 }}
{method}
"""


class Trained:
    """What a run came to."""

    def __init__(self, summary, lines, seconds, nodes):
        self.summary = summary
        self.val = summary["val_loss"]
        self.seconds = seconds
        self.parameters = summary["dense_bytes_per_round"] // 4
        # [(tokens of all nodes, bytes of one node's link up and down, held-out loss)]
        self.curve = [(0, 0, summary["start_loss"])]
        self.curve += [
            (line["step"] * TOKENS_A_STEP, self._link_bytes(line), line["val_loss"])
            for line in lines
            if line.get("val_loss") is not None
        ]
        last = lines[-1]
        self.link_bytes = self._link_bytes(last)
        self.bytes_per_token = self.link_bytes * nodes / (last["step"] * TOKENS_A_STEP)
        # Of one node: all but the waiting, which on loopback is the other node's and the merge's.
        self.wait_s = sum(line["wait_ms"] for line in lines) / 1e3
        self.compute_s = last["seconds"] - self.wait_s
        self.rounds = len(lines)

    @staticmethod
    def _link_bytes(line):
        return line["bytes_up"] + line["bytes_down"]

    def best(self):
        """The lowest held-out loss on the way."""
        return min(loss for _, _, loss in self.curve)


def train(
    binaries, text, method, lr, seed, steps=STEPS, every=100, nodes=None, box=None, drifts=False
):
    """One run through the whole system.

    `method`: lines of a run spec that say how. `nodes`: ranks by name; one node has the batch of
    all. `box`: a WanBox in which it takes place. All replicas must end equal, unless `drifts` says
    that nothing keeps them so.
    """
    nodes = nodes or NODES
    spec = SPEC.format(
        run="bench",
        seed=seed,
        steps=steps,
        nodes="\n".join(f'nodes {{ name: "{name}" }}' for name in nodes),
        context=CONTEXT,
        sequences=max(1, SEQUENCES_PER_NODE * len(NODES) // len(nodes)),
        every=every,
        lr=lr,
        warmup=steps // 20,
        method=method,
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="isthmus-training-") as folder:
        # Losses are what counts here: gigabytes of dense updates need not reach the disk.
        cluster = Cluster(binaries, folder, spec, nodes, box, durable=False)
        first = next(iter(nodes))
        tail = MetricsTail(cluster.metrics_file(first, 0))
        lines = []
        try:
            cluster.start(text)
            while not cluster.trainers_done():
                cluster.check()
                lines += tail.new_lines()
                time.sleep(0.2)
            lines += tail.new_lines()
            summaries = cluster.summaries()
        finally:
            cluster.stop()
    states = {summary["state_sha256"] for summary in summaries.values()}
    if len(states) != 1 and not drifts:
        raise SystemExit(f"the nodes of a run ended with different states: {states}\n{spec}")
    return Trained(summaries[first], lines, time.monotonic() - started, len(nodes))
