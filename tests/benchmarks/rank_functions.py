"""What lib_test.py runs on ranks, which import this module."""

import os
import socket
import time


def seconds_to_receive(rank, size):
    """How long rank 0 needs for rank 1's bytes: from its word to begin, so that
    a late receiver does not make the link look faster than it is."""
    if rank == 1:
        for _ in range(200):
            try:
                stream = socket.create_connection(("10.77.0.1", 5201))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        stream.recv(1)
        stream.sendall(bytes(size))
        return stream.recv(1)
    with socket.create_server(("10.77.0.1", 5201)) as listener:
        stream, _ = listener.accept()
    begin = time.perf_counter()
    stream.sendall(b"\0")
    seen = 0
    while seen < size:
        seen += len(stream.recv(1 << 16))
    return time.perf_counter() - begin


def congestion(rank, address):
    """The congestion control of both ends of a connection from rank 1 to 0."""
    if rank == 1:
        for _ in range(200):
            try:
                stream = socket.create_connection((address, 5201))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
    else:
        with socket.create_server((address, 5201)) as listener:
            stream, _ = listener.accept()
    with stream:
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
