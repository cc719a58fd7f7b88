"""A rank is killed before a step of its trainer; the other ranks print when they learn of it."""

import os
import signal

import mxnet as mx

import herring
import herring.mxnet

herring.init()
net = mx.gluon.nn.Dense(1, in_units=4)
net.initialize()
trainer = herring.mxnet.DistributedTrainer(net.collect_params(), "sgd")
try:
    for step in range(1000000):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 4)))
        loss.backward()
        if step == 20 and herring.rank() == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(2)
except herring.PeerLostError as error:
    assert "rank 1" in str(error)
    print("has learned of it", flush=True)
