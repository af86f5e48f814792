#!/usr/bin/env python3
"""gradientflow_probe on links of known speed, next to iperf3 and a bare ping-pong.

  probe.py                              links of 0.2, 1, 5 and 10 Gb/s
  probe.py --gbps 1 --rounds 9

Two hosts, one rank each. The three take turns. Latency is half of a round trip of 8
bytes. Bandwidth is that of one connection in one direction: payload, as iperf3
counts it. What a line of so many Gb/s carries at most is its payload share: 1448
bytes of each 1514, since the token buckets count all headers. "both ways" is what the
planner takes for a job of two ranks: the rate of the fastest size of messages in both
directions at once, on two connections.
"""

import json
import pathlib
import subprocess
import tempfile

from lib import report
from lib.network import Network, congestion_option
from lib.ranks import RankError, program, run_commands, start_program

PAYLOAD_SHARE = 1448 / 1514
JOB_STREAMS = 2
PORT = 29777
BARE_SECONDS = 0.4


def probe(network: Network, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "probe.json"
        command = [program("../gradientflow/probe/gradientflow_probe"),
                   "--seconds", str(seconds), "--no-load", "--out", str(file)]
        run_commands(network, "gradientflow_probe", [command] * network.ranks)
        measured = json.loads(file.read_text())
    try:
        pair, = measured["pairs"]
        idle = pair["idle"]
        one_way = {entry["streams"]: entry["bytes_per_second"]["p50"]
                   for entry in idle["bandwidth"]
                   if entry["direction"] == "one_way" and
                   entry["message_bytes"] == 2 << 20}
        both_ways = [entry["bytes_per_second"]["p50"]
                     for entry in idle["bandwidth"]
                     if entry["direction"] == "both_ways" and
                     entry["streams"] == JOB_STREAMS]
        return {"probe_us": 1e6 * (idle["latency_seconds"]["p50"] +
                                   idle["message_seconds"]["p50"]),
                "probe_gbps": 8e-9 * one_way[1],
                "both_ways_gbps": 8e-9 * max(both_ways)}
    except (KeyError, ValueError) as error:
        raise RankError(f"gradientflow_probe did not say {error}") from error


def bare(network: Network) -> dict[str, float]:
    ping = program("collectives/bare_ping")
    _, text = run_commands(network, "bare_ping", [
        [ping, "listen", str(PORT), str(BARE_SECONDS)],
        [ping, network.address, str(PORT), str(BARE_SECONDS)]])
    return {"bare_us": float(text.split()[0])}


def iperf(network: Network, seconds: float) -> dict[str, float]:
    port = str(PORT + 1)
    server = start_program(
        network, 0, ["iperf3", "-s", "-1", "--forceflush", "-p", port], {},
        stdout=-1)
    try:
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                raise RankError("iperf3 did not start")
        client = start_program(
            network, 1, ["iperf3", "-c", network.address, "-p", port,
                         "-O", "1", "-t", str(max(1, round(seconds))), "--json"],
            {}, stdout=-1)
        text = client.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired as error:
        raise RankError("iperf3 was not done in time") from error
    finally:
        server.kill()
        server.wait()
    said = json.loads(text)
    try:
        return {"iperf_gbps":
                1e-9 * said["end"]["sum_received"]["bits_per_second"]}
    except KeyError as error:  # It says why it has no such sum.
        reason = said.get("error", f"it did not say {error}")
        raise RankError(f"iperf3: {reason}") from error


def measure(args: report.Args, gbps: float) -> report.Row:
    rounds = []
    with Network(2, gbps, congestion=args.congestion) as network:
        for _ in range(args.rounds):
            rounds.append({**probe(network, args.seconds), **bare(network),
                           **iperf(network, args.seconds)})
    row = {key: report.median(seen[key] for seen in rounds) for key in rounds[0]}
    return {"benchmark": "probe", "gbps": gbps,
            "congestion": network.congestion, "rounds": args.rounds,
            "line_gbps": gbps * PAYLOAD_SHARE, **row,
            "latency_ratio": row["probe_us"] / row["bare_us"],
            "bandwidth_ratio": row["probe_gbps"] / row["iperf_gbps"],
            "shape_ratio": row["probe_gbps"] / (gbps * PAYLOAD_SHARE),
            "both_ways_ratio": row["both_ways_gbps"] / (gbps * PAYLOAD_SHARE)}


def options(add: report.Add) -> None:
    add("--gbps", type=report.list_of(float), default=[0.2, 1.0, 5.0, 10.0])
    congestion_option(add)
    add("--rounds", type=report.at_least(1), default=5)
    add("--seconds", type=float, default=0.6, help="of each measurement")


@report.program(options)
def main(args: report.Args) -> None:
    rows = [measure(args, gbps) for gbps in args.gbps]
    print(report.table(rows, {
        "line": "{gbps:g} Gb/s, {congestion}", "probe us": "{probe_us:.1f}",
        "bare us": "{bare_us:.1f}", "ratio": "{latency_ratio:.3f}",
        "probe Gb/s": "{probe_gbps:.4f}", "iperf3": "{iperf_gbps:.4f}",
        "ratio ": "{bandwidth_ratio:.3f}", "payload at most": "{line_gbps:.4f}",
        "of it": "{shape_ratio:.3f}", "both ways": "{both_ways_gbps:.4f}",
        "of it ": "{both_ways_ratio:.3f}"}))
    report.append_json(args.json, rows)
