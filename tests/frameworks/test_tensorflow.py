"""Tests herring.tensorflow in real jobs: every case of tensorflow_cases.py, and the example."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from herring.base.parts import install_command

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("needs tensorflow", allow_module_level=True)

from cases import LAYOUTS, check, check_losses, jobs, listed, without

SCRIPT, OF_ROUNDS = "tensorflow_cases.py", "tensorflow_rounds_cases.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", listed(SCRIPT))
def test_case(layout: str, case: str) -> None:
    check(SCRIPT, layout, case)


@pytest.mark.parametrize("case", listed(OF_ROUNDS))
def test_partial_rounds(case: str) -> None:
    check(OF_ROUNDS, "three-nodes", case)


def test_without_operations() -> None:
    """Without Herring's operations, which TensorFlow may not load, tf.numpy_function is used."""
    for case in listed(SCRIPT):
        check(SCRIPT, "two-nodes", case, HERRING_TENSORFLOW_IMPL="function")
    for case in listed(OF_ROUNDS):
        check(OF_ROUNDS, "three-nodes", case, HERRING_TENSORFLOW_IMPL="function")


def test_example_equals_a_single_process() -> None:
    check_losses("tensorflow_step.py", "variables of all ranks: bit-identical")


def test_alone() -> None:
    """A job of one rank exchanges nothing, so XLA may compile its step."""
    code = """
        import tensorflow as tf
        import herring.tensorflow
        herring.init()
        v = tf.Variable(2.0)
        @tf.function(jit_compile=True)
        def step():
            with tf.GradientTape() as tape:
                loss = v * v
            return herring.tensorflow.DistributedGradientTape(tape).gradient(loss, [v])
        assert step()[0].numpy() == 4
    """
    jobs().expect_success(jobs().run_job(["-n", "1"], code, TF_CPP_MIN_LOG_LEVEL="3"))


def test_the_optimizer_of_keras_is_still_there_with_a_warning() -> None:
    code = """
        import pytest
        import herring.keras
        import herring.tensorflow
        with pytest.warns(DeprecationWarning, match="is herring.keras.DistributedOptimizer"):
            optimizer = herring.tensorflow.DistributedOptimizer
        assert optimizer is herring.keras.DistributedOptimizer
        with pytest.raises(AttributeError, match="it is in herring itself"):
            herring.tensorflow.gather
        """
    jobs().expect_success(jobs().run_job(["-n", "1"], code, TF_CPP_MIN_LOG_LEVEL="3"))


def test_threads_wait_in_any_order() -> None:
    """TensorFlow has one thread for operations, and ranks call in different orders."""
    code = """
        import threading
        import tensorflow as tf
        import herring.tensorflow as herring
        tf.config.threading.set_inter_op_parallelism_threads(1)
        herring.init()
        rank, failed = herring.rank(), []

        def work(number):
            try:
                call = tf.function(lambda x: herring.allreduce(x, name=f"from {number}"))
                for step in range(20):
                    assert np.allclose(call(tf.fill([20000], rank + step * 1.0)), step + 0.5)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads if rank == 0 else reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        """
    jobs().expect_success(jobs().run_job(["-n", "2"], code, TF_CPP_MIN_LOG_LEVEL="3"))


def test_a_rank_dies() -> None:
    jobs().expect_known(
        ["-n", "3", "--nodes", "3"],
        """
        import tensorflow as tf
        import herring.tensorflow
        herring.init()
        v = tf.Variable(tf.ones([1000]))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * v)
            return herring.tensorflow.DistributedGradientTape(tape).gradient(loss, [v])

        step()
        try:
            for i in range(1000000):
                if i == 20 and herring.rank() == int(os.environ["VICTIM"]):
                    os.kill(os.getpid(), signal.SIGKILL)
                step()
        except tf.errors.OpError as error:
            assert "PeerLostError" in str(error) and "rank 1" in str(error), error
            print("has learned of it", flush=True)
        """,
        victim=1,
        survivors=2,
        TF_CPP_MIN_LOG_LEVEL="3",
    )


def test_without_it() -> None:
    assert install_command("tensorflow") in without("tensorflow", "herring.tensorflow")


def test_herring_imports_no_framework() -> None:
    code = (
        "import herring, sys; herring.allreduce; "
        "assert not {'tensorflow', 'keras', 'torch', 'jax'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_copies_of_a_gpus_tensors_are_said_once_for_each_operation() -> None:
    """Objects that claim to be tensors on a GPU take the place of real ones."""
    code = """
        import types
        import tensorflow as tf
        import herring.tensorflow as ht
        from herring.horovod import tensorflow as hvd
        from herring.tensorflow import copies

        def on(device, **more):
            return types.SimpleNamespace(device=device, **more)

        gpu = on("/job:localhost/replica:0/task:0/device:GPU:1")
        cpu = tf.constant([1.0])
        assert copies._gpu_of([None, cpu, gpu]) == "GPU:1"
        assert copies._gpu_of([types.SimpleNamespace(value=gpu)]) == "GPU:1"  # Keras'
        assert copies._gpu_of([None, cpu, tf.Variable(1.0), tf.IndexedSlices(cpu, [0])]) == ""
        assert copies._gpu_of([on("")]) == ""
        copies._gpus = lambda: ["GPU:0"]  # TensorFlow will place it
        assert copies._gpu_of([on("")]) == "GPU:0" and copies._gpu_of([cpu]) == ""
        copies._gpu_of = lambda tensors: "GPU:0"

        ht.init()
        v = tf.Variable([1.0, 2.0])
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * v)
            return ht.DistributedGradientTape(tape).gradient(loss, [v])
        for _ in range(3):
            step()
            tf.function(step)()
            for call in (ht.allreduce, ht.broadcast, ht.allgather, hvd.allreduce):
                call(cpu)
            ht.broadcast_variables([v])
        ht.shutdown()
    """
    said = jobs().expect_success(jobs().run_job(["-n", "2"], code, TF_CPP_MIN_LOG_LEVEL="3"))
    for what in (
        "herring.tensorflow.allreduce",
        "herring.tensorflow.broadcast",
        "herring.tensorflow.allgather",
        "herring.tensorflow.broadcast_variables",
        "herring.tensorflow, averages of gradients",
        "hvd.allreduce",
    ):
        assert said.count(f"{what}: tensors on GPU:0 are copied to host memory") == 2, said
