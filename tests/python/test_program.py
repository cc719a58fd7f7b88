"""A stack becomes a short text and a cause."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from herring.process.program import KNOWN_MODULES, Activity, Place, cause_of_call, describe

SITE = "/venv/lib/python3.12/site-packages"
STANDARD = sysconfig.get_paths()["stdlib"]
HERRING = describe.__code__.co_filename.removesuffix("/program.py")


def library(module: str, function: str, line: int = 7) -> Place:
    return Place(f"{SITE}/{module.replace('.', '/')}.py", line, function, module)


def standard(module: str, function: str, line: int = 7) -> Place:
    return Place(f"{STANDARD}/{module.replace('.', '/')}.py", line, function, module)


MAIN = Place("/home/me/train.py", 40, "main", "__main__")
TOP = Place("/home/me/train.py", 90, "<module>", "__main__")
LOADER = [
    standard("threading", "wait"),
    standard("queue", "get"),
    library("torch.utils.data.dataloader", "_try_get_data", 1234),
    library("torch.utils.data.dataloader", "__next__", 700),
]


def test_the_place_in_the_users_file_is_named() -> None:
    assert describe([MAIN, TOP]) == Activity("train.py:40 in main", "compute", False)
    assert describe([TOP]) == Activity("train.py:90", "compute", False)


def test_the_function_of_a_library_is_named_too() -> None:
    expected = "train.py:40 in main, inside torch/utils/data/dataloader.py:1234 _try_get_data"
    assert describe([*LOADER, MAIN, TOP]) == Activity(expected, "input", False)


def test_a_data_set_of_the_user_is_input() -> None:
    item = Place("/home/me/images.py", 12, "__getitem__", "images")
    fetch = library("torch.utils.data._utils.fetch", "fetch")
    assert describe([item, fetch, MAIN]) == Activity("images.py:12 in __getitem__", "input", False)
    decode = library("PIL.ImageFile", "load", 300)
    assert describe([decode, item, fetch, MAIN]).text == (
        "images.py:12 in __getitem__, inside PIL/ImageFile.py:300 load"
    )


@pytest.mark.parametrize(
    ("module", "function", "cause"),
    [
        ("tensorflow.python.data.ops.iterator_ops", "_next_internal", "input"),
        ("datasets.arrow_dataset", "_getitem", "input"),
        ("webdataset.tariterators", "tar_file_iterator", "input"),
        ("nvidia.dali.plugin.pytorch", "__next__", "input"),
        ("ffcv.loader.epoch_iterator", "__next__", "input"),
        ("petastorm.reader", "__next__", "input"),
        ("grain._src.python.data_loader", "__next__", "input"),
        ("numpy.lib.npyio", "load", "input"),
        ("numpy.lib.npyio", "save", "checkpoint"),
        ("numpy.lib.function_base", "median", "compute"),
        ("torch.serialization", "save", "checkpoint"),
        ("torch.distributed.checkpoint.state_dict_saver", "save", "checkpoint"),
        ("orbax.checkpoint._src.handlers.standard", "save", "checkpoint"),
        ("safetensors.torch", "save_file", "checkpoint"),
        ("keras.src.callbacks.model_checkpoint", "_save_model", "checkpoint"),
        ("transformers.trainer", "_save_checkpoint", "checkpoint"),
        ("transformers.trainer", "training_step", "compute"),
        ("transformers.trainer", "evaluate", "evaluation"),
        ("torch._dynamo.convert_frame", "_compile", "compile"),
        ("torch._dynamo.eval_frame", "compile_wrapper", "compute"),
        ("jax._src.compiler", "backend_compile", "compile"),
        ("jax._src.interpreters.partial_eval", "trace_to_jaxpr_dynamic", "compile"),
        ("jax._src.interpreters.partial_eval", "trace_to_jaxpr_nounits", "compute"),
        ("jax._src.pjit", "cache_miss", "compute"),
        ("torch.nn.modules.linear", "forward", "compute"),
    ],
)
def test_a_function_of_a_library_tells_the_cause(module: str, function: str, cause: str) -> None:
    assert describe([library(module, function), MAIN]).cause == cause


def test_the_standard_library_is_shown_as_the_user_has_called_it() -> None:
    copy = [standard("shutil", "copyfileobj"), standard("shutil", "copytree", 600)]
    found = describe([*copy, MAIN])
    assert found.cause == "checkpoint"
    run = [standard("selectors", "select"), standard("subprocess", "run", 548)]
    assert describe([*run, MAIN]).text == "train.py:40 in main, inside subprocess.py:548 run"


def test_the_innermost_cause_counts_and_files_count_last() -> None:
    save = library("torch.serialization", "save")
    fit = library("lightning.pytorch.loops.fetchers", "__next__")
    assert describe([save, fit, MAIN]).cause == "checkpoint"
    # A checkpoint in a bucket is not input, although it uses a library that reads data, too.
    assert describe([library("fsspec.spec", "flush"), save, MAIN]).cause == "checkpoint"
    assert describe([library("fsspec.spec", "read"), MAIN]).cause == "input"


def test_reading_data_for_an_evaluation_is_evaluation() -> None:
    evaluate = library("lightning.pytorch.loops.evaluation_loop", "run")
    assert describe([*LOADER, evaluate, MAIN]).cause == "evaluation"
    save = library("torch.serialization", "save")
    assert describe([save, evaluate, MAIN]).cause == "checkpoint"


def test_a_program_that_waits_for_herring_is_not_a_cause() -> None:
    wait = Place(f"{HERRING}/torch/reducer.py", 12, "wait", "herring.torch.reducer")
    backward = library("torch._tensor", "backward")
    assert describe([wait, backward, MAIN]) == Activity(
        "train.py:40 in main, inside Herring", "", True
    )
    # Herring has called the user's model here, and waits for nothing.
    model = Place("/home/me/model.py", 3, "forward", "model")
    assert describe([model, wait, MAIN]) == Activity("model.py:3 in forward", "compute", False)


def test_a_thread_that_waits_for_others_is_not_a_cause() -> None:
    found = describe([standard("threading", "wait"), standard("queue", "get", 171), MAIN])
    assert found == Activity("train.py:40 in main, inside queue.py:171 get", "", True)
    assert describe([]) == Activity("", "", True)


def test_a_users_file_with_the_name_of_a_library_is_the_users() -> None:
    mine = Place("/home/me/datasets.py", 5, "build", "datasets")
    assert describe([mine, MAIN]) == Activity("datasets.py:5 in build", "compute", False)


def test_cells_of_notebooks_are_the_users() -> None:
    kernel = [
        library("ipykernel.kernelbase", "dispatch_shell"),
        Place(f"{SITE}/ipykernel_launcher.py", 18, "<module>", "__main__"),
    ]
    for path in ("/tmp/ipykernel_12/345.py", "<ipython-input-3-abc>", "<command-12>"):
        cell = Place(path, 3, "<module>", "__main__")
        assert describe([cell, *kernel]).text == "cell:3"
    assert describe(kernel) == Activity("no cell of the notebook runs", "", True)


def test_a_program_without_files_of_its_own_has_a_text() -> None:
    launcher = Place("/venv/bin/mytrainer", 8, "<module>", "__main__")
    inner = library("mytrainer.loop", "step", 33)
    assert describe([inner, launcher]).text == "mytrainer:8, inside mytrainer/loop.py:33 step"
    assert describe([inner]).text == "mytrainer/loop.py:33 step"
    installed = Place(f"{SITE}/mytrainer/train.py", 8, "main", "__main__")
    assert describe([library("torch._C", "f"), installed, standard("runpy", "run")]).text == (
        "mytrainer/train.py:8 main, inside torch/_C.py:7 f"
    )


def test_a_function_in_c_tells_the_cause_in_the_line_that_calls_it() -> None:
    sync = Place("/home/me/train.py", 9, "store", "__main__", "os.fsync")
    assert describe([sync]) == Activity("train.py:9 in store, inside os.fsync", "checkpoint", False)
    assert cause_of_call("cv2.imread") == "input"
    assert cause_of_call("time.sleep") == ""


def test_the_table_names_modules_of_the_torch_that_is_installed() -> None:
    torch = pytest.importorskip("torch")
    root = Path(torch.__file__).parent.parent
    names = [name for name in KNOWN_MODULES if name.split(".")[0] == "torch"]
    assert len(names) > 10
    for name in names:
        path = root / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_texts_are_short_and_printable() -> None:
    place = Place("/home/me/tra\nin\udcff.py", 1, "f" * 500, "__main__")
    text = describe([place]).text
    assert text.startswith("tra?in?.py:1 in fff")
    assert len(text) == 240
    assert text.isprintable()
