"""The shared library used from Python with ctypes only, by two processes."""

import ctypes
import os
import sys
import tempfile

RANKS = 2
FLOAT32, SUM = 0, 0


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("elements", ctypes.c_size_t),
        ("always_dense", ctypes.c_int32),
    ]


class StepStats(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("buckets", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("selected_chunks", ctypes.c_uint64),
        ("chunks", ctypes.c_uint64),
        ("backward_seconds", ctypes.c_double),
        ("exposed_seconds", ctypes.c_double),
        ("hidden_seconds", ctypes.c_double),
        ("nonfinite", ctypes.c_int32),
        ("gradient_scale", ctypes.c_float),
        ("bucket_bytes", ctypes.c_uint64),
        ("rdma_data_writes", ctypes.c_uint64),
        ("rdma_control_writes", ctypes.c_uint64),
        ("rdma_bytes", ctypes.c_uint64),
        ("rdma_retries", ctypes.c_int64),
    ]


def load(path):
    lib = ctypes.CDLL(path)
    lib.gf_last_error.restype = ctypes.c_char_p

    def checked(status, function, _args):
        if status != 0:
            raise RuntimeError(
                f"{function.__name__}: {lib.gf_last_error().decode()}")
        return status

    for name in ("gf_options_default", "gf_options_set", "gf_comm_open", "gf_session_open",
                 "gf_session_gradient", "gf_session_ready", "gf_session_finish_step", "gf_comm_allreduce"):
        getattr(lib, name).errcheck = checked
    for name in ("gf_options_free", "gf_session_close", "gf_comm_close"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
        getattr(lib, name).restype = None
    lib.gf_options_set.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    lib.gf_comm_open.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    lib.gf_session_open.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p,
        ctypes.POINTER(Tensor), ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p)]
    lib.gf_session_gradient.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_size_t)]
    lib.gf_session_ready.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.gf_session_finish_step.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(StepStats)]
    lib.gf_comm_allreduce.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32,
        ctypes.c_int32]
    return lib


def open_job(lib, rank, meeting_place):
    options = ctypes.c_void_p()
    lib.gf_options_default(ctypes.byref(options))
    for name, value in (("rank", rank), ("size", RANKS),
                        ("rendezvous", meeting_place),
                        ("arena_bytes", "64MB")):
        lib.gf_options_set(options, name.encode(), str(value).encode())
    tensors = (Tensor * 2)()
    for i, elements in enumerate((1000, 30)):
        lib.gf_tensor_init(ctypes.byref(tensors[i]))
        assert tensors[i].struct_bytes == ctypes.sizeof(Tensor)
        tensors[i].elements = elements
    comm, session = ctypes.c_void_p(), ctypes.c_void_p()
    lib.gf_comm_open(options, ctypes.byref(comm))
    lib.gf_session_open(comm, 0, options, tensors, 2, ctypes.byref(session))
    lib.gf_options_free(options)
    return comm, session


def run_rank(lib, rank, meeting_place):
    comm, session = open_job(lib, rank, meeting_place)
    data = (ctypes.c_float * 5)(*[rank + i for i in range(5)])
    lib.gf_comm_allreduce(comm, data, 5, FLOAT32, SUM)
    assert list(data) == [1.0 + 2 * i for i in range(5)], list(data)

    gradients = []
    for i, elements in enumerate((1000, 30)):
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        lib.gf_session_gradient(
            session, i, ctypes.byref(address), ctypes.byref(size))
        assert size.value == 4 * elements
        gradients.append(
            (ctypes.c_float * elements).from_address(address.value))
    stats = StepStats()
    lib.gf_step_stats_init(ctypes.byref(stats))
    assert stats.struct_bytes == ctypes.sizeof(StepStats)
    for step in range(3):
        for i in (1, 0):
            for k in range(len(gradients[i])):
                gradients[i][k] = (rank + 1) * (step + 1) + k
            lib.gf_session_ready(session, i)
        lib.gf_session_finish_step(session, ctypes.byref(stats))
        assert stats.step == step and stats.nonfinite == 0
        assert (stats.rdma_bytes, stats.rdma_retries) == (0, -1)
        for gradient in gradients:
            expected = [1.5 * (step + 1) + k for k in range(len(gradient))]
            assert list(gradient) == expected

    try:
        lib.gf_comm_allreduce(comm, None, 5, FLOAT32, SUM)
        raise AssertionError("a null buffer was taken")
    except RuntimeError as error:
        assert "null" in str(error), error
    lib.gf_session_close(session)
    lib.gf_comm_close(comm)


def main():
    lib = load(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                try:
                    run_rank(lib, rank, f"file://{folder}")
                    os._exit(0)
                except BaseException as error:  # The parent sees the status.
                    print(f"rank {rank}: {error!r}", file=sys.stderr)
                    sys.stderr.flush()
                    os._exit(1)
            children.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
    assert statuses == [0] * RANKS, statuses


if __name__ == "__main__":
    main()
