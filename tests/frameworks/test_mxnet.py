"""herring.mxnet in real jobs: every case of mxnet_cases.py, and the example."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("needs mxnet", allow_module_level=True)

from cases import LAYOUTS, check, check_losses, jobs, listed, without

SCRIPT = "mxnet_cases.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", listed(SCRIPT))
@pytest.mark.timeout(900)
def test_case(layout: str, case: str) -> None:
    check(SCRIPT, layout, case)


@pytest.mark.timeout(300)
def test_example_equals_a_single_process() -> None:
    check_losses("mxnet_step.py", "weights of all ranks: bit-identical")


@pytest.mark.timeout(300)
def test_a_rank_dies() -> None:
    seconds, output = jobs().seconds_until_known(
        ["-n", "3", "--nodes", "3"],
        """
        import mxnet as mx
        import herring.mxnet
        herring.init()
        net = mx.gluon.nn.Dense(1, in_units=4)
        net.initialize()
        trainer = herring.mxnet.DistributedTrainer(net.collect_params(), "sgd")
        start = time.time()  # the others may learn of it in the step before
        try:
            for step in range(1000000):
                with mx.autograd.record():
                    loss = net(mx.nd.ones((2, 4)))
                loss.backward()
                if step == 20:
                    start = time.time()
                    if herring.rank() == int(os.environ["VICTIM"]):
                        os.kill(os.getpid(), signal.SIGKILL)
                trainer.step(2)
        except herring.PeerLostError as error:
            assert "rank 1" in str(error)
            print(f"learned in {time.time() - start:.2f} s", flush=True)
        """,
        victim=1,
        survivors=2,
    )
    assert seconds < 10, output


@pytest.mark.timeout(90)
def test_without_it() -> None:
    assert install_command("mxnet") in without("mxnet", "herring.mxnet")
