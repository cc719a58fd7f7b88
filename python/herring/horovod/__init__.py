"""Horovod's API (0.28), implemented by Herring.

    import herring.horovod.torch as hvd          # instead of: import horovod.torch as hvd

The modules ``tensorflow``, ``tensorflow.keras`` and ``keras`` exist too.

Scripts that contain ``import horovod`` run unchanged under ``herring run --horovod`` or
``python -m herring.horovod script.py``; see docs/horovod.md.

Functions do what Horovod's of that name do. A function's own description says what differs, and
what is special to it. Functions with ``async`` in their name return a handle for `synchronize` and
`poll`; their later errors come from `synchronize`.

Args:
  tensors: The tensors of a list, which may have different shapes and dtypes. The operation succeeds
    or fails for all of them. Each is one that the function for a single tensor takes.
  name: Identifies the operation across ranks; None numbers the calls.
  obj: The object to send. Only the root's is sent by a broadcast.
  op: Average (the default), Sum, Min, Max, Product or Adasum, the same on all ranks. Adasum needs
    floats and a power of two of ranks. Gradients take Average, Sum or Adasum, and reduce-scatters
    any operator but Adasum.
  average: Older form of `op`: True is Average, False is Sum.
  prescale_factor: Factor for each rank's values before the reduction.
  postscale_factor: Factor for the result.
  compression: `Compression.none`, `Compression.fp16` or a class with the same methods (in Keras on
    TensorFlow only). With fp16, float32 gradients are sent between nodes in 16 bits and added in
    32.
  process_set: The ranks that take part. Where gradients are averaged, other ranks keep their own.
  root_rank: The rank of the job whose values are copied, also with a process set, which must
    contain it.
  backward_passes_per_step: Number of backward passes (Keras: calls of `apply`) whose gradients add
    up before a step.
  average_aggregated_gradients: Whether to divide accumulated gradients by
    `backward_passes_per_step`.
  gradient_predivide_factor: Has no effect, because sums cannot overflow before they are divided.
    Must be 1 unless `op` is Average.
  groups: Checked, but has no effect, because gradients share fusion buffers anyway.
  num_groups: Older name of `groups`.
  sparse_as_dense: True converts tf.IndexedSlices to dense tensors; False gathers the slices of all
    ranks.
  scale_local_gradients: Whether to divide gradients that are not averaged by the number of ranks.
  session: Must be None.
  device: Ignored.
  device_dense: Ignored.
  device_sparse: Ignored.
  ignore_name_scope: Ignored.
  use_locking: Ignored.

Raises:
  InvalidArgumentError: An argument cannot be used, an operation of this name is in flight, or the
    process set is not registered or does not contain this rank. It is a ValueError.
  ShutdownError: `init` was not called.
  HorovodInternalError: Ranks disagree (also a MismatchError), a rank was lost (also a
    PeerLostError), or a rank did not call in time (also a TimeoutError).
"""

from __future__ import annotations

from typing import Any

__version__ = "0.28.1"  # The Horovod version of this API, which scripts may compare.


def __getattr__(name: str) -> Any:
    if name == "run":
        from herring.horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
