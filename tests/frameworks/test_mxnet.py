"""Tests herring.mxnet in real jobs: every case of mxnet_cases.py, and the example."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("needs mxnet", allow_module_level=True)

from cases import HERE, LAYOUTS, check, check_losses, jobs, listed, without

SCRIPT = "mxnet_cases.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", listed(SCRIPT))
def test_case(layout: str, case: str) -> None:
    check(SCRIPT, layout, case)


def test_example_equals_a_single_process() -> None:
    check_losses("mxnet_step.py", "weights of all ranks: bit-identical")


def test_a_rank_dies() -> None:
    jobs().expect_known(
        ["-n", "3", "--nodes", "3"],
        jobs().program("mxnet_death", folder=HERE / "programs"),
        victim=1,
        survivors=2,
    )


def test_copies_of_a_gpus_arrays_are_said_once_for_each_operation() -> None:
    """Arrays of the CPU claim to be on a GPU."""
    code = """
        import mxnet as mx
        import herring.mxnet as hm
        from herring.horovod import mxnet as hvd
        from herring.mxnet import arrays

        array = mx.nd.ones((2,))
        assert arrays._gpu_of(array) == ""
        arrays._gpu_of = lambda array: "gpu(0)"
        hm.init()
        net = mx.gluon.nn.Dense(2, in_units=2)
        net.initialize()
        trainer = hm.DistributedTrainer(net.collect_params(), "sgd")
        for _ in range(3):
            hm.broadcast_parameters(net.collect_params())
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 2)))
            loss.backward()
            trainer.step(1)
            store = hm.KVStore()
            store.broadcast(0, array, array)
            store.pushpull(0, array)
            hvd.allreduce(array)
        hm.shutdown()
    """
    said = jobs().expect_success(jobs().run_job(["-n", "2"], code))
    for what in (
        "herring.mxnet.broadcast_parameters",
        "herring.mxnet.DistributedTrainer",
        "herring.mxnet.KVStore.broadcast",
        "herring.mxnet.KVStore.pushpull",
        "hvd.allreduce",
    ):
        assert said.count(f"{what}: arrays on gpu(0) are copied to host memory") == 2, said


def test_without_it() -> None:
    assert install_command("mxnet") in without("mxnet", "herring.mxnet")
