"""The cost models, for `from herring import models`."""

from herring.bench.models import *  # noqa: F403
from herring.bench.models import __all__ as __all__
