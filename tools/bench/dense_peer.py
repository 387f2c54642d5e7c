"""One of two peers that average float32 values over loopback, for dense_round.py.

    dense_peer.py hivemind|torchft ELEMENTS          prints what the second one is to be given
    dense_peer.py hivemind|torchft ELEMENTS THAT

Both print "ready" when they have found each other, and "ms=…" for a round for each line that they
get. A round is what the library's user waits for: of torchft with quorum and vote, of hivemind
without the search for a group, which takes over a second but can go on beside the steps. Peer 1
averages ones, peer 2 threes, and both look whether they got twos.
"""

import datetime
import sys
import time

import torch

ROUND_TIMEOUT_S = 30


class Hivemind:
    """DecentralizedAverager without compression. Its group is found before the clock starts."""

    def __init__(self, tensor, address):
        import hivemind

        self.tensor = tensor
        self.dht = hivemind.DHT(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            initial_peers=[address] if address else [],
            start=True,
        )
        if not address:
            print(self.dht.get_visible_maddrs()[0], flush=True)
        self.averager = hivemind.averaging.DecentralizedAverager(
            [tensor.clone()],
            self.dht,
            prefix="dense",
            target_group_size=2,
            min_group_size=2,
            min_matchmaking_time=1.0,
            request_timeout=0.5,
            start=True,
        )
        self.awaiting = hivemind.averaging.control.AveragingStage.AWAITING_TRIGGER
        self.step = None

    def prepare(self):
        with self.averager.get_tensors() as tensors:
            tensors[0][:] = self.tensor
        self.step = self.averager.step(wait=False, require_trigger=True, timeout=ROUND_TIMEOUT_S)
        while self.step.stage != self.awaiting:
            if self.step.done():
                raise RuntimeError("no group was found")
            time.sleep(0.001)

    def average(self):
        self.step.allow_allreduce()
        if self.step.result(ROUND_TIMEOUT_S) is None:
            raise RuntimeError("the group did not average")
        with self.averager.get_tensors() as tensors:
            return tensors[0]

    def close(self):
        self.averager.shutdown()
        self.dht.shutdown()


class Torchft:
    """Manager over ProcessGroupGloo: quorum, all-reduce, vote."""

    def __init__(self, tensor, address):
        from torch.distributed import TCPStore
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseServer

        self.tensor = tensor
        self.lighthouse = None
        if not address:
            self.lighthouse = LighthouseServer(
                bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000
            )
            address = self.lighthouse.address()
            print(address, flush=True)
        timeout = datetime.timedelta(seconds=ROUND_TIMEOUT_S)
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timeout),
            min_replica_size=2,
            load_state_dict=lambda state: None,
            state_dict=dict,
            replica_id="first" if self.lighthouse else "second",
            store_addr="127.0.0.1",
            store_port=self.store.port,
            rank=0,
            world_size=1,
            lighthouse_addr=address,
            timeout=timeout,
            hostname="127.0.0.1",
            init_sync=False,
        )
        self.values = tensor.clone()

    def prepare(self):
        self.values[:] = self.tensor

    def average(self):
        self.manager.start_quorum()
        self.manager.allreduce(self.values).wait()
        if not self.manager.should_commit():
            raise RuntimeError("the replicas did not commit")
        return self.values

    def close(self):
        self.manager.shutdown()
        if self.lighthouse:
            self.lighthouse.shutdown()


def main(kind, elements, address=None):
    torch.set_num_threads(1)
    tensor = torch.full((int(elements),), 3.0 if address else 1.0)
    peer = {"hivemind": Hivemind, "torchft": Torchft}[kind](tensor, address)
    print("ready", flush=True)
    for _ in sys.stdin:
        peer.prepare()
        begin = time.perf_counter()
        values = peer.average()
        took_ms = (time.perf_counter() - begin) * 1e3
        if not bool((values == 2.0).all()):
            raise RuntimeError(f"the average holds {values[:3].tolist()}, not 2")
        print(f"ms={took_ms}", flush=True)
    peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
