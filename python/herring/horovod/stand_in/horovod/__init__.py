"""Stands in for Horovod: with this folder's parent in PYTHONPATH ``import horovod`` is Herring."""

import sys

from herring.horovod.aliases import install

del sys.modules[__name__]
install()
import horovod  # type: ignore[import-not-found]  # noqa: E402

sys.modules[__name__] = horovod
