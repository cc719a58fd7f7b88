"""A script for Gluon as Horovod's users write it, on synthetic digits."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

# Horovod: initialize Horovod.
hvd.init()
context = mx.cpu(hvd.local_rank())

rng = np.random.default_rng(0)
centers = rng.normal(size=(10, 64)).astype(np.float32)
labels = rng.integers(0, 10, 640).astype(np.float32)
images = centers[labels.astype(int)] + rng.normal(size=(640, 64)).astype(np.float32) / 2
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
train_data = mx.io.NDArrayIter(images, labels, batch_size=32)

net = nn.HybridSequential()
net.add(nn.Dense(32, activation="relu"), nn.Dense(10))
net.hybridize()
net.initialize(mx.init.Xavier(), ctx=context)

# Horovod: fetch and broadcast parameters.
params = net.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)

# Horovod: create DistributedTrainer, a subclass of gluon.Trainer.
optimizer_params = {"momentum": 0.9, "learning_rate": 0.02 * hvd.size()}
opt = mx.optimizer.create("sgd", **optimizer_params)
trainer = hvd.DistributedTrainer(params, opt)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

losses = []
for _epoch in range(4):
    train_data.reset()
    total = 0.0
    for batch in train_data:
        data, label = (one[0].as_in_context(context) for one in (batch.data, batch.label))
        with autograd.record():
            output = net(data.astype("float32", copy=False))
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(32)
        total += float(loss.mean().asscalar())
    losses.append(hvd.allreduce(mx.nd.array([total]), name="loss").asscalar())

everyone = hvd.allgather_object([params[key].data().asnumpy().tobytes() for key in sorted(params)])
assert everyone[0] == everyone[-1]
if hvd.rank() == 0:
    assert losses[-1] < losses[0] / 2, losses
    print("weights of all ranks are the same")
