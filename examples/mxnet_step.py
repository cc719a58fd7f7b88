"""Trains a linear model with MXNet Gluon on any number of workers to add up its inputs.

herring run -n 2 -- python examples/mxnet_step.py
"""

import mxnet as mx
import numpy as np

import herring.mxnet as herring

BATCH = 48  # Samples per step, of all workers together.


def main() -> None:
    herring.init()
    rank, size = herring.rank(), herring.size()
    mx.random.seed(rank)  # Each worker starts with different weights.
    net = mx.gluon.nn.Dense(1, in_units=10)
    net.initialize(mx.init.Normal(0.1))
    herring.broadcast_parameters(net.collect_params())
    trainer = herring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
    loss_function = mx.gluon.loss.L2Loss()
    random = np.random.default_rng(0)
    for step in range(60):
        inputs = random.normal(size=(BATCH, 10)).astype(np.float32)
        mine = mx.nd.array(inputs[rank * BATCH // size : (rank + 1) * BATCH // size])
        with mx.autograd.record():
            loss = loss_function(net(mine), mine.sum(axis=1, keepdims=True))
        loss.backward()
        trainer.step(len(mine))
        mean = herring.allreduce(loss.mean().asnumpy())
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {mean[0]:.2e}")
    weights = net.weight.data().asnumpy().tobytes()
    if rank == 0:
        print("weights of all ranks: ", end="")
    same = len(set(herring.allgather_object(weights))) == 1
    if rank == 0:
        print("bit-identical" if same else "different")


if __name__ == "__main__":
    main()
