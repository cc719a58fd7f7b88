"""What Herring asks of torch's autograd engine by names that torch keeps private.

No other module uses such a name of the engine. docs/compatibility.md has the versions of torch with
which these functions are tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def current_pass() -> int:
    """Returns torch's number of the backward pass that the calling thread is in, or -1."""
    return torch._C._current_graph_task_id()


def in_backward() -> bool:
    """Returns whether the calling thread is inside a backward pass."""
    return current_pass() != -1


def at_end_of_pass(callback: Callable[[], None]) -> None:
    """Makes the engine call `callback` at the end of the running pass, unless the pass raises."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def nodes_below(roots: Iterable[Any]) -> Iterator[Any]:
    """Yields these nodes of a graph and all nodes below them, each once."""
    seen = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            yield node
            seen.add(node)
            stack.extend(successor for successor, _ in node.next_functions)


def accumulates(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Returns whether the running pass adds to `.grad` of leaves, seen from a hook on an output.

    A plain backward pass executes every leaf of its graph, so any leaf tells. With
    `backward(inputs=...)` only one of `parameters` can tell.
    """
    below = nodes_below([torch._C._current_autograd_node()])
    leaf = next((node for node in below if hasattr(node, "variable")), None)
    ours = (
        torch.autograd.graph.get_gradient_edge(parameter).node
        for parameter in parameters
        if parameter.requires_grad
    )
    leaves = ours if leaf is None else itertools.chain([leaf], ours)
    try:
        return any(map(torch._C._will_engine_execute_node, leaves))
    except RuntimeError:  # torch raises it in autograd.grad with respect to the leaf
        return False


def runs_last(parameter: torch.nn.Parameter, handle: Any) -> bool:
    """Returns whether a hook is the last of its parameter; if not, moves it to the end.

    Args:
      handle: The handle that `parameter.register_post_accumulate_grad_hook` returned.
    """
    hooks = parameter._post_accumulate_grad_hooks
    if next(reversed(hooks)) == handle.id:
        return True
    hooks[handle.id] = hooks.pop(handle.id)
    return False
