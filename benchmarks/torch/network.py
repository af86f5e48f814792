"""Where the ranks of a benchmark are: loopback, or hosts on shaped links.

Both are network namespaces of their own, so that their byte counters show this
job's bytes and nothing else. The shaped links are those of benchmarks/netns.cc:
a veth pair per host to one bridge, both ends behind a token bucket.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

_CLONE_NEWNET = 0x40000000


def _libc_call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"network namespaces need root: {name}: "
                             f"{os.strerror(error)}")


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _new_namespace() -> int:
    home = _own_namespace()
    try:
        _libc_call("unshare", _CLONE_NEWNET)
        made = _own_namespace()
        _libc_call("setns", home, _CLONE_NEWNET)
        return made
    finally:
        os.close(home)


def _shaper(interface: str, gbps: float) -> str:
    # Room for two of the 64 KiB units in which TCP hands packets over, or half
    # a millisecond; and at most 10 ms of queue, as a switch port has.
    burst_bytes = max(131072, round(gbps * 1e9 / 8 * 0.0005))
    return (f"tc qdisc add dev {interface} root tbf rate "
            f"{round(gbps * 1e6)}kbit burst {burst_bytes} latency 10ms")


class Network:
    """Namespaces for `ranks` processes; a context manager.

    The kernel removes them when this process and those inside have ended,
    however they end. Can be pickled for processes that live while it does.
    """

    def __init__(self, ranks: int, gbps: float | None = None) -> None:
        """`gbps`: of each link, in each direction; None: all on one loopback.

        Without the right to make namespaces, loopback is this host's own and
        `shared` is true: its counters show others' bytes too. Shaped links then
        raise OSError.
        """
        self.ranks = ranks
        self.gbps = gbps
        self.shared = False
        self.interface = "lo" if gbps is None else "eth0"
        self.address = "127.0.0.1" if gbps is None else "10.77.0.1"
        self._descriptors: list[int] = []
        self.paths: list[str] = []
        try:
            self._make_loopback() if gbps is None else self._make_links(gbps)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_descriptors": []}

    @property
    def name(self) -> str:
        return "loopback" if self.gbps is None else f"{self.gbps:g} Gb/s"

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def enter(self, rank: int) -> None:
        """Moves the calling thread, and threads it starts later, to `rank`'s
        host, and tells the libraries which interface to use."""
        if not self.shared:
            descriptor = os.open(self.paths[rank], os.O_RDONLY | os.O_CLOEXEC)
            try:
                _libc_call("setns", descriptor, _CLONE_NEWNET)
            finally:
                os.close(descriptor)
        os.environ["GLOO_SOCKET_IFNAME"] = self.interface
        os.environ["GRADIENTFLOW_SOCKET_IFNAME"] = self.interface
        if self.gbps is not None:
            # Namespaces of one machine, which stand for machines.
            os.environ["GRADIENTFLOW_HOST_ID"] = f"host{rank}"

    def sent_bytes(self) -> int:
        """What the interface of the calling process's host has sent, with all
        headers; on loopback by all ranks together."""
        with open("/proc/thread-self/net/dev", encoding="ascii") as lines:
            for line in lines:
                name, _, counters = line.partition(":")
                if name.strip() == self.interface:
                    return int(counters.split()[8])
        raise RuntimeError(f"no interface {self.interface} here")

    def _add(self) -> str:
        descriptor = _new_namespace()
        self._descriptors.append(descriptor)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _make_loopback(self) -> None:
        try:
            path = self._add()
        except OSError:
            self.shared = True
            return
        _run_in(path, "ip link set lo up")
        self.paths = [path] * self.ranks

    def _make_links(self, gbps: float) -> None:
        bridge = self._add()
        _run_in(bridge, "ip link add bridge0 type bridge")
        _run_in(bridge, "ip link set bridge0 up")
        for host in range(self.ranks):
            path, port = self._add(), f"port{host}"
            self.paths.append(path)
            _run_in(bridge, f"ip link add {port} type veth peer name eth0 "
                            f"netns {path}")
            _run_in(bridge, f"ip link set {port} master bridge0 up")
            _run_in(bridge, _shaper(port, gbps))
            _run_in(path, "ip link set lo up")
            _run_in(path, f"ip address add 10.77.0.{host + 1}/24 dev eth0")
            _run_in(path, "ip link set eth0 up")
            _run_in(path, _shaper("eth0", gbps))


def _run_in(path: str, command: str) -> None:
    try:
        done = subprocess.run(["nsenter", f"--net={path}", *command.split()],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OSError("shaped links: nsenter not found: install util-linux")
    if done.returncode != 0:
        raise OSError(f"shaped links: \"{command}\" failed (is iproute2 "
                      f"installed?): {done.stderr.strip()}")
