"""Imports Horovod's modules for a missing framework: the error says what to install."""

import sys

import herring
import herring.horovod.aliases

package, *modules = sys.argv[1:]
sys.modules[package] = None
herring.horovod.aliases.install()
for name in modules:
    try:
        __import__("horovod." + name)
    except ImportError as error:
        assert "pip install " in str(error) and package in str(error), error
    else:
        raise AssertionError(name)

import horovod.common.util  # noqa: E402

try:
    horovod.common.util.check_extension("horovod.spark")
except ImportError as error:
    assert "horovod.tensorflow" in str(error)
assert not horovod.common.util.extension_available("spark")
assert horovod.common.util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
