"""Checks which tensors the collectives accept, and packs many tensors into blocks of bytes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from herring.arrays.arguments import shown
from herring.arrays.wire import PACKED_DTYPES, TopK, wire_of
from herring.errors import InvalidArgumentError

_ALIGNMENT = 16  # bytes; at least the size of every torch dtype, so that views stay aligned


@functools.cache
def warn_once(key: str, message: str) -> None:
    """Emits `message` as a UserWarning the first time `key` is seen in this process."""
    del key
    warnings.warn(message, UserWarning, stacklevel=3)


def dtype_name(dtype: torch.dtype) -> str:
    """Returns Herring's name of a torch dtype, for example "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def holds_tensors(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has no memory of its own, because it holds other tensors."""
    kind = type(tensor)
    return kind is not torch.Tensor and is_traceable_wrapper_subclass(tensor)


def advice_on(tensor: torch.Tensor) -> str:
    """Returns what a tensor that holds others is, and what to use instead."""
    kind, local = type(tensor).__name__, "pass tensor.to_local(), the part of this rank"
    instead = local if hasattr(tensor, "to_local") else "make the call with each of them"
    return f"a {kind} holds other tensors and has no memory of its own; {instead}"


#: As `WireDType`, with torch's dtypes too.
TorchWireDType: TypeAlias = "str | torch.dtype | tuple[str | torch.dtype, str | torch.dtype] | TopK"

_WIRE_DTYPES = ("float32", "float16", "bfloat16", *PACKED_DTYPES)


def wire_dtype_name(wire_dtype: TorchWireDType | None) -> str | None:
    """Returns the name of a wire dtype, or of a pair, of which parts may be torch dtypes."""
    if wire_dtype is None:
        return None
    if isinstance(wire_dtype, TopK):
        return wire_of(wire_dtype)
    if isinstance(wire_dtype, (tuple, list)):
        return wire_of(tuple(_wire_name(one) for one in wire_dtype))
    name = _wire_name(wire_dtype)
    if not isinstance(name, str) or name not in _WIRE_DTYPES:
        raise InvalidArgumentError(
            f"wire_dtype is {shown(wire_dtype)}; it must be None or one of "
            + ", ".join(_WIRE_DTYPES)
            + ", or a herring.TopK"
        )
    return name


def _wire_name(given: Any) -> Any:
    name = dtype_name(given) if isinstance(given, torch.dtype) else given
    if isinstance(name, str) and name in ("float8_e4m3fn", "float8_e5m2"):
        name = name.removesuffix("fn").replace("float", "fp")
    return name


def require_strided(tensor: torch.Tensor, operation: str) -> None:
    """Raises InvalidArgumentError unless `tensor` is a tensor that is not sparse."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(
            f"{operation}: expected a torch.Tensor, got {type(tensor).__name__}; "
            "for other arrays use the functions of `herring` itself"
        )
    if holds_tensors(tensor):
        raise InvalidArgumentError(f"{operation}: {advice_on(tensor)}")
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(
            f"{operation}: the tensor is sparse ({tensor.layout}); pass tensor.to_dense()"
        )


def require_dense(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Returns `tensor` without its graph, after checking that its memory is contiguous."""
    require_strided(tensor, operation)
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"{operation}: the tensor is not contiguous (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}); pass tensor.contiguous() and use the result"
        )
    return tensor.detach()


def is_capturing(tensor: torch.Tensor) -> bool:
    """Returns whether the current stream of a tensor's GPU is being captured for a CUDA graph."""
    if not tensor.is_cuda:
        return False
    with torch.cuda.device(tensor.device):
        return torch.cuda.is_current_stream_capturing()


def check_not_capturing(tensors: Iterable[torch.Tensor], operation: str) -> None:
    """Refuses an operation inside the capture of a CUDA graph, before anything is queued.

    Args:
      tensors: Those that the operation uses; the current streams of their GPUs count.
    """
    for tensor in {tensor.device: tensor for tensor in tensors}.values():
        if is_capturing(tensor):
            raise InvalidArgumentError(
                f"{operation}: the current stream of {tensor.device} is being captured for a CUDA "
                "graph, and what Herring does on the host cannot be part of one; make this call "
                "outside the capture"
            )


def on_host(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Returns `tensor` itself if it is on the CPU, else a copy on the CPU.

    CUDA tensors go through pinned host memory, with one warning for each operation. The copy is
    complete on return.

    Raises:
      InvalidArgumentError: The tensor is on a device whose tensors cannot be copied to the host, or
        a CUDA graph is being captured.
    """
    if tensor.device.type == "cpu":
        return tensor
    if tensor.device.type != "cuda":
        raise InvalidArgumentError(
            f"{operation}: tensors on {tensor.device} are not supported; move the tensor to the "
            "CPU first"
        )
    check_not_capturing([tensor], operation)
    warn_once(
        f"cuda {operation}",
        f"herring.torch: {operation} copies CUDA tensors to pinned host memory and back, and the "
        "host waits for both copies; docs/gpus.md lists the operations that take them where they "
        "lie",
    )
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    staged.copy_(tensor)
    return staged


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns gap-free strides with the dimension order of `tensor` (channels last stays)."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()


def obstacle(tensor: torch.Tensor) -> str:
    """Returns why a tensor cannot be overwritten with that of another rank; empty if it can."""
    if isinstance(tensor, UninitializedTensorMixin):
        return "is not initialized; run a forward pass first"
    if holds_tensors(tensor):
        return f"cannot be averaged as it is: {advice_on(tensor)}"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"is not dense ({tensor.layout})"
    if tensor.device.type == "meta":
        return "is on the device 'meta' and has no values"
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride())):
        return "is expanded, so its elements share memory; clone() it"
    return ""


def require_writable(named: Iterable[tuple[str, torch.Tensor]], operation: str) -> None:
    """Refuses tensors that cannot be overwritten, after ranks have agreed on their descriptions."""
    for name, tensor in named:
        if reason := obstacle(tensor):
            raise InvalidArgumentError(f"{operation}: {name!r} {reason}")


def describe(name: str, tensor: torch.Tensor, *, values: bool = False) -> str:
    """Returns one line with all properties of a tensor that must be equal on all ranks.

    Args:
      values: Whether only its values matter, and not whether it is a frozen parameter.
    """
    if reason := obstacle(tensor):
        return f"{name} {reason}"
    line = f"{name} {dtype_name(tensor.dtype)} {list(tensor.shape)}"
    strides = dense_strides(tensor)
    if strides != torch.empty(tensor.shape, device="meta").stride():
        line += f" strides {list(strides)}"
    if not values and isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
        line += " frozen"
    return line


class FlatBytes:
    """Packs tensors of any dtypes into blocks of bytes, so that one operation moves them all.

    A block has at most `block_bytes` bytes unless a single tensor is larger. The layout depends on
    shapes and dtypes only, so it is equal on ranks whose tensors have equal shapes and dtypes.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], block_bytes: int = 32 << 20) -> None:
        self._places: list[tuple[int, int, int]] = []  # per tensor: block, offset, bytes
        sizes: list[int] = [0]
        for tensor in tensors:
            nbytes = tensor.numel() * tensor.element_size()
            if sizes[-1] and sizes[-1] + nbytes > block_bytes:
                sizes.append(0)
            self._places.append((len(sizes) - 1, sizes[-1], nbytes))
            sizes[-1] += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        # The blocks are zeroed because the padding is sent too.
        self.blocks = [torch.zeros(size, dtype=torch.uint8, device="cpu") for size in sizes if size]

    def _view(self, place: tuple[int, int, int], like: torch.Tensor) -> torch.Tensor:
        block, offset, nbytes = place
        piece = self.blocks[block][offset : offset + nbytes]
        return piece.view(like.dtype).view(like.shape)

    def pack(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies `tensors`, which match those given at construction, into the blocks."""
        check_not_capturing(tensors, "copying to host memory")
        for place, tensor in zip(self._places, tensors):
            if place[2]:
                self._view(place, tensor).copy_(tensor.detach())

    def unpack(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the blocks back into `tensors`, in place."""
        check_not_capturing(tensors, "copying from host memory")
        for place, tensor in zip(self._places, tensors):
            if place[2]:
                # A tensor made under inference_mode can be changed there only.
                with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                    tensor.copy_(self._view(place, tensor))
