"""Test cases of TensorFlow without Keras in partial rounds: eagerly, and in a tf.function."""

import os
import random
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import herring as core
import herring.tensorflow as herring

MODES = [
    {"sync": "solo"},
    {"sync": "majority", "digest_every": 2},
    {"sync": core.Quorum(2, staleness=1)},
    {"sync": "solo", "algorithm": "doubling"},
]


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def same_everywhere(variables):
    everyone = herring.allgather_object([one.numpy().tobytes() for one in variables])
    return all(one == everyone[0] for one in everyone)


def trainer(compiled, variables, gradients_of, apply, **mode):
    """Returns rounds, and a function of the number of a step that makes the step."""
    rounds = herring.Rounds(variables, apply, **mode)

    def step(number):
        rounds.step(gradients_of(number))

    return rounds, tf.function(step) if compiled else step


def test_replicas_are_equal(rank, size):
    for number, mode in enumerate(MODES * 2):
        weights, bias = tf.Variable(tf.zeros((3, 2))), tf.Variable(tf.zeros(2))
        momentum = [tf.Variable(tf.zeros_like(one)) for one in (weights, bias)]
        count = tf.Variable(0)

        def apply(averages, weights=weights, bias=bias, momentum=momentum, count=count):
            for one, before, average in zip((weights, bias), momentum, averages):
                before.assign(0.9 * before + average)
                one.assign_sub(0.1 * before)
            count.assign_add(1)

        def gradients_of(step, weights=weights, bias=bias):
            with tf.GradientTape() as tape:
                x = tf.random.stateless_normal((4, 3), tf.stack([step, rank]))
                loss = tf.reduce_mean((x @ weights + bias - x[:, :2]) ** 2)
            return tape.gradient(loss, [weights, bias])

        rounds, step = trainer(number < 4, [weights, bias], gradients_of, apply, **mode)
        delays, made = random.Random(rank), 0
        while rounds.round < 8 + 4 * rank:  # some flush while others make steps
            if delays.random() < 0.4:
                time.sleep(delays.random() * 0.02)
            step(tf.constant(made))
            made += 1
        rounds.flush()
        assert same_everywhere([weights, bias, *momentum, count]), mode
        assert set(herring.allgather_object(rounds.round)) == {rounds.round}
        assert rounds.round - 1 <= count.numpy() <= rounds.round


def test_nothing_is_lost(rank, size):
    """Gradients are whole numbers of other dtypes; one variable has none on some ranks."""
    for number, mode in enumerate(MODES * 2):
        dtypes = (tf.float64, tf.bfloat16, tf.complex64, tf.float32)
        variables = [tf.Variable(tf.zeros((2, 2), dtype)) for dtype in dtypes]

        def apply(averages, variables=variables):
            for one, average in zip(variables[:3], averages):
                one.assign_sub(average)
            assert averages[3] is None

        def gradients_of(step, variables=variables):
            value = tf.cast(1 + step % 2, tf.float32)
            found = [tf.cast(tf.fill((2, 2), value), one.dtype) for one in variables[:3]]
            return [*found[:2], None if rank else found[2], None]

        op = "sum" if number % 2 else "average"
        rounds, step = trainer(number < 4, variables, gradients_of, apply, op=op, **mode)
        steps = 2 + 2 * ((rank + number) % size)
        for made in range(steps):
            step(tf.constant(made))
        rounds.flush()
        everyone = herring.allgather_object(steps * 1.5)
        scale = 1 if op == "sum" else 1 / size
        for one, total in zip(variables, (sum(everyone), sum(everyone), everyone[0], 0)):
            found = one.numpy().astype(np.complex64)
            tolerance = 0.1 if one.dtype == tf.bfloat16 else 1e-5
            assert np.allclose(found, -total * scale, atol=tolerance), (found, total, mode)
        assert same_everywhere(variables), mode


def test_digests_find_a_replica_that_differs(rank, size):
    """The check would end the job, so that the case compares the digests directly."""
    from herring.partial import lists

    told = []
    compare, lists.digest_of = lists.digest_of, lambda arrays: told.append(compare(arrays)) or 1
    try:
        for compiled in (True, False):
            variable = tf.Variable([1.0 + 1e-6 * (rank == 1)])
            rounds, step = trainer(
                compiled,
                [variable],
                lambda _: [tf.ones(1)],
                lambda averages, variable=variable: variable.assign_sub(averages[0]),
                sync=core.Quorum(size),
                digest_every=2,
            )
            for made in range(4):
                step(tf.constant(made))
            rounds.flush()
            everyone = herring.allgather_object(told)
            assert len(everyone[0]) == 2 and everyone[0] == everyone[-1] != everyone[1], everyone
            told.clear()
    finally:
        lists.digest_of = compare


def test_refusals(rank, size):
    variable = tf.Variable([1.0])

    def make(**options):
        return herring.Rounds([variable], lambda averages: None, **{"sync": "solo", **options})

    refused = core.InvalidArgumentError
    raises(refused, "for sync='full' use", make, sync="full")
    raises(refused, "quorum is 9", make, sync=core.Quorum(9))
    raises(refused, "the algorithm", make, algorithm="snail")
    raises(refused, "op must be", make, op="max")
    rounds = make()
    raises(refused, "2 gradients for 1 variable", rounds.step, [tf.ones(1)] * 2)
    raises(refused, "is not for a tf.function", tf.function(rounds.flush))
    raises(Exception, "XLA", tf.function(rounds.step, jit_compile=True), [tf.ones(1)])
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        raises(refused, "tf.distribute", rounds.step, [tf.ones(1)])
    rounds.step([tf.ones(1)])
    rounds._variables.append(variable)
    raises(refused, "flush() on all ranks first", rounds.step, [tf.ones(1)] * 2)
    rounds._variables.pop()
    rounds.flush()
    raises(core.MismatchError, "op='sum'", make(op="sum" if rank else "average").step, [tf.ones(1)])


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
