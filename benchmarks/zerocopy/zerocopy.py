#!/usr/bin/env python3
"""Plain writes next to writes with MSG_ZEROCOPY, over one TCP connection.

  zerocopy.py                         this host's loopback, and, as root, two
                                      network namespaces with a veth pair between
  zerocopy.py --receive               on one host of your network, and
  zerocopy.py --to 10.0.0.1           on another: your line

Both ways take turns. A ratio is plain over zero-copy, so above 1 zero-copy is
better: of the time in which the bytes have arrived and the sender has its memory
back, and of the sender's processor time. "copied" is the share of the writes that
the kernel copied after all, as it must where the bytes stay on the host, and
where the network card cannot gather them.
"""

import contextlib
import errno
import select
import socket
import struct
import sys
import time

from lib import report
from lib.network import Network, congestion_option
from lib.ranks import START_SECONDS, run_functions

# From the kernel's headers, since Python has no names for them.
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
EXTENDED_ERROR = struct.Struct("IBBBBII")  # errno, origin, -, code, -, from, to
ORIGIN_ZEROCOPY, CODE_COPIED = 5, 1
LENGTH, SECONDS = struct.Struct("<Q"), struct.Struct("<d")
RECEIVE_BYTES = 256 << 10


def receive(port: int, connections: int) -> None:
    """Takes the batches of one connection after another. Answers each with the
    processor time that it took."""
    memory = memoryview(bytearray(RECEIVE_BYTES))
    with socket.create_server(("", port)) as listener:
        for _ in range(connections):
            connection, _ = listener.accept()
            with connection:
                take_batches(connection, memory)


def take_batches(connection: socket.socket, memory: memoryview) -> None:
    while length := connection.recv(LENGTH.size, socket.MSG_WAITALL):
        left, = LENGTH.unpack(length)
        used = time.process_time()
        while left > 0:
            got = connection.recv_into(memory[:left])
            if got == 0:
                raise ConnectionError("the sender is gone")
            left -= got
        connection.sendall(SECONDS.pack(time.process_time() - used))


def connect(to: str, port: int) -> socket.socket:
    """Connects, once the receiver listens."""
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection((to, port))
        except ConnectionRefusedError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)


class Sender:
    """One connection, over which a region of memory is sent in batches."""

    def __init__(self, connection: socket.socket, pool_bytes: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        self._connection = connection
        self._errors = select.poll()
        self._errors.register(connection, 0)  # Errors are always looked for.
        self._pool = memoryview(bytearray(b"\1") * pool_bytes)
        self.lent = self.returned = self.copied = 0  # Writes.

    def batch(self, write_bytes: int, zero_copy: bool) -> list[float]:
        """Writes the region once. Returns the seconds until the receiver has it
        and the kernel has given the memory back, the processor time of this
        process, and the receiver's."""
        began, used = time.perf_counter(), time.process_time()
        self._connection.sendall(LENGTH.pack(len(self._pool)))
        write = self._lend if zero_copy else self._connection.sendall
        for at in range(0, len(self._pool), write_bytes):
            write(self._pool[at:at + write_bytes])
        while self.returned < self.lent:
            self._errors.poll()
            self._take_returned()
        answer = self._connection.recv(SECONDS.size, socket.MSG_WAITALL)
        if not answer:
            raise ConnectionError("the receiver is gone")
        return [time.perf_counter() - began, time.process_time() - used,
                *SECONDS.unpack(answer)]

    def _lend(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._connection.send(data, MSG_ZEROCOPY):]
                self.lent += 1
            except OSError as error:
                if error.errno != errno.ENOBUFS or self.returned == self.lent:
                    raise
                self._errors.poll()  # Too many writes are lent.
                self._take_returned()

    def _take_returned(self) -> None:
        """Reads from the error queue which writes' memory is free again."""
        with contextlib.suppress(BlockingIOError):
            while True:
                _, notes, _, _ = self._connection.recvmsg(
                    0, 128, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
                for _, _, note in notes:
                    _, origin, _, code, _, first, last = (
                        EXTENDED_ERROR.unpack_from(note))
                    if origin == ORIGIN_ZEROCOPY:
                        self.returned += last - first + 1
                        self.copied += (last - first + 1) * (code & CODE_COPIED)


def measure(args: report.Args, line: str, to: str,
            write_bytes: int) -> report.Row:
    """Plain and zero-copy batches in turn, after one of each to warm up."""
    with connect(to, args.port) as connection:
        sender = Sender(connection, args.megabytes << 20)
        rounds = [[*sender.batch(write_bytes, False),
                   *sender.batch(write_bytes, True)]
                  for _ in range(1 + args.rounds)][1:]
    row = dict(zip((f"{way}_{what}" for way in ("plain", "zero") for what in
                    ("seconds", "sender_seconds", "receiver_seconds")),
                   map(report.median, zip(*rounds))))
    gigabits = args.megabytes * 2**20 * 8e-9
    return {"benchmark": "zerocopy", "line": line, "write_bytes": write_bytes,
            "megabytes": args.megabytes, **row,
            "copied": sender.copied / sender.lent,
            "plain_gbps": gigabits / row["plain_seconds"],
            "zero_gbps": gigabits / row["zero_seconds"],
            "ratio": row["plain_seconds"] / row["zero_seconds"],
            "sender_ratio": row["plain_sender_seconds"] /
                            max(row["zero_sender_seconds"], 1e-9)}


def send(args: report.Args, line: str, to: str) -> list[report.Row]:
    return [measure(args, line, to, size) for size in args.sizes]


def rank_main(rank: int, args: report.Args, line: str,
              to: str) -> list[report.Row]:
    """Rank 0 receives what rank 1 sends."""
    if rank == 0:
        receive(args.port, len(args.sizes))
        return []
    return send(args, line, to)


def on_this_host(args: report.Args) -> list[report.Row]:
    rows = []
    # The kernel's shaper cannot keep up this rate.
    for line, gbps in ("loopback", None), (f"veth, {args.gbps:g} Gb/s", args.gbps):
        try:
            with Network(2, gbps, congestion=args.congestion) as network:
                found = run_functions(rank_main, network, args, line,
                                      network.address)[1]
                rows += [{**row, "congestion": network.congestion}
                         for row in found]
        except OSError as error:
            print(f"SKIPPED: {line}: {error}")
    return rows


def options(add: report.Add) -> None:
    add("--receive", action="store_true", help="until it is interrupted")
    add("--to", metavar="ADDRESS", help="of the host that receives")
    add("--port", type=report.at_least(1), default=29533)
    add("--sizes", type=report.list_of(report.at_least(1)),
        default=[64 << 10, 256 << 10, 1 << 20, 4 << 20],
        help="bytes per write")
    add("--megabytes", type=report.at_least(1), default=64, help="per batch")
    add("--rounds", type=report.at_least(1), default=15)
    add("--gbps", type=float, default=1000, help="of the veth pair's shaper")
    congestion_option(add)


@report.program(options)
def main(args: report.Args) -> None:
    if args.receive:
        with contextlib.suppress(KeyboardInterrupt):
            receive(args.port, sys.maxsize)
        return
    rows = send(args, "network", args.to) if args.to else on_this_host(args)
    print(report.table(rows, {
        "line": "{line}", "congestion control": "{congestion}",
        "write bytes": "{write_bytes}",
        "plain Gb/s": "{plain_gbps:.1f}", "zero-copy": "{zero_gbps:.1f}",
        "ratio": "{ratio:.2f}", "sender's CPU ratio": "{sender_ratio:.2f}",
        "copied": "{copied:.0%}"}))
    report.append_json(args.json, rows)
