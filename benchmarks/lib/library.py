"""The library for Python: its C API, as cffi reads it from the headers."""

import pathlib
import re
from typing import Any

import cffi
from lib.ranks import program

_HEADERS = pathlib.Path(__file__).resolve().parents[2] / "integrations/c"
_ffi = cffi.FFI()
# Declarations only: neither the preprocessor's lines nor linkage.
for _part in ("base", "comm", "session"):
    _text = (_HEADERS / f"gradientflow_{_part}.h").read_text(encoding="utf-8")
    _ffi.cdef(re.sub(r'^#.*$|^extern "C" \{$|^\}$|\bGF_API\b', "", _text,
                     flags=re.MULTILINE))
_gf = _ffi.dlopen(program("../integrations/c/libgradientflow.so"))


def _must(status: int) -> None:
    if status != _gf.GF_OK:
        raise RuntimeError(_ffi.string(_gf.gf_last_error()).decode())


def _made(kind: str, make: Any, *arguments: Any) -> Any:
    """Returns the handle that `make` writes to its last argument."""
    out = _ffi.new(f"{kind}**")
    _must(make(*arguments, out))
    return out[0]


class Communicator:
    """This rank's part in the job that the environment describes, with further
    `settings` by name. Failures are RuntimeErrors."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.options = _made("gf_options", _gf.gf_options_from_env)
        for name, text in settings.items():
            _must(_gf.gf_options_set(self.options, name.encode(), text.encode()))
        self.handle = _made("gf_comm", _gf.gf_comm_open, self.options)
        self.rank = _gf.gf_comm_rank(self.handle)
        self.size = _gf.gf_comm_size(self.handle)

    def close(self) -> None:
        _gf.gf_comm_close(self.handle)
        _gf.gf_options_free(self.options)

    def sum(self, data: Any) -> None:
        """Sums a writable buffer of float32 over the ranks, in place."""
        floats = _ffi.from_buffer("float[]", data, require_writable=True)
        _must(_gf.gf_comm_allreduce(self.handle, floats, len(floats),
                                    _gf.GF_FLOAT32, _gf.GF_SUM))

    def expect_same(self, mine: int) -> None:
        """Raises RuntimeError unless all ranks pass the same 32 bits."""
        seen = _ffi.new("int64_t[]", self.size)
        _must(_gf.gf_comm_allgather(self.handle, _ffi.new("int64_t*", mine),
                                    seen, 1, _gf.GF_INT64))
        if set(seen) != {mine}:
            raise RuntimeError(f"ranks have other bits: {list(seen)}")


class Session:
    """The gradients of `weights`, arrays of float32 in forward order, which
    optimizer_step() changes. `gradients` are their bytes."""

    def __init__(self, comm: Communicator, weights: list[Any]) -> None:
        self._tensors = _ffi.new("gf_tensor[]", len(weights))
        self._weights = [_ffi.from_buffer("float[]", one) for one in weights]
        for tensor, weight in zip(self._tensors, self._weights):
            _gf.gf_tensor_init(_ffi.addressof(tensor))
            tensor.elements = len(weight)
        self._handle = _made("gf_session", _gf.gf_session_open, comm.handle, 0,
                             comm.options, self._tensors, len(weights))
        self.gradients = [self._gradient(i) for i in range(len(weights))]

    def _gradient(self, tensor: int) -> memoryview:
        data, size = _ffi.new("void**"), _ffi.new("size_t*")
        _must(_gf.gf_session_gradient(self._handle, tensor, data, size))
        return memoryview(_ffi.buffer(data[0], size[0])).cast("B")

    def ready(self, tensor: int) -> None:
        _must(_gf.gf_session_ready(self._handle, tensor))

    def finish_step(self) -> int:
        """Returns the bytes that this rank has sent."""
        stats = _ffi.new("gf_step_stats*")
        _gf.gf_step_stats_init(stats)
        _must(_gf.gf_session_finish_step(self._handle, stats))
        return stats.bytes_sent

    def optimizer_step(self, lr: float, momentum: float) -> None:
        sgd = _ffi.new("gf_optimizer*")
        _gf.gf_optimizer_init(sgd)
        sgd.lr, sgd.momentum = lr, momentum
        _must(_gf.gf_session_optimizer_step(
            self._handle, sgd, _ffi.new("float*[]", self._weights),
            len(self._weights)))

    def close(self) -> None:
        _gf.gf_session_close(self._handle)
