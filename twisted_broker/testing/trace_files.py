"""A trace as a file of packets, for Wireshark and its like.

Owns `write_pcap`: frames as segments of TCP between the addresses that they had. Handshakes are
made up, the rest is as it went.

Source: the pcap format (draft-ietf-opsawg-pcap), LINKTYPE_RAW. Not here: the frames (`trace.py`).
"""

from __future__ import annotations

import ipaddress
from struct import Struct
from typing import IO

from twisted_broker.testing.trace import Frame, Trace

_FILE, _PACKET = Struct("<IHHiIII"), Struct("<IIII")
_IP, _TCP = Struct(">BBHHHBBH4s4s"), Struct(">HHIIBBHHH")
_LENGTH = Struct(">i")
_MAGIC, _RAW_IP, _TCP_NUMBER = 0xA1B2C3D4, 101, 6
_SYN, _ACK, _PUSH = 2, 16, 8
_MOST_PAYLOAD = 60_000


def write_pcap(file: IO[bytes], trace: Trace) -> None:
    """All frames that the trace has."""
    file.write(_FILE.pack(_MAGIC, 2, 4, 0, 0, 65535, _RAW_IP))
    streams: dict[int, _Stream] = {}
    for frame in trace.frames:
        stream = streams.get(frame.connection)
        if stream is None:
            peer = trace.peers[frame.connection]
            stream = streams[frame.connection] = _Stream(file, peer.client, peer.served)
            stream.begin(frame.at)
        stream.add(frame)


class _Stream:
    """A connection. `next`: the number of the next byte, of the client and of the broker."""

    def __init__(self, file: IO[bytes], client: tuple[str, int], served: tuple[str, int]) -> None:
        self._file = file
        self._ends = (_end(client), _end(served))
        self._next = [1, 1]

    def begin(self, at: float) -> None:
        self._packet(at, 0, _SYN, b"", 0, 0)
        self._packet(at, 1, _SYN | _ACK, b"", 0, 1)
        self._packet(at, 0, _ACK, b"", 1, 1)

    def add(self, frame: Frame) -> None:
        side = 0 if frame.is_request else 1
        data = _LENGTH.pack(len(frame.content)) + frame.content
        for start in range(0, len(data), _MOST_PAYLOAD):
            part = data[start : start + _MOST_PAYLOAD]
            self._packet(frame.at, side, _PUSH | _ACK, part, self._next[side], self._next[1 - side])
            self._next[side] += len(part)

    def _packet(
        self, at: float, side: int, flags: int, data: bytes, number: int, expected: int
    ) -> None:
        (source, source_port), (target, target_port) = self._ends[side], self._ends[1 - side]
        tcp = _TCP.pack(
            source_port,
            target_port,
            number & 0xFFFFFFFF,
            expected & 0xFFFFFFFF,
            5 << 4,
            flags,
            65535,
            0,
            0,
        )
        size = _IP.size + len(tcp) + len(data)
        ip = _IP.pack(0x45, 0, size, 0, 0, 64, _TCP_NUMBER, 0, source, target)
        self._file.write(_PACKET.pack(int(at), int(at % 1 * 1e6), size, size))
        self._file.write(ip + tcp + data)


def _end(address: tuple[str, int]) -> tuple[bytes, int]:
    """An IPv6 address has no place in these headers: it becomes 0.0.0.0."""
    host = ipaddress.ip_address(address[0])
    return (host.packed if host.version == 4 else bytes(4), address[1])
