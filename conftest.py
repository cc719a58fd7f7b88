"""What all tests have: signals as they expect them, and a place for what jobs write."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Background jobs of a shell and nohup ignore some of these signals. What tests start would
# inherit that, but tests send them these signals and expect them to take effect.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        _default = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, _default)

# How long Hypothesis takes to make an example depends on other load, and says nothing of the code.
with contextlib.suppress(ImportError):  # as in the environments of frameworks
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "herring", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("herring")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that need emulated hosts where none can be created."""
    for mark in item.iter_markers("needs_hosts"):
        from emulated import why_no_hosts

        if reason := why_no_hosts(**mark.kwargs):
            pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeats tests that measure if they fail beside other load."""
    if not any(pyfuncitem.iter_markers("measures")):
        return None
    from quiet import call_in_quiet

    names = pyfuncitem._fixtureinfo.argnames
    call_in_quiet(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own, for sockets and flight records of its jobs."""
    from status_server import short_folder

    with short_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder
