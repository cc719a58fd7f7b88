"""What a program does, told from the places in its call stack: a short text, and a cause.

Everything here is pure. `herring.process.stacks` takes the stack of a running thread.

The text names the innermost place in the user's own files and, if the program is inside a library
there, a function of the library: ``train.py:40 in main, inside
torch/utils/data/dataloader.py:1234 _try_get_data``. The cause says why others might wait for this
program. A table of libraries decides it.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

COMPUTE, INPUT, CHECKPOINT = "compute", "input", "checkpoint"
COMPILE, EVALUATION = "compile", "evaluation"

# Modules whose functions tell the cause whenever they are on the stack; the innermost one decides.
# With names of functions, only these count. Names are those of modules in libraries: a user's own
# file called datasets.py does not match.
_TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    INPUT: {
        "accelerate.data_loader": (),
        "datasets": (),
        "ffcv": (),
        "grain": (),
        "keras.src.legacy.preprocessing": (),
        "keras.src.trainers.data_adapters": (),
        "keras.src.utils.audio_dataset_utils": (),
        "keras.src.utils.image_dataset_utils": (),
        "keras.src.utils.text_dataset_utils": (),
        "lightning.pytorch.loops.fetchers": (),
        "lightning.pytorch.utilities.combined_loader": (),
        "nvidia.dali": (),
        "petastorm": (),
        "pytorch_lightning.loops.fetchers": (),
        "pytorch_lightning.utilities.combined_loader": (),
        "ray.data": (),
        "streaming.base": (),
        "tensorflow.python.data": (),
        "tensorflow_datasets": (),
        "torch.utils.data": (),
        "torchdata": (),
        "torchvision.datasets": (),
        "torchvision.io": (),
        "transformers.data.data_collator": (),
        "webdataset": (),
        "wids": (),
    },
    CHECKPOINT: {
        "accelerate.checkpointing": (),
        "deepspeed.runtime.checkpoint_engine": (),
        "equinox._serialisation": (),
        "flax.training.checkpoints": (),
        "flax.training.orbax_utils": (),
        "joblib.numpy_pickle": ("dump",),
        "keras.src.callbacks.backup_and_restore": (),
        "keras.src.callbacks.model_checkpoint": (),
        "keras.src.saving": (),
        "lightning.fabric.plugins.io": (),
        "lightning.pytorch.callbacks.model_checkpoint": (),
        "lightning.pytorch.trainer.connectors.checkpoint_connector": (),
        "orbax": (),
        "pytorch_lightning.callbacks.model_checkpoint": (),
        "pytorch_lightning.trainer.connectors.checkpoint_connector": (),
        "safetensors": (),
        "tensorflow.python.checkpoint": (),
        "tensorflow.python.saved_model": (),
        "tensorflow.python.training.saver": (),
        "torch.distributed.checkpoint": (),
        "torch.distributed.checkpoint.state_dict": (),
        "torch.serialization": (),
        "torchsnapshot": (),
        "transformers.modeling_utils": ("from_pretrained", "save_pretrained"),
        "transformers.trainer": ("_load_from_checkpoint", "_save", "_save_checkpoint"),
    },
    COMPILE: {
        "jax._src.compiler": (),
        "jax._src.interpreters.mlir": (),
        "jax._src.interpreters.partial_eval": ("trace_to_jaxpr", "trace_to_jaxpr_dynamic"),
        "numba.core.compiler": (),
        "tensorflow.python.eager.polymorphic_function.tracing_compilation": (
            "_create_concrete_function",
            "_maybe_define_function",
            "trace_function",
        ),
        "tensorflow.python.framework.func_graph": ("func_graph_from_py_func",),
        # torch._dynamo.eval_frame is also on the stack while compiled code runs.
        "torch._dynamo.convert_frame": (),
        "torch._dynamo.output_graph": (),
        "torch._dynamo.symbolic_convert": (),
        "torch._inductor.async_compile": (),
        "torch._inductor.codegen": (),
        "torch._inductor.compile_fx": ("_compile_fx_inner", "compile_fx", "compile_fx_inner"),
        "torch._inductor.graph": (),
        "torch._inductor.scheduler": (),
        "torch._inductor.select_algorithm": (),
        "torch.jit._script": (),
        "torch.jit._trace": ("trace", "trace_module"),
        "torch.utils.cpp_extension": (),
        "triton.compiler": (),
        "triton.runtime.autotuner": ("_bench", "benchmark"),
    },
}
# What counts if nothing above is on the stack: it serves input as well as checkpoints.
_OTHERWISE: dict[str, dict[str, tuple[str, ...]]] = {
    INPUT: {
        "PIL": (),
        "av": (),
        "boto3": (),
        "botocore": (),
        "cv2": (),
        "decord": (),
        "fsspec": (),
        "gcsfs": (),
        "h5py": (),
        "http.client": (),
        "huggingface_hub": (),
        "imageio": (),
        "librosa": (),
        "numpy.lib._npyio_impl": ("fromregex", "genfromtxt", "load", "loadtxt"),
        "numpy.lib._format_impl": ("open_memmap", "read_array"),
        "numpy.lib.format": ("open_memmap", "read_array"),
        "numpy.lib.npyio": ("fromregex", "genfromtxt", "load", "loadtxt"),
        "pandas.io": (),
        "pyarrow": (),
        "requests": (),
        "s3fs": (),
        "skimage.io": (),
        "smart_open": (),
        "soundfile": (),
        "tarfile": (),
        "tensorflow.python.lib.io": (),
        "tokenizers": (),
        "transformers.tokenization_utils_base": (),
        "urllib.request": (),
        "zarr": (),
        "zipfile": (),
    },
    CHECKPOINT: {
        "numpy.lib._npyio_impl": ("save", "savetxt", "savez", "savez_compressed", "_savez"),
        "numpy.lib._format_impl": ("write_array",),
        "numpy.lib.format": ("write_array",),
        "numpy.lib.npyio": ("save", "savetxt", "savez", "savez_compressed", "_savez"),
        "shutil": (),
    },
}
# On top of reading input: only a library that evaluates by itself says so.
_EVALUATING: dict[str, dict[str, tuple[str, ...]]] = {
    EVALUATION: {
        "keras.src.backend.jax.trainer": ("evaluate",),
        "keras.src.backend.tensorflow.trainer": ("evaluate",),
        "keras.src.backend.torch.trainer": ("evaluate",),
        "lightning.pytorch.loops.evaluation_loop": (),
        "pytorch_lightning.loops.evaluation_loop": (),
        "pytorch_lightning.loops.dataloader.evaluation_loop": (),
        "transformers.trainer": ("evaluate", "evaluation_loop", "predict"),
        "transformers.trainer_seq2seq": ("evaluate",),
    },
}
# Functions in C have no place on the stack; the line that calls them tells.
_CALLS = {
    "_pickle.dump": CHECKPOINT,
    "_pickle.load": INPUT,
    "_pickle.loads": INPUT,
    "cv2.VideoCapture": INPUT,
    "cv2.imdecode": INPUT,
    "cv2.imread": INPUT,
    "marshal.load": INPUT,
    "numpy.fromfile": INPUT,
    "os.fdatasync": CHECKPOINT,
    "os.fsync": CHECKPOINT,
    "os.sync": CHECKPOINT,
    "pickle.dump": CHECKPOINT,
    "pickle.load": INPUT,
    "pickle.loads": INPUT,
    "posix.fdatasync": CHECKPOINT,
    "posix.fsync": CHECKPOINT,
    "posix.sync": CHECKPOINT,
}
# Whoever is inside one of these waits for another thread or process.
_WAITING = ("asyncio", "concurrent.futures", "queue", "selectors", "threading")
# Functions of libraries that only call others.
_GLUE = {
    "torch._dynamo.eval_frame",
    "torch.utils._contextlib",
    "torch.nn.modules.module",
    "torch._tensor",
    "torch.autograd.graph",
    "keras.src.utils.traceback_utils",
    "tensorflow.python.util.traceback_utils",
    "jax._src.traceback_util",
}
_GENERATED = ("/torchinductor_", "__autograph_generated_file")
_CELLS = re.compile(r"/ipykernel_\d+/|/\.ipykernel/\d+/|<ipython-input-|<command-")
_LONGEST = 240  # characters of a text

_Rows = dict[str, list[tuple[tuple[str, ...], str]]]


def _by_module(table: dict[str, dict[str, tuple[str, ...]]]) -> _Rows:
    rows: _Rows = {}
    for cause, modules in table.items():
        for module, functions in modules.items():
            rows.setdefault(module, []).append((functions, cause))
    return rows


_ROWS, _WEAK_ROWS, _EVALUATION_ROWS = map(_by_module, (_TABLE, _OTHERWISE, _EVALUATING))
# Modules of libraries whose functions tell a cause.
KNOWN_MODULES = frozenset({*_ROWS, *_WEAK_ROWS, *_EVALUATION_ROWS})
_PATHS = sysconfig.get_paths()
_STANDARD = tuple({os.path.join(_PATHS[key], "") for key in ("stdlib", "platstdlib")})
_PACKAGES = tuple({os.path.join(_PATHS[key], "") for key in ("purelib", "platlib")})
_HERRING = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SITES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Place:
    """A line in a function that is on the stack.

    Attributes:
      path: The file.
      line: The line in it.
      function: The function's name.
      module: The name of the module in which it runs.
      calls: The full name of the function in C that it calls, as far as `cause_of_call` knows it.
    """

    path: str
    line: int
    function: str
    module: str = ""
    calls: str = ""

    @property
    def is_herring(self) -> bool:
        """Whether this is Herring's own code."""
        return self.path.startswith(_HERRING)

    @property
    def is_standard(self) -> bool:
        """Whether this is Python's standard library."""
        frozen = self.path.startswith("<frozen ")
        return frozen or (self.path.startswith(_STANDARD) and not self._in_site())

    @property
    def is_users(self) -> bool:
        """Whether this is the user's own code."""
        if _CELLS.search(self.path):
            return True
        if self.path.startswith("<"):
            return self.module == "__main__"
        library = self.is_herring or self.is_standard or self._in_site()
        return not library and not any(mark in self.path for mark in _GENERATED)

    def _in_site(self) -> bool:
        return self.path.startswith(_PACKAGES) or any(site in self.path for site in _SITES)

    def __str__(self) -> str:
        """Returns "train.py:40 in load", or for a library "torch/serialization.py:900 save"."""
        if self.is_users:
            name = "cell" if _CELLS.search(self.path) else os.path.basename(self.path)
            inside = "" if self.function == "<module>" else f" in {self.function}"
            return f"{name}:{self.line}{inside}"
        path = self.path
        for root in (*_SITES, *_PACKAGES, *_STANDARD):
            path = path.rpartition(root)[2]
        return f"{path}:{self.line} {self.function}"


@dataclass(frozen=True)
class Activity:
    """What a thread does.

    Attributes:
      text: Where it is.
      cause: "compute", "input", "checkpoint", "compile" or "evaluation"; empty if it waits.
      waits: Whether it waits for Herring or for another thread.
    """

    text: str = ""
    cause: str = ""
    waits: bool = True


def cause_of_call(name: str) -> str:
    """Returns the cause that a call of a function in C tells, such as "os.fsync"; or nothing."""
    return _CALLS.get(name, "")


def describe(places: Sequence[Place]) -> Activity:
    """Returns what a thread does.

    Args:
      places: Its stack, the innermost place first.
    """
    if not places:
        return Activity()
    users = next((i for i, place in enumerate(places) if place.is_users), None)
    if users is None:
        if any(place.module.startswith("ipykernel.") for place in places):
            return Activity("no cell of the notebook runs")
        # An installed program, such as `python -m tool`.
        users = next((i for i, place in enumerate(places) if place.module == "__main__"), None)
    inner = places if users is None else places[:users]
    called = next((place for place in inner if not place.is_standard), None)
    if called is not None and called.is_herring:
        return Activity(_text(places, users, "Herring"))
    found = _find(places, _ROWS) or _find(places, _WEAK_ROWS)
    cause, matched = found or (COMPUTE, None)
    if cause in (COMPUTE, INPUT) and (evaluates := _find(places, _EVALUATION_ROWS)):
        cause, matched = evaluates[0], matched or evaluates[1]
    inside = _notable(inner, matched)
    if not found and users == 0 and (by_call := cause_of_call(places[0].calls)):
        cause = by_call if cause == COMPUTE else cause
        inside = places[0].calls
    waits = cause == COMPUTE and _within(places[0].module, _WAITING)
    return Activity(_text(places, users, inside), "" if waits else cause, waits)


def _find(places: Sequence[Place], rows: _Rows) -> tuple[str, Place] | None:
    """Returns the cause that the innermost known library function tells, and its place."""
    for place in places:
        if place.is_users or place.is_herring:
            continue
        module = place.module
        while module:
            for functions, cause in rows.get(module, ()):
                if not functions or place.function in functions:
                    return cause, place
            module = module.rpartition(".")[0]
    return None


def _notable(inner: Sequence[Place], matched: Place | None) -> str:
    """Returns the function that tells most of those that the user's code has called."""
    if matched in inner and matched is not None:
        package = matched.module.partition(".")[0]
        return str(next(place for place in inner if place.module.partition(".")[0] == package))
    for place in inner:
        if not place.is_standard and place.module not in _GLUE:
            return str(place)
    # In the standard library it is the function that the user's code has called itself.
    return str(inner[-1]) if inner and inner[-1].is_standard else ""


def _text(places: Sequence[Place], users: int | None, inside: str) -> str:
    if users is None:
        text = inside or str(places[0])
    else:
        text = f"{places[users]}, inside {inside}" if inside else str(places[users])
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _within(module: str, parents: Sequence[str]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)
