"""Measures training steps under each framework adapter, in turns within one job.

  python benchmarks/adapters.py torch              8 + 8 emulated hosts, 200 Mbit/s (needs root)
  python benchmarks/adapters.py torch --hosts 0    this machine, 2 workers
  python benchmarks/adapters.py jax --hosts 2      2 + 2 hosts
  KERAS_BACKEND=jax python benchmarks/adapters.py keras --hosts 2 --python ...
  python benchmarks/adapters.py tensorflow --hosts 2 --python .venv-frameworks/tensorflow/bin/python
  python benchmarks/adapters.py jax --hosts 0 --collectives 16 --rounds 30

A step is a forward and a backward pass of a network of 25 MB, and the average of its gradients. Its
time is the time of the slowest rank after a barrier. `compute` is the step without averaging, and
`arrays` averages the same number of bytes with the array interface alone. With --collectives, a
step is one all-reduce, compiled if the framework compiles; with torch, each of its collectives is
measured. Medians are over --rounds turns after --warmup.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from herring.base.provenance import write_results

MEGABITS, QUEUE_SECONDS = 200.0, 0.020
LAYERS, WIDTH = 6, 1021  # 25.0 MB of float32
Steps = dict[str, Callable[[], Any]]


# --- the steps of one worker ---------------------------------------------------------------------


def torch_steps(batch: int) -> Steps:
    """Returns steps by name: Herring's wrapper, and torch's with both backends and the hook."""
    import torch
    import torch.distributed as dist

    import herring.torch

    torch.set_num_threads(1)
    dist.init_process_group("herring", init_method="herring://")
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(1)

    def model() -> torch.nn.Module:
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers)

    ddp = torch.nn.parallel.DistributedDataParallel
    hooked = ddp(model())
    hooked.register_comm_hook(None, herring.torch.ddp_comm_hook)
    models = {
        "compute": model(),
        "herring's wrapper": herring.torch.DistributedDataParallel(model()),
        "torch's, backend herring": ddp(model()),
        "torch's, backend herring, views": ddp(model(), gradient_as_bucket_view=True),
        "torch's, ddp_comm_hook": hooked,
        "torch's, backend gloo": ddp(model(), process_group=gloo),
        "torch's, backend gloo, views": ddp(
            model(), process_group=gloo, gradient_as_bucket_view=True
        ),
    }
    inputs = torch.randn(batch, WIDTH)

    def step(model: torch.nn.Module) -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return {name: lambda model=model: step(model) for name, model in models.items()}


def jax_steps(batch: int) -> Steps:
    """Returns a step without and a step with averaging, each as one jitted program."""
    import jax
    import jax.numpy as jnp

    import herring.jax

    parameters = [jnp.full((WIDTH, WIDTH), 1e-3) for _ in range(LAYERS)]
    inputs = jnp.ones((batch, WIDTH))

    def loss(parameters: Any) -> Any:
        value = inputs
        for weight in parameters:
            value = jax.nn.relu(value @ weight)
        return jnp.mean(value**2)

    gradients = jax.grad(loss)
    compute = jax.jit(gradients)
    averaged = jax.jit(lambda parameters: herring.jax.allreduce(gradients(parameters)))
    return {
        "compute": lambda: jax.block_until_ready(compute(parameters)),
        "herring.jax": lambda: jax.block_until_ready(averaged(parameters)),
    }


def tensorflow_steps(batch: int) -> Steps:
    """Returns a step without and a step with averaging, each as one tf.function."""
    import tensorflow as tf

    import herring.tensorflow

    tf.config.threading.set_intra_op_parallelism_threads(1)
    weights = [tf.Variable(tf.fill((WIDTH, WIDTH), 1e-3)) for _ in range(LAYERS)]
    inputs = tf.ones((batch, WIDTH))

    def gradients(wrap: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            value = inputs
            for weight in weights:
                value = tf.nn.relu(value @ weight)
            loss = tf.reduce_mean(value**2)
        return wrap(tape).gradient(loss, weights)

    compute = tf.function(lambda: gradients(lambda tape: tape))
    averaged = tf.function(lambda: gradients(herring.tensorflow.DistributedGradientTape))
    return {"compute": compute, "herring.tensorflow": averaged}


def keras_steps(batch: int) -> Steps:
    """Returns steps of a Keras model with plain and with distributed optimizers."""
    import keras
    import numpy as np

    import herring.keras

    x = np.ones((batch, WIDTH), np.float32)

    def step(wrap: Callable[[Any], Any]) -> Callable[[], Any]:
        keras.utils.set_random_seed(1)
        layers = [
            keras.layers.Dense(WIDTH, activation="relu", use_bias=False) for _ in range(LAYERS)
        ]
        model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
        model.compile(wrap(keras.optimizers.SGD(1e-3)), loss="mse")
        model.train_on_batch(x, x)
        return lambda: model.train_on_batch(x, x)

    steps = {"compute": step(lambda optimizer: optimizer)}
    steps["herring.keras"] = step(herring.keras.DistributedOptimizer)
    if keras.backend.backend() == "jax":
        os.environ["HERRING_JAX_IMPL"] = "callback"
        steps["herring.keras, callback"] = step(herring.keras.DistributedOptimizer)
    return steps


FRAMEWORKS = {
    "torch": torch_steps,
    "jax": jax_steps,
    "tensorflow": tensorflow_steps,
    "keras": keras_steps,
}


def torch_collectives(count: int) -> Steps:
    """Returns collectives on `count` float32 elements, with herring.torch and both backends."""
    import torch
    import torch.distributed as dist

    import herring.torch

    torch.set_num_threads(1)
    dist.init_process_group("herring", init_method="herring://")
    whole, other = torch.ones(count), torch.empty(count)
    part = torch.empty(count // dist.get_world_size())
    whole, other = (tensor[: part.numel() * dist.get_world_size()] for tensor in (whole, other))
    steps: Steps = {"all_reduce, herring.torch": lambda: herring.torch.allreduce(whole)}
    for name, group in (("herring", None), ("gloo", dist.new_group(backend="gloo"))):
        calls = {
            "all_reduce": lambda group: dist.all_reduce(whole, group=group),
            "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
            "all_gather": lambda group: dist.all_gather_into_tensor(other, part, group=group),
            "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, whole, group=group),
            "all_to_all": lambda group: dist.all_to_all_single(other, whole, group=group),
        }
        for call, function in calls.items():
            steps[f"{call}, {name}"] = lambda function=function, group=group: function(group)
    return steps


def jax_allreduce(count: int) -> Steps:
    """Returns a jitted all-reduce of `count` float32 elements."""
    import jax
    import jax.numpy as jnp

    import herring.jax

    averaged, array = jax.jit(herring.jax.allreduce), jnp.ones(count)
    return {"herring.jax": lambda: jax.block_until_ready(averaged(array))}


def tensorflow_allreduce(count: int) -> Steps:
    """Returns an all-reduce of `count` float32 elements as a tf.function."""
    import tensorflow as tf

    import herring.tensorflow

    tensor = tf.ones(count)
    return {"herring.tensorflow": tf.function(lambda: herring.tensorflow.allreduce(tensor))}


COLLECTIVES = {"torch": torch_collectives, "jax": jax_allreduce, "tensorflow": tensorflow_allreduce}


def work(options: argparse.Namespace) -> None:
    """Runs all steps in turns as one worker; rank 0 writes the seconds by step name."""
    import numpy as np

    import herring

    herring.init()
    if options.collectives:
        count = round(options.collectives * 1e6 / 4)
        steps = COLLECTIVES[options.framework](count)
    else:
        count = LAYERS * WIDTH * WIDTH
        steps = FRAMEWORKS[options.framework](options.batch)
    array = np.ones(count, np.float32)
    steps["arrays"] = lambda: herring.allreduce(array, "average")
    chosen = [name for name in steps if not options.only or options.only in name]
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(options.warmup + options.rounds):
        for name in chosen:
            herring.barrier()
            start = time.perf_counter()
            steps[name]()
            own = np.array([time.perf_counter() - start])
            herring.allreduce(own, "max")
            if number >= options.warmup:
                found[name].append(float(own[0]))
    if herring.rank() == 0:
        pathlib.Path(options.result).write_text(json.dumps(found))
    herring.barrier()
    herring.shutdown()


# --- the job -------------------------------------------------------------------------------------


def run_job(options: argparse.Namespace, result: str) -> int:
    """Runs one worker per host and as many dedicated servers, or two workers on this machine."""
    command = [options.python, os.path.abspath(__file__), options.framework, "--result", result]
    command += ["--rounds", str(options.rounds), "--warmup", str(options.warmup)]
    command += ["--batch", str(options.batch), "--only", options.only]
    command += ["--collectives", str(options.collectives)]
    if options.hosts == 0:
        launch = [sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--"]
        return subprocess.run([*launch, *command]).returncode
    from herring_lab.emulate import Cluster
    from herring_lab.emulate.runner import Plan
    from herring_lab.emulate.runner import run as run_plan

    settings = {"GLOO_SOCKET_IFNAME": "eth0"}
    plan = Plan(command, options.hosts, options.hosts, timeout=900, settings=settings)
    with Cluster(plan.hosts, options.megabits * 1e6, QUEUE_SECONDS) as cluster:
        return run_plan(cluster, plan)


def main() -> int:
    """Runs the job and prints its medians, or runs as one worker of the job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("framework", choices=sorted(FRAMEWORKS))
    parser.add_argument("--hosts", type=int, default=8, help="number of workers, and of servers")
    parser.add_argument("--megabits", type=float, default=MEGABITS, help="Mbit/s of each link")
    parser.add_argument("--rounds", type=int, default=10, help="number of measured turns")
    parser.add_argument("--warmup", type=int, default=3, help="number of turns before those")
    parser.add_argument("--batch", type=int, default=8, help="rows of a step's input")
    parser.add_argument(
        "--collectives", type=float, default=0, metavar="MB", help="measure collectives, not steps"
    )
    parser.add_argument("--only", default="", help="run only steps whose name contains this text")
    parser.add_argument("--python", default=sys.executable, help="Python that has the framework")
    parser.add_argument("--json", metavar="FILE", help="write all seconds to FILE")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collectives and options.framework not in COLLECTIVES:
        parser.error(f"--collectives is supported for {', '.join(COLLECTIVES)} only")
    if options.result:
        work(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="herring-adapters-") as directory:
        result = os.path.join(directory, "seconds.json")
        status = run_job(options, result)
        if status != 0:
            return status
        found: dict[str, list[float]] = json.loads(pathlib.Path(result).read_text())
    arrays = statistics.median(found["arrays"]) if "arrays" in found else None
    for name, seconds in found.items():
        median = statistics.median(seconds)
        by = f"{median / arrays:6.3f} of arrays" if arrays else ""
        print(f"{name:<31} {median:8.4f} s  {min(seconds):.4f} to {max(seconds):.4f}  {by}")
    if options.json:
        write_results(options.json, {"seconds": found}, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
