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
import subprocess
from collections.abc import Iterator

from lib import report
from lib.network import Network
from lib.ranks import program

_FIELDS = [f"{way}_{what}" for way in ("plain", "zero")
           for what in ("seconds", "sender_seconds", "receiver_seconds")]


def inside(path: str) -> list[str]:
    return ["nsenter", f"--net={path}"] if path else []


@contextlib.contextmanager
def receiver(path: str, port: int) -> Iterator[None]:
    process = subprocess.Popen([*inside(path), program("zerocopy/line"),
                                "receive", str(port)],
                               stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "listening\n":
            raise OSError(f"nobody can listen at port {port}")
        yield
    finally:
        process.kill()
        process.communicate()


def send(args: report.Args, line: str, path: str, to: str) -> list[report.Row]:
    done = subprocess.run(
        [*inside(path), program("zerocopy/line"), "send", to,
         str(args.megabytes), str(args.rounds), *map(str, args.sizes)],
        capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or "the sender failed")
    rows = []
    for text in done.stdout.splitlines():
        size, *numbers, copied = text.split()
        row = dict(zip(_FIELDS, map(float, numbers)))
        gigabits = args.megabytes * 2**20 * 8e-9
        rows.append({
            "benchmark": "zerocopy", "line": line, "write_bytes": int(size),
            "megabytes": args.megabytes, **row, "copied": float(copied),
            "plain_gbps": gigabits / row["plain_seconds"],
            "zero_gbps": gigabits / row["zero_seconds"],
            "ratio": row["plain_seconds"] / row["zero_seconds"],
            "sender_ratio": row["plain_sender_seconds"] /
                            max(row["zero_sender_seconds"], 1e-9)})
    return rows


def on_this_host(args: report.Args) -> list[report.Row]:
    with receiver("", args.port):
        rows = send(args, "loopback", "", f"127.0.0.1:{args.port}")
    try:
        # The kernel's shaper does not hold this rate up.
        network = Network(2, args.gbps)
    except OSError as error:
        print(f"SKIPPED: veth pairs: {error}")
        return rows
    with network, receiver(network.paths[0], args.port):
        return rows + send(args, f"veth, {args.gbps:g} Gb/s", network.paths[1],
                           f"10.77.0.1:{args.port}")


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


@report.program(options)
def main(args: report.Args) -> None:
    if args.receive:
        with contextlib.suppress(KeyboardInterrupt):
            subprocess.run([program("zerocopy/line"), "receive",
                            str(args.port)])
        return
    rows = (send(args, "network", "", f"{args.to}:{args.port}") if args.to
            else on_this_host(args))
    print(report.table(rows, {
        "line": "{line}", "write bytes": "{write_bytes}",
        "plain Gb/s": "{plain_gbps:.1f}", "zero-copy": "{zero_gbps:.1f}",
        "ratio": "{ratio:.2f}", "sender's CPU ratio": "{sender_ratio:.2f}",
        "copied": "{copied:.0%}"}))
    report.append_json(args.json, rows)
