"""Test cases of JAX in partial rounds: outside of programs, and in compiled ones."""

import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import herring
import herring.jax

MODES = [
    {"sync": "solo"},
    {"sync": "majority", "digest_every": 2},
    {"sync": herring.Quorum(2, staleness=1)},
    {"sync": "solo", "algorithm": "doubling"},
]


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def same_everywhere(tree):
    everyone = herring.allgather_object(
        [np.asarray(one).tobytes() for one in jax.tree.leaves(tree)]
    )
    return all(one == everyone[0] for one in everyone)


def loss(parameters, step, rank):
    x = jax.random.normal(jax.random.fold_in(jax.random.key(rank), step), (4, 3))
    return jnp.mean((x @ parameters["weights"] + parameters["bias"] - x[:, :2]) ** 2)


def test_replicas_are_equal(rank, size):
    for number, mode in enumerate(MODES * 2):
        schedule = optax.exponential_decay(0.1, 5, 0.5)
        inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
        rounds = herring.jax.Rounds(inner, **mode)
        parameters = {"weights": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
        state = rounds.init(parameters)

        def step(parameters, state, made, rounds=rounds):
            gradients = jax.grad(loss)(parameters, made, rank)
            return rounds.apply(gradients, state, parameters)

        if number < 4:
            step = jax.jit(step)
        delays, made = random.Random(rank), 0
        while rounds.round < 8 + 4 * rank:  # some flush while others make steps
            if delays.random() < 0.4:
                time.sleep(delays.random() * 0.02)
            parameters, state = step(parameters, state, made)
            made += 1
        parameters, state = rounds.flush(state, parameters)
        assert same_everywhere((parameters, state)), mode
        assert set(herring.allgather_object(rounds.round)) == {rounds.round}
        steps = int(state[1][0].count)  # of Adam, whose schedule counts rounds
        assert rounds.round - 1 <= steps <= rounds.round, (steps, rounds.round)


def test_steps_of_missed_rounds_are_made_one_by_one(rank, size):
    """Updates of several rounds have the bits of steps one by one, which their total has not."""
    rounds = herring.jax.Rounds(optax.sgd(1.0), sync=herring.Quorum(1, staleness=8), op="sum")
    parameters = {"w": jnp.ones(1)}
    state = rounds.init(parameters)
    step = jax.jit(lambda p, s, g: rounds.apply({"w": g}, s, p))
    values = [1.0, -0.001234567, 1e-8]
    parameters, state = step(parameters, state, jnp.zeros(1))  # which waits for all ranks
    herring.barrier()
    if rank == 0:
        for value in values:
            parameters, state = step(parameters, state, jnp.full(1, value))
        jax.block_until_ready(parameters)
    herring.barrier()
    parameters, state = step(parameters, state, jnp.zeros(1))
    parameters, state = rounds.flush(state, parameters)
    expected = np.float32(1)
    for value in values:
        expected = np.float32(expected - np.float32(value))
    assert np.asarray(parameters["w"]) == expected, (parameters, expected)
    assert same_everywhere(parameters)


def test_nothing_is_lost(rank, size):
    dtypes = [jnp.float32, jnp.bfloat16, jnp.complex64]
    for number, mode in enumerate(MODES * 2):
        op = "sum" if number % 2 else "average"
        rounds = herring.jax.Rounds(optax.sgd(1.0), op=op, **mode)
        parameters = [jnp.zeros((2, 2), dtype) for dtype in dtypes]
        state = rounds.init(parameters)

        def step(parameters, state, value, rounds=rounds):
            gradients = [jnp.full_like(one, value) for one in parameters]
            return rounds.apply(gradients, state, parameters)

        if number < 4:
            step = jax.jit(step)
        steps = 2 + 2 * ((rank + number) % size)
        for made in range(steps):
            parameters, state = step(parameters, state, float(1 + made % 2))
        parameters, state = rounds.flush(state, parameters)
        total = sum(herring.allgather_object(steps * 1.5)) / (1 if op == "sum" else size)
        for one in parameters:
            tolerance = 0.1 if one.dtype == jnp.bfloat16 else 1e-5
            assert np.allclose(one.astype(jnp.complex64), -total, atol=tolerance), (one, total)
        assert same_everywhere(parameters)


def test_digests_find_a_replica_that_differs(rank, size):
    """The check would end the job, so that the case compares the digests directly."""
    from herring.partial import lists

    told = []
    compare, lists.digest_of = lists.digest_of, lambda arrays: told.append(compare(arrays)) or 1
    try:
        for compiled in (True, False):
            everybody = herring.Quorum(size)
            rounds = herring.jax.Rounds(optax.sgd(1.0), sync=everybody, digest_every=2)
            parameters = jnp.array([1.0 + 1e-6 * (rank == 1)])
            state = rounds.init(parameters)
            step = jax.jit(rounds.apply) if compiled else rounds.apply
            for _ in range(4):
                parameters, state = step(jnp.ones(1), state, parameters)
            rounds.flush(state, parameters)
            everyone = herring.allgather_object(told)
            assert len(everyone[0]) == 2 and everyone[0] == everyone[-1] != everyone[1], everyone
            told.clear()
    finally:
        lists.digest_of = compare


def test_refusals(rank, size):
    def make(optimizer=None, **options):
        return herring.jax.Rounds(optimizer or optax.sgd(0.1), **{"sync": "solo", **options})

    refused = herring.InvalidArgumentError
    raises(refused, "for sync='full' use", make, sync="full")
    raises(refused, "must be an optax.GradientTransformation", make, "adam")
    raises(refused, "quorum is 9", make, sync=herring.Quorum(9))
    raises(refused, "the algorithm", make, algorithm="snail")
    raises(refused, "op must be", make, op="max")
    rounds = make()
    parameters = {"a": jnp.ones(2)}
    state = rounds.init(parameters)
    raises(refused, "the gradients are", rounds.apply, {"b": jnp.ones(2)}, state, parameters)
    raises(refused, "has shape (3,)", rounds.apply, {"a": jnp.ones(3)}, state, parameters)
    raises(refused, "not for a compiled program", jax.jit(rounds.flush), state, parameters)
    whole = {"a": jnp.ones(2, jnp.int32)}
    raises(refused, "is int32", rounds.apply, whole, state, whole)
    disagreeing = make(op="sum" if rank else "average")
    raises(herring.MismatchError, "op='sum'", disagreeing.apply, parameters, state, parameters)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
