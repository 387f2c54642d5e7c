"""A gRPC call by hand, over a socket: where a case must see what is on the wire, or has no library.

Requests are sent with literal header fields; of an answer only the message is read.
"""

import socket
import struct

from demo_cluster import RunError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags, stream, payload=b""):
    """A frame of HTTP/2."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + (struct.pack(">I", stream) + payload)
    )


def _literal(name, value):
    """A header field that neither side puts into a table; both are shorter than 127 bytes."""
    name, value = name.encode(), value.encode()
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path, authority):
    """The frame that begins a call on stream 1."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(_literal(name, value) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS, 1, block)


def message(data):
    """A message as it is in DATA frames."""
    return b"\x00" + struct.pack(">I", len(data)) + data


def _frames(connection):
    """The frames that come, until the other side ends."""
    held = b""
    while True:
        while len(held) >= 9:
            size = int.from_bytes(held[:3], "big")
            if len(held) < 9 + size:
                break
            yield held[3], held[4], held[9 : 9 + size]
            held = held[9 + size :]
        more = connection.recv(65536)
        if not more:
            return
        held += more


def unary(address, path, data=b"", timeout_s=10):
    """The bytes of the message that answers; none where the call ends with an error."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(
            PREFACE
            + frame(SETTINGS, 0, 0)
            + call_headers(path, address)
            + frame(DATA, END_STREAM, 1, message(data))
        )
        answer = b""
        for kind, flags, payload in _frames(connection):
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                connection.sendall(frame(PING, ACK, 0, payload))
            elif kind == DATA:
                answer += payload
            elif kind in (RST_STREAM, GOAWAY):
                raise RunError(f"{path}: the call was cut: {payload!r}")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                return answer[5:]
    raise RunError(f"{path}: the connection ended")


def is_serving(address):
    """What grpc.health.v1 says of a server."""
    return unary(address, "/grpc.health.v1.Health/Check") == b"\x08\x01"
