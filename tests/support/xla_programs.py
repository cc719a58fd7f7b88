"""Calls Herring's handlers for GPUs as XLA would, through its foreign function interface.

The structures follow xla/ffi/api/c_api.h, version 0.1.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpus import GpuArray
from herring import _core

_P, _SIZE, _I32, _I64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64
_DTYPES = {"bool": 1, "int32": 4, "uint8": 6, "uint32": 8, "float16": 10, "float32": 11}
_DTYPES |= {"float64": 12, "int64": 5}
_BUFFER, _SCALAR, _STRING, _EXECUTE = 1, 3, 4, 3


class _Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", _SIZE)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", _I32), ("value", _P)]


class _Array(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("dtype", _I32), ("data", _P),
        ("rank", _I64), ("dims", ctypes.POINTER(_I64)),
    ]  # fmt: skip


class _Operands(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("size", _I64),
        ("types", ctypes.POINTER(_I32)), ("values", ctypes.POINTER(_P)),
    ]  # fmt: skip


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("size", _I64),
        ("types", ctypes.POINTER(_I32)), ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("values", ctypes.POINTER(_P)),
    ]  # fmt: skip


class _ErrorCreate(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("message", ctypes.c_char_p), ("code", _I32),
    ]  # fmt: skip


class _StreamGet(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extensions", _P), ("context", _P), ("stream", _P)]


class _Version(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extensions", _P), ("major", _I32), ("minor", _I32)]


_Create = ctypes.CFUNCTYPE(_P, ctypes.POINTER(_ErrorCreate))
_GetStream = ctypes.CFUNCTYPE(_P, ctypes.POINTER(_StreamGet))


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("version", _Version), ("internal", _P),
        ("error_create", _Create), ("error_get_message", _P), ("error_destroy", _P),
        ("handler_register", _P), ("stream_get", _GetStream), ("rest", _P * 11),
    ]  # fmt: skip


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("type", _I32), ("next", _P), ("metadata", _P)]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE), ("extensions", _P), ("api", ctypes.POINTER(_Api)),
        ("context", _P), ("stage", _I32), ("arguments", _Operands), ("results", _Operands),
        ("attributes", _Attributes), ("future", _P),
    ]  # fmt: skip


class Program:
    """A program on one GPU; its steps run in the stream of the array `stream_of`."""

    def __init__(self, stream_of: GpuArray) -> None:
        self._stream = stream_of.stream
        self._errors: list[tuple[int, str]] = []
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = _P, [ctypes.py_object, ctypes.c_char_p]
        self._start, self._finish = (
            ctypes.CFUNCTYPE(_P, _P)(pointer(one, None)) for one in _core.jax.device_handlers()
        )

        def create(arguments: Any) -> int:
            self._errors.append((arguments[0].code, arguments[0].message.decode()))
            return len(self._errors)

        def get_stream(arguments: Any) -> int:
            arguments[0].stream = self._stream
            return 0

        self._api = _Api(
            struct_size=ctypes.sizeof(_Api),
            error_create=_Create(create),
            stream_get=_GetStream(get_stream),
        )
        self.token = GpuArray(np.zeros(8, np.uint8), stream_of.device)

    def start(
        self, key: str, arrays: list[GpuArray], places: list[GpuArray], **attributes: Any
    ) -> tuple[int, str] | None:
        """Runs the first of a call's two steps; returns the code and text of its error, if any."""
        given = {
            "kind": "allreduce", "key": key, "op": "sum", "group": 0, "agreement": "", "root": 0,
            "prescale": 1.0, "postscale": 1.0, "timeout": 0.0, "refusal": "", **attributes,
        }  # fmt: skip
        return self._call(self._start, [self.token, *arrays], [self.token, *places], given)

    def finish(self, key: str, places: list[GpuArray]) -> tuple[int, str] | None:
        """Runs the second step of a call; returns the code and text of its error, if any."""
        return self._call(self._finish, places, places, {"key": key, "group": 0})

    def version(self) -> tuple[int, int]:
        """Returns the (major, minor) version of the interface that the handler reports."""
        metadata = _Metadata(struct_size=ctypes.sizeof(_Metadata))
        asks = _MetadataExtension(
            struct_size=ctypes.sizeof(_MetadataExtension), type=1,
            metadata=ctypes.addressof(metadata),
        )  # fmt: skip
        frame = _Frame(struct_size=ctypes.sizeof(_Frame), extensions=ctypes.addressof(asks))
        assert not self._start(ctypes.addressof(frame))
        assert metadata.traits == 0  # no call may become part of a CUDA graph
        return metadata.version.major, metadata.version.minor

    def _call(
        self,
        handler: Any,
        arguments: list[GpuArray],
        results: list[GpuArray],
        attributes: dict[str, Any],
    ) -> tuple[int, str] | None:
        keep: list[Any] = []
        frame = _Frame(
            struct_size=ctypes.sizeof(_Frame), api=ctypes.pointer(self._api), stage=_EXECUTE,
            arguments=_operands(arguments, keep), results=_operands(results, keep),
            attributes=_attributes(attributes, keep),
        )  # fmt: skip
        error = handler(ctypes.addressof(frame))
        assert not frame.future
        return self._errors[error - 1] if error else None


def _operands(arrays: list[GpuArray], keep: list[Any]) -> _Operands:
    described = [
        _Array(
            struct_size=ctypes.sizeof(_Array), dtype=_DTYPES[array.dtype.name], data=array.address,
            rank=len(array.shape), dims=(_I64 * len(array.shape))(*array.shape),
        )
        for array in arrays
    ]  # fmt: skip
    types = (_I32 * len(arrays))(*[_BUFFER] * len(arrays))
    values = (_P * len(arrays))(*map(ctypes.addressof, described))
    keep += [described, types, values]
    return _Operands(ctypes.sizeof(_Operands), None, len(arrays), types, values)


def _attributes(given: dict[str, Any], keep: list[Any]) -> _Attributes:
    names, types, values = [], [], []
    for name, value in sorted(given.items()):
        names.append(ctypes.pointer(_Span(name.encode(), len(name))))
        if isinstance(value, str):
            types.append(_STRING)
            one: Any = _Span(value.encode(), len(value.encode()))
        else:
            types.append(_SCALAR)
            number = ctypes.c_double(value) if isinstance(value, float) else _I64(value)
            keep.append(number)
            dtype = _DTYPES["float64" if isinstance(value, float) else "int64"]
            one = _Scalar(dtype, ctypes.addressof(number))
        keep.append(one)
        values.append(ctypes.addressof(one))
    all_names = (ctypes.POINTER(_Span) * len(names))(*names)
    all_types, all_values = (_I32 * len(types))(*types), (_P * len(values))(*values)
    keep += [names, all_names, all_types, all_values]
    return _Attributes(
        ctypes.sizeof(_Attributes), None, len(names), all_types, all_names, all_values
    )
