"""Makes ``import horovod`` import Herring when this folder's parent is in PYTHONPATH."""

import sys

from herring.horovod.aliases import install

del sys.modules[__name__]
install()
import horovod  # noqa: E402

sys.modules[__name__] = horovod
