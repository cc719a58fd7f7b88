"""Makes ``import horovod`` import Herring's modules instead of Horovod's.

    import herring.horovod.aliases
    herring.horovod.aliases.install()

``horovod.X`` is then the module ``herring.horovod.X`` itself, even if Horovod is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from herring.horovod.common.exceptions import NotSupportedError

_OURS = "herring.horovod"
_THEIRS = "horovod"
_OTHERS = {
    "spark": "start the script with torchrun, mpirun or srun",
    "ray": "start the script with torchrun, mpirun or srun",
    "runner": "Herring has horovod.run and only a few helpers of horovod.runner; start the script "
    "with 'herring run -n N -- python ...'",
}


class _Alias(Loader):
    """Loads one of Herring's modules under the name of Horovod's module."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns Herring's module."""
        self._spec: ModuleSpec | None = None
        module = importlib.import_module(_OURS + spec.name.removeprefix(_THEIRS))
        self._spec = module.__spec__  # Importing it under another name replaces it for a moment.
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own spec; the module itself was executed when it was imported."""
        spec = module.__spec__ = self._spec
        if spec is not None:
            module.__loader__ = spec.loader
            module.__package__ = spec.name if spec.submodule_search_locations else spec.parent


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the modules "horovod" and "horovod.X"."""
        first, _, rest = fullname.partition(".")
        if first != _THEIRS:
            return None
        if importlib.util.find_spec(_OURS + fullname.removeprefix(_THEIRS)) is None:
            other = rest.partition(".")[0]
            if other not in _OTHERS:
                return None
            raise ModuleNotFoundError(
                f"{fullname} is not supported: {_OTHERS[other]}", name=fullname
            )
        return ModuleSpec(fullname, _Alias())


def install() -> None:
    """Makes ``import horovod`` import Herring's modules from now on; a second call does nothing.

    Raises:
      NotSupportedError: Horovod itself is already imported.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    there = sys.modules.get(_THEIRS)
    if there is not None and there is not sys.modules[_OURS]:
        raise NotSupportedError(
            "horovod itself was imported before herring.horovod.aliases.install()"
        )
    sys.meta_path.insert(0, _Finder())
