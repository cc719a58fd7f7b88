"""Resets the signals that tests rely on, for all tests."""

import signal

# Background jobs of a shell and nohup ignore some of these signals. What tests start would
# inherit that, but tests send them these signals and expect them to take effect.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        _default = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, _default)
