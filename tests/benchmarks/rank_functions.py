"""What lib_test.py runs on ranks, which import this module."""

import os
import socket
import time


def _connection(rank, address):
    """One end of a connection from rank 1 to rank 0."""
    if rank == 0:
        with socket.create_server((address, 5201)) as listener:
            return listener.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection((address, 5201))
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise TimeoutError(f"nobody listens at {address}")


def seconds_to_receive(rank, size):
    """How long rank 0 needs for rank 1's bytes: from its word to begin, so that
    a late receiver does not make the link look faster than it is."""
    with _connection(rank, "10.77.0.1") as stream:
        if rank == 1:
            stream.recv(1)
            stream.sendall(bytes(size))
            return stream.recv(1)
        begin = time.perf_counter()
        stream.sendall(b"\0")
        seen = 0
        while seen < size:
            seen += len(stream.recv(1 << 16))
        return time.perf_counter() - begin


def congestion(rank, address):
    """The congestion control of both ends of a connection from rank 1 to 0."""
    with _connection(rank, address) as stream:
        name = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def interfaces(rank):
    return [name for _, name in socket.if_nameindex()]


def raise_on_one(rank):
    if rank == 1:
        raise ValueError("as told")
    time.sleep(60)


def die_on_one(rank):
    if rank == 1:
        os._exit(7)
    time.sleep(60)
