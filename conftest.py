"""What all tests share."""

import signal

# A shell's background jobs, and nohup, ignore some of these, and what tests start would inherit
# that: they send them, and mean it.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        _default = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, _default)
