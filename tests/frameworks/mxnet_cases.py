"""Cases of MXNet, which test_mxnet.py runs on every rank."""

import sys

import mxnet as mx
import numpy as np

import herring.mxnet as herring


def network(seed=1):
    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(8, in_units=6, activation="tanh"))
        net.add(mx.gluon.nn.Dense(1, in_units=8))
    net.initialize(mx.init.Normal(0.3), force_reinit=True)
    return net


def values(net):
    params = net.collect_params()
    return [params[key].data().asnumpy() for key in sorted(params)]


def same_everywhere(arrays):
    digests = herring.allgather_object([a.tobytes() for a in arrays])
    return all(d == digests[0] for d in digests)


def close(left, right, tolerance=1e-5):
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right))


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def batches(rank, size, rows=24, steps=5):
    random = np.random.default_rng(0)
    for _ in range(steps):
        x = random.normal(size=(rows, 6)).astype(np.float32)
        yield mx.nd.array(x[rank * rows // size : (rank + 1) * rows // size])


def train(net, trainer, data, batch):
    for x in data:
        with mx.autograd.record():
            loss = mx.nd.square(net(x) - x.sum(axis=1, keepdims=True))
        loss.backward()
        trainer.step(batch or len(x))


def test_equals_one_process(rank, size):
    for options in ({"momentum": 0.9}, {"wd": 0.01}):
        options = {"learning_rate": 0.05, **options}
        reference = network()
        trainer = mx.gluon.Trainer(reference.collect_params(), "sgd", options, kvstore=None)
        train(reference, trainer, batches(0, 1), None)
        net = network(seed=rank)
        start = network()
        for key, param in net.collect_params().items():
            if rank == 0:
                param.set_data(start.collect_params()[key].data())
        herring.broadcast_parameters(net.collect_params())
        assert same_everywhere(values(net))
        trainer = herring.DistributedTrainer(net.collect_params(), "sgd", options)
        train(net, trainer, batches(rank, size), None)
        assert same_everywhere(values(net)) and close(values(net), values(reference))


class Crossed(mx.gluon.HybridBlock):
    """A block that uses its layers in another order than it lists them, and one layer twice."""

    def __init__(self):
        super().__init__(prefix="crossed_")
        with self.name_scope():
            for name in ("third", "shared", "first", "unused"):
                setattr(self, name, mx.gluon.nn.Dense(6, in_units=6, use_bias=False, prefix=name))

    def hybrid_forward(self, F, x):  # noqa: N803
        return self.shared(self.third(self.shared(self.first(x))))


def test_order_of_gradients(rank, size):
    for hybrid in (False, True):
        net = Crossed()
        net.initialize(mx.init.Normal(0.3), force_reinit=True)
        net.unused.weight.grad_req = "null"
        if hybrid:
            net.hybridize()
        if rank == 1:  # Only rank 0's order counts.
            net(mx.nd.ones((1, 6)))
        herring.broadcast_parameters(net.collect_params())
        trainer = herring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        train(net, trainer, batches(rank, size), None)
        (rounds,) = trainer._herring_rounds.values()
        order = [rounds.sources[i].name for i in rounds.order]
        assert [name.split("_")[1] for name in order] == [
            "thirdweight",
            "sharedweight",
            "firstweight",
        ]
        assert not any("data" in vars(one) for one in net.collect_params().values())
        assert same_everywhere([one.data().asnumpy() for one in net.collect_params().values()])


def test_kvstore(rank, size):
    reference = network()
    options = {"learning_rate": 0.05}
    trainer = mx.gluon.Trainer(reference.collect_params(), "sgd", options, kvstore=None)
    train(reference, trainer, batches(0, 1), None)
    for store in (herring.KVStore(), "dist_herring"):
        net = network(seed=1 if rank == 0 else 5)
        herring.broadcast_parameters(net.collect_params())  # a store does it only after one pass
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store)
        train(net, trainer, batches(rank, size), 24)
        assert same_everywhere(values(net)) and close(values(net), values(reference))


def test_unused_parameters(rank, size):
    nets = [mx.gluon.nn.Dense(1, in_units=6, prefix=f"head{i}_") for i in range(3)]
    params = mx.gluon.ParameterDict()
    for net in nets:
        net.initialize(mx.init.One(), force_reinit=True)
        params.update(net.collect_params())
    trainer = herring.DistributedTrainer(params, "sgd", {"learning_rate": 0.05, "wd": 0.1})
    for x in batches(rank, size, steps=2):
        with mx.autograd.record():
            y = nets[0](x) + (nets[1](x) if rank == 0 else 0)
        y.backward()
        trainer.step(len(x), ignore_stale_grad=True)
    assert same_everywhere([v for net in nets for v in values(net)])
    assert (values(nets[2])[1] == 1).all() and (values(nets[1])[1] != 1).any()


def test_groups_and_two_trainers(rank, size):
    alone = herring.new_group([rank])
    first, second, mine, reference = (network() for _ in range(4))
    options = {"learning_rate": 0.05}
    trainers = [
        herring.DistributedTrainer(net.collect_params(), "sgd", options) for net in (first, second)
    ]
    for x in batches(rank, size):
        for net, trainer in zip((first, second), trainers):
            train(net, trainer, [x], None)
    assert same_everywhere(values(first) + values(second))
    trainer = herring.DistributedTrainer(mine.collect_params(), "sgd", options, group=alone)
    train(mine, trainer, batches(rank, size), None)
    trainer = mx.gluon.Trainer(reference.collect_params(), "sgd", options, kvstore=None)
    train(reference, trainer, batches(rank, size), None)
    assert close(values(mine), values(reference), 0)


def test_refusals(rank, size):
    net = mx.gluon.nn.Dense(1)
    net.initialize()
    params = net.collect_params()
    raises(herring.InvalidArgumentError, "no values", herring.broadcast_parameters, params)
    embedding = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    embedding.initialize()
    raises(
        herring.InvalidArgumentError,
        "sparse_grad=False",
        herring.DistributedTrainer,
        embedding.collect_params(),
        "sgd",
    )


def test_errors_of_a_backward_pass(rank, size):
    """MXNet raises the errors of its operators where results are waited for."""
    for store in (False, True):
        net = network()
        params = net.collect_params()
        if store:
            store = herring.KVStore()
            trainer = mx.gluon.Trainer(params, "sgd", kvstore=store, update_on_kvstore=False)
        else:
            trainer = herring.DistributedTrainer(params, "sgd", {"learning_rate": 0.05})
        with mx.autograd.record():
            loss = net(mx.nd.random.normal(0, -1, (8, 6))).sum()
        loss.backward()
        raises(mx.MXNetError, "scale > 0", trainer.step, 8)


def test_arrays_like_numpys(rank, size):
    mx.npx.set_np()
    try:
        net = mx.gluon.nn.Dense(2, in_units=3)
        net.initialize()
        net.weight.set_data(mx.np.full((2, 3), rank + 1))
        table = {"x": mx.np.ones(2) * rank}
        for params in (net.collect_params(), table):
            herring.broadcast_parameters(params, 1)
        assert (net.weight.data().asnumpy() == 2).all() and table["x"].tolist() == [1, 1]
        assert isinstance(table["x"], mx.np.ndarray)
        trainer = herring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1})
        with mx.autograd.record():
            loss = net(mx.np.ones((4, 3)) * (rank + 1)).sum()
        loss.backward()
        trainer.step(4)
        assert np.allclose(net.weight.data().asnumpy(), 2 - (size + 1) / 2)
    finally:
        mx.npx.reset_np()


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
