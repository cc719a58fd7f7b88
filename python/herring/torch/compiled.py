"""Keeps torch.compile, and compiled autograd, out of what exchanges data."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

from herring.torch.tensors import warn_once

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_REASON = (
    "herring exchanges data here. For fullgraph=True compile the module and then wrap it: "
    "DistributedDataParallel(torch.compile(module, fullgraph=True))"
)


def untraced(
    function: Callable[Arguments, Result], reason: str = _REASON
) -> Callable[Arguments, Result]:
    """Returns the function, which torch.compile does not trace, nor what it calls.

    torch.compile is not imported for that. A program that does not compile is spared its import.

    Args:
      reason: What torch's error says if the function must be a part of a graph.
    """
    frames = torch._C._dynamo.eval_frame
    one: Any = function
    while one is not None:
        one._torchdynamo_disable = True  # where torch.compile comes upon a call
        one._torchdynamo_disable_msg = reason
        # And where the call is made, between two graphs. The code of a decorator such as torch's
        # no_grad is that of all functions with it, also the program's, so only our own is marked.
        # The name is private, and torch may change it.
        ours = one.__globals__.get("__name__", "").partition(".")[0] == "herring"
        if ours and hasattr(frames, "set_code_exec_strategy"):
            skip = frames._FrameAction.SKIP
            frames.set_code_exec_strategy(one.__code__, frames._FrameExecStrategy(skip, skip))
        one = getattr(one, "__wrapped__", None)
    return function


def leave_out(*modules: ModuleType) -> None:
    """Keeps torch.compile out of all functions and methods of modules.

    It cannot trace calls of the core, and makes some of them without their first argument.
    """
    for module in modules:
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) == module.__name__:
                for one in vars(value).values() if isinstance(value, type) else (value,):
                    if isinstance(one, FunctionType):
                        untraced(one)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Runs a backward pass as it is, where compiled autograd would replace it.

    Compiled autograd traces a pass once, with the hooks that average, and then runs the trace.
    """
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is None or not compiled.compiled_autograd_enabled:
        yield
        return
    warn_once(
        "compiled autograd",
        "herring.torch: a backward pass whose gradients are averaged is not compiled by compiled "
        "autograd; set torch._dynamo.config.compiled_autograd = False",
    )
    with compiled._disable():
        yield
