"""A link between an agent and its coordinator that can be slow, cut, or dead.

    link = Link(coordinator_port, up_bytes_per_s=4e6)
    cluster.routes["b"] = link.address
    link.dead = True       # nothing passes in either direction, and nobody is told
    link.cut()             # every connection is broken

A relay on the loopback interface: one thread a direction of each connection.
"""

import socket
import threading
import time

# Small, so that what the kernel holds is little beside what is counted.
BUFFER_BYTES = 32 * 1024
CHUNK_BYTES = 16 * 1024


class Link:
    """Listens on a port of its own; `port` is where it leads to, and may be set later."""

    def __init__(
        self,
        port=None,
        up_bytes_per_s=None,
        delay_s=0.0,
        host="127.0.0.1",
        listen=("127.0.0.1", 0),
    ):
        """`delay_s`: of everything that passes, in either direction; for little that passes.
        `host`: where it leads to; `listen`: its own address."""
        self.port = port
        self.host = host
        self.up_bytes_per_s = up_bytes_per_s
        self.delay_s = delay_s
        self.dead = False
        self.up_bytes = 0
        self.connections = 0
        self.passed = []  # bytes up, by connection
        self._closed = False
        self._sockets = set()
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(listen)
        self._listener.listen()
        self._listen = self._listener.getsockname()
        self.address = f"{self._listen[0]}:{self._listen[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Breaks every connection; new ones may be made."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        """The end of it."""
        self._closed = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # or the thread's accept would hold it open
        except OSError:
            pass
        self._listener.close()
        self.cut()

    def again(self):
        """A new one in the place of one that was closed."""
        return Link(self.port, self.up_bytes_per_s, self.delay_s, self.host, self._listen)

    def _accept(self):
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            number = self.connections
            self.connections += 1
            self.passed.append(0)
            try:
                far = socket.create_connection((self.host, self.port), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {near, far}
            threading.Thread(target=self._pass, args=(near, far, number), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, None), daemon=True).start()

    def _pass(self, source, sink, number):
        """One direction; `number` of the connection: that up."""
        up = number is not None
        try:
            while data := source.recv(CHUNK_BYTES):
                if up:
                    self._slow_down(len(data))
                time.sleep(self.delay_s)
                while self.dead and not self._closed:
                    time.sleep(0.02)
                sink.sendall(data)
                if up:
                    with self._lock:
                        self.up_bytes += len(data)
                        self.passed[number] += len(data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._lock:
            self._sockets -= {source, sink}

    def _slow_down(self, size):
        if self.up_bytes_per_s is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self.up_bytes_per_s
            wait = self._free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)
