"""Arrays on simulated GPUs, for scripts of jobs.

The GPUs are those of the stand-in for CUDA's driver (tests/device/driver.h). `ENVIRONMENT` lets a
process find the stand-in instead of a driver.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "build/tests/device"
PYTHON = Path(__file__).parents[1] / "python"
_PATHS = (Path(__file__).parent, PYTHON, os.environ.get("PYTHONPATH", ""))  # what programs import
ENVIRONMENT = {
    "LD_LIBRARY_PATH": f"{FOLDER}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
    "PYTHONPATH": ":".join(map(str, _PATHS)).rstrip(":"),
}

# The driver refuses to pin memory, as it does if a process may lock too little.
UNPINNED = {"STANDIN_FAIL": "cuMemHostRegister:1:2:always"}

# Streams have no memory operations, so kernels wait.
BY_KERNELS = {"STANDIN_STREAM_MEMORY": "0"}

# The same environment for `herring.torch`, which takes CPU tensors for GPU tensors: see `on_gpus`.
TORCH_ENVIRONMENT = {
    **ENVIRONMENT,
    "STANDIN_JITTER": "50",
    "PYTHONPATH": f"{PYTHON / 'on_gpus'}:{ENVIRONMENT['PYTHONPATH']}",
}

# The first line of a short script whose arrays lie on GPUs; it joins the job.
GPUS = "from gpu_job import GpuArray, driver, gpus, rank, size\n"

# Functions of CUDA's driver that never wait for a device, and that may be called in a step. Others
# wait: synchronization, copies that are not asynchronous, the allocation, release and registration
# of memory, the loading of kernels.
_QUEUES_OR_ASKS = (
    b"cuCtxPopCurrent",
    b"cuCtxPushCurrent",
    b"cuEventRecord",
    b"cuLaunchKernel",
    b"cuMemcpyDtoHAsync",
    b"cuMemcpyHtoDAsync",
    b"cuMemsetD8Async",
    b"cuPointerGetAttributes",
    b"cuStreamIsCapturing",
    b"cuStreamQuery",
    b"cuStreamWaitEvent",
    b"cuStreamWaitValue32",
    b"cuStreamWriteValue32",
    b"cuThreadExchangeStreamCaptureMode",
)

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}


class _Tensor(ctypes.Structure):
    """DLPack's DLManagedTensor with the nested DLTensor flattened into it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Driver:
    """Calls the stand-in that is loaded in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")  # every instance loads the same library
        pointer, size, u32, u64 = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_uint32,
            ctypes.c_uint64,
        )
        for name, result, arguments in (
            ("adopt", None, (ctypes.c_int, u64, size)),
            ("allocate", u64, (ctypes.c_int, size)),
            ("allocations", size, ()),
            ("calls", u64, (ctypes.c_char_p,)),
            ("capture", ctypes.c_bool, (pointer, ctypes.c_bool)),
            ("fail", None, (ctypes.c_char_p, u64, ctypes.c_int, ctypes.c_bool)),
            ("failed", ctypes.c_char_p, ()),
            ("fill", None, (pointer, u64, size, ctypes.c_float, u32)),
            ("disown", None, (u64,)),
            ("free", None, (ctypes.c_int, u64)),
            ("jitter", None, (u32,)),
            ("lose", None, (u64, ctypes.c_int)),
            ("order", None, (pointer, pointer)),
            ("peek", None, (pointer, u64, size)),
            ("poke", None, (u64, pointer, size)),
            ("registrations", size, ()),
            ("reuse", None, (u64, ctypes.c_int)),
            ("scale", None, (pointer, u64, size, ctypes.c_float, u32)),
            ("store", None, (pointer, u64, pointer, size, u32)),
            ("stream", pointer, (ctypes.c_int,)),
            ("synchronize", None, (ctypes.c_int,)),
            ("threads", size, ()),
        ):
            function = getattr(self._library, f"standin_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def count(self) -> int:
        """Returns the number of GPUs."""
        return 2

    def waits(self) -> int:
        """Returns the number of calls that may wait for a device, which no step may make.

        These are all calls but those that are known to return at once.
        """
        return self.calls(None) - sum(map(self.calls, _QUEUES_OR_ASKS))

    def bytes(self) -> tuple[int, int, int]:
        """Returns bytes copied from devices, to devices, and, of both, with unregistered memory."""
        found = [ctypes.c_uint64() for _ in range(3)]
        self._library.standin_bytes(*map(ctypes.byref, found))
        return tuple(one.value for one in found)


class GpuArray:
    """An array in device memory that exports DLPack; work on it is queued in one stream.

    `tells` says whether the array announces its stream, as arrays of some libraries do.
    """

    def __init__(self, values, device: int = 0, tells: bool = True) -> None:
        self.driver = Driver()
        values = np.ascontiguousarray(values)
        self.shape, self.dtype, self.device = values.shape, values.dtype, device
        self.address = self.driver.allocate(device, max(values.nbytes, 1))
        self.stream = self.driver.stream(device)
        self.tells = tells
        self.set(values)

    def __del__(self) -> None:
        self.driver.free(self.device, self.address)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def set(self, values) -> None:
        """Writes the values at once, without waiting for queued work."""
        values = np.ascontiguousarray(values, self.dtype)
        self.driver.poke(self.address, values.ctypes.data, values.nbytes)

    def get(self) -> np.ndarray:
        """Returns the values after all work queued in the array's stream has completed."""
        values = np.empty(self.shape, self.dtype)
        done = ctypes.c_void_p(self.stream)
        self.driver.order(done, None)  # waits for the stream
        self.driver.peek(values.ctypes.data, self.address, values.nbytes)
        return values

    def fill(self, value: float, microseconds: int = 0) -> None:
        """Queues a kernel that takes `microseconds` and writes `value` to all elements."""
        self.driver.fill(self.stream, self.address, self.size, value, microseconds)

    def store(self, values, microseconds: int = 0) -> None:
        """Queues a kernel that takes `microseconds` and writes these values."""
        values = np.ascontiguousarray(values, self.dtype)
        self.driver.store(
            self.stream, self.address, values.ctypes.data, values.nbytes, microseconds
        )

    def scale(self, factor: float, microseconds: int = 0) -> None:
        self.driver.scale(self.stream, self.address, self.size, factor, microseconds)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if not self.tells:
            raise AttributeError("__cuda_array_interface__")
        return {"stream": self.stream}

    def __dlpack__(self, *, stream: int | None = None):
        if stream not in (None, -1):
            self.driver.order(ctypes.c_void_p(self.stream), ctypes.c_void_p(stream))
        code, bits = _CODES[self.dtype.kind], self.dtype.itemsize * 8
        return _capsule(self.address, self.device, self.shape, code, bits)


class Pinned:
    """Exports an array of the host as memory that CUDA's driver has pinned."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.ndim = values.shape, values.ndim

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0

    def __dlpack__(self, *, stream: int | None = None, max_version: object = None):
        code, bits = _CODES[self.values.dtype.kind], 8 * self.values.itemsize
        return _capsule(self.values.ctypes.data, 0, self.values.shape, code, bits, kind=3)


class Adopted:
    """Presents a contiguous CPU tensor of torch as if it lay on a GPU."""

    def __init__(self, tensor) -> None:
        kind = str(tensor.dtype).removeprefix("torch.")
        self.tensor, self.shape = tensor, tuple(tensor.shape)
        self.code = 4 if kind == "bfloat16" else _CODES[kind[0]]
        self.bits = tensor.element_size() * 8
        self.address = tensor.data_ptr()
        with _adopting:
            _adopted.setdefault(self.address, {})[id(self)] = tensor.numel() * tensor.element_size()
            self._adopt()

    def _adopt(self) -> None:
        """Registers as many bytes as the longest adopted tensor at this address has."""
        if longest := max(_adopted[self.address].values(), default=0):
            Driver().adopt(0, self.address, longest)
        else:
            Driver().disown(self.address)

    def __del__(self) -> None:
        with _adopting:
            del _adopted[self.address][id(self)]
            self._adopt()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None):
        return _capsule(self.address, 0, self.shape, self.code, self.bits)


class BenchGpus:
    """Replaces `herring.bench.gpus.Gpus` with the stand-in's GPUs."""

    def __init__(self, option: str) -> None:
        del option

    def of(self, rank: int) -> BenchGpu:
        del rank
        return BenchGpu()


class BenchGpu:
    """A GPU of the stand-in: its tensors lie in CPU memory, and it has one stream."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.device, self.index = "cpu", 0
        self.stream = self.driver.stream(0)

    def describe(self) -> str:
        return "stand-in"

    def zeros(self, count: int, dtype: str):
        import torch

        return torch.zeros(count, dtype=getattr(torch, dtype))

    def exported(self, tensor) -> Queued:
        return Queued(tensor, self.stream)

    def synchronize(self) -> None:
        self.driver.order(ctypes.c_void_p(self.stream), None)  # waits for the stream


class Queued(Adopted):
    """A tensor whose library announces a stream of the stand-in."""

    def __init__(self, tensor, stream: int) -> None:
        super().__init__(tensor)
        self.__cuda_array_interface__ = {"stream": stream}


def _capsule(
    address: int, device: int, shape: tuple[int, ...], code: int, bits: int, kind: int = 2
) -> object:
    dimensions = (ctypes.c_int64 * len(shape))(*shape)
    tensor = _Tensor(
        data=address,
        device_type=kind,
        device_id=device,
        ndim=len(shape),
        code=code,
        bits=bits,
        lanes=1,
        shape=ctypes.cast(dimensions, ctypes.POINTER(ctypes.c_int64)),
    )
    _exported.append((tensor, dimensions))  # never freed, but only a few bytes
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    return new(ctypes.addressof(tensor), b"dltensor", None)


_exported: list[object] = []
_adopting = threading.RLock()  # tensors are created and freed on several threads
_adopted: dict[int, dict[int, int]] = {}  # sizes of tensors in bytes, by address and by object id
