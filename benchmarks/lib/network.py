"""Where the ranks of a benchmark run: on one host, or on hosts with slow links.

With the right to make network namespaces (root), every host has its own, so
that byte counters show only the traffic of this job. Hosts on links are one
namespace each, joined by veth pairs to one bridge; both ends of every pair send
through a token bucket (tbf). Hosts may have several such networks. Every
connection in a namespace (by IPv4) has the same congestion control, whatever this
host's is, since short exchanges can take three times as long with one as with
another.

Without that right, two ranks on this host's loopback stand for two hosts: the
kernel paces every connection of a rank program to the link's rate
(SO_MAX_PACING_RATE, see rank_main.cc), and this host's congestion control holds.
"""

from __future__ import annotations

import pathlib
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

_PORT = 29531  # The port is free in a namespace of our own.
_USUAL_CONGESTION = "cubic"  # That of Linux.


def congestion_option(add: Callable[..., Any]) -> None:
    """Adds the option whose value is Network's argument of that name."""
    add("--congestion", metavar="NAME",
        help=f"TCP's congestion control in namespaces, {_USUAL_CONGESTION} by "
        "default; what there is: sysctl net.ipv4.tcp_available_congestion_control")


def _congestion_of_this_host() -> str:
    return pathlib.Path(
        "/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def _new_namespace() -> subprocess.Popen[str]:
    """Starts a process that holds a network namespace until its input ends, as
    it does when this process ends."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready && exec cat"], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = holder.stdout.readline()
    if said != "ready\n":
        raise PermissionError(f"network namespaces need root: {said.strip()}")
    return holder


def _exact_unit(gbps: float, hosts: int) -> int:
    """The units in which TCP hands over packets on exact links: what the line
    carries in about 64 us, or in 128 us if it is fast or there are many hosts to
    share the cores; but at least 4 KiB and at most Linux's usual 64 KiB."""
    microseconds = 128 if gbps > 1 or hosts > 8 else 64
    return min(65536, max(4096, round(gbps * 125 * microseconds)))


def _shaper(interface: str, gbps: float, unit: int, burst_bytes: int) -> list[str]:
    # The queue is at most 10 ms long, like that of a switch port.
    return [f"ip link set {interface} gso_max_size {unit}",
            f"tc qdisc add dev {interface} root tbf rate "
            f"{round(gbps * 1e6)}kbit burst {burst_bytes} latency 10ms"]


class Network:
    """A place for `ranks` processes; a context manager.

    The namespaces go when this process and those inside have ended, however
    they end. An object can be pickled for processes that live no longer than
    the object.
    """

    def __init__(self, ranks: int, gbps: float | None = None, *,
                 per_host: int = 1, more_gbps: Sequence[float] = (),
                 hosts_gbps: Sequence[float] = (),
                 pacing: bool = False, congestion: str | None = None,
                 exact: bool = False) -> None:
        """`gbps` is the rate of each link in each direction; None puts all
        ranks on one loopback interface. A host has `per_host` ranks.
        `more_gbps` are the rates of further networks: eth1, eth2 and so on.
        `hosts_gbps`, if any, are the rates of each host's link of the first
        network, instead of `gbps`.
        `congestion` is TCP's congestion control, Linux's usual one by default.

        A token bucket lets what has been saved up pass at once: 128 KiB, or half a
        millisecond of a fast link. So a link that has rested gives a short message
        more than its rate. If `exact`, it saves at most 1.25 of the units that
        _exact_unit() returns, and no message comes earlier than that; but a byte
        costs more processor time.

        Without the right to make namespaces, loopback is this host's own and
        `shared` is true: its counters then include other traffic. Links are
        paced if `pacing` allows it, which only rank programs obey; otherwise
        OSError is raised, as it is if the kernel lacks `congestion`. Raises
        ValueError for an impossible rate or number of ranks.
        """
        hosts = -(-ranks // per_host)
        lines = [] if gbps is None else [
            hosts_gbps or [gbps] * hosts, *([rate] * hosts for rate in more_gbps)]
        rates = sorted({rate for line in lines for rate in line})
        if not 1 <= ranks <= 250 or not all(0.001 <= r <= 1000 for r in rates):
            raise ValueError(f"expected 1 to 250 ranks and 0.001 to 1000 Gb/s, "
                             f"got {ranks} and {rates}")
        if hosts_gbps and (gbps is None or len(hosts_gbps) != hosts):
            raise ValueError(f"expected links, and the rates of {hosts} hosts' "
                             f"links, got {gbps} and {len(hosts_gbps)} rates")
        self.ranks = ranks
        self.gbps = gbps
        self.per_host = per_host
        self.networks = len(lines)
        self.shared = False
        self.paced = False
        self.congestion = congestion or _USUAL_CONGESTION
        self.paths: list[str] = []
        self._holders: list[subprocess.Popen[str]] = []
        try:
            if gbps is None:
                self._make_loopback()
            else:
                self._make_links(lines, exact)
        except PermissionError:
            self.close()
            self.paced, self.shared = gbps is not None, True
            if self.paced and not pacing:
                raise
            if self.paced and (ranks != 2 or len(lines) > 1 or hosts_gbps):
                raise ValueError("paced links join 2 ranks by one network; "
                                 "namespaces, which take more, need root")
            self.congestion = _congestion_of_this_host()
            if congestion not in (None, self.congestion):
                raise
        except BaseException:
            self.close()
            raise
        loopback = gbps is None or self.paced
        self.interface = "lo" if loopback else "eth0"
        self.address = "127.0.0.1" if loopback else "10.77.0.1"
        self.port = _PORT
        if self.shared:  # Any port that is free at this moment.
            with socket.socket() as probe:
                probe.bind((self.address, 0))
                self.port = probe.getsockname()[1]

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_holders": []}

    @property
    def name(self) -> str:
        return "loopback" if self.gbps is None else f"{self.gbps:g} Gb/s"

    @property
    def how(self) -> str:
        """Describes, for people, what makes the links."""
        if self.gbps is None:
            return f"this machine as it is, TCP with {self.congestion}"
        return (f"TCP's own pacing (SO_MAX_PACING_RATE), {self.congestion}"
                if self.paced else "network namespaces joined by token buckets "
                f"(tbf), {self.congestion}")

    def close(self) -> None:
        for holder in self._holders:
            holder.communicate()
        self._holders, self.paths = [], []

    @property
    def bytes_per_second(self) -> int:
        """The rate to which a rank program must pace its connections; 0: none."""
        return round(self.gbps * 1.25e8) if self.paced and self.gbps else 0

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that tell the libraries in `rank`'s process their
        place."""
        told = {"GLOO_SOCKET_IFNAME": self.interface,
                "GRADIENTFLOW_SOCKET_IFNAME":
                    "eth" if self.networks > 1 else self.interface}
        if self.gbps is not None:  # Ranks stand for machines.
            told["GRADIENTFLOW_HOST_ID"] = f"host{rank // self.per_host}"
        if self.paced:
            told["GRADIENTFLOW_CONNECTIONS"] = "1"  # The whole rate.
        return told

    def on_host(self, rank: int, command: Sequence[str]) -> list[str]:
        """Returns a command that runs `command` on `rank`'s host."""
        enter = [] if self.shared else ["nsenter", f"--net={self.paths[rank]}"]
        return [*enter, *command]

    def sent_bytes(self) -> int:
        """The bytes that the interface of the calling process's host has sent,
        with all headers; on loopback the sum over all ranks."""
        with open("/proc/thread-self/net/dev", encoding="ascii") as file:
            counters = dict(line.strip().split(":") for line in file
                            if ":" in line)
        return int(counters[self.interface].split()[8])

    def _add(self) -> str:
        self._holders.append(_new_namespace())
        return f"/proc/{self._holders[-1].pid}/ns/net"

    def _make_loopback(self) -> None:
        self.paths = [self._add()] * self.ranks
        _run_in(self.paths[0], "ip link set lo up",
                *_with_congestion(self.congestion))

    def _make_links(self, lines: Sequence[Sequence[float]], exact: bool
                    ) -> None:
        hosts = [self._add() for _ in lines[0]]
        self.paths = [path for path in hosts for _ in range(self.per_host)]
        for network, rates in enumerate(lines):
            bridge, name = self._add(), f"eth{network}"
            _run_in(bridge, "ip link add bridge0 up type bridge")
            for host, (path, gbps) in enumerate(zip(hosts, rates)):
                unit = _exact_unit(gbps, len(hosts)) if exact else 65536
                burst = (unit + unit // 4 if exact
                         else max(2 * unit, round(gbps * 1e9 / 8 * 0.0005)))
                port, address = f"port{host}", f"10.{77 + network}.0.{host + 1}"
                _run_in(bridge, f"ip link add {port} master bridge0 up "
                                f"type veth peer name {name} netns {path}",
                        *_shaper(port, gbps, unit, burst))
                _run_in(path, "ip link set lo up",
                        f"ip address add {address}/24 dev {name}",
                        f"ip link set {name} up", *_shaper(name, gbps, unit, burst))
        for path in hosts:
            _run_in(path, *_with_congestion(self.congestion))


def _with_congestion(name: str) -> list[str]:
    """Commands that give all connections over the routes of a namespace this
    congestion control. (Namespaces may set their sysctl to few of them.)"""
    return [f"ip -4 route show table {table} | while read -r route; do ip -4 "
            f"route change $route table {table} congctl {name}; done"
            for table in ("main", "local")]


def _run_in(path: str, *commands: str) -> None:
    # With -x an error's text begins with the command.
    done = subprocess.run(["nsenter", f"--net={path}", "sh", "-exc",
                           "\n".join(commands)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError("slow links: a command failed (is iproute2 installed?): "
                      f"{done.stderr.strip()}")
