# The compiled module is private to this package, which says the types of what it returns.
#
# `Job.recorded(most)` returns the latest entries of this worker, oldest first, at most 4096. Each
# is a dict with the fields of observe::Entry (src/observe/entry.h): "id", "kind" ("round", "buffer"
# or "call"), "name", "group", "stream", "round", "buffer", "bytes", "waited" (seconds), the moments
# "called", "ready", "reduced", "pushed", "summed" and "done" (seconds of time.monotonic(), or
# None), and "outcome" ("ok", "timeout" ..., or None if the entry has not ended). With the setting
# observe=false the list is empty.
#
# `Job.activity()` returns worker::Activity (src/worker/program.h) as a dict: "where" ("" while the
# program computes), "since" (seconds of time.monotonic()), "rounds", "calls", "in_flight", and
# "waited" (seconds).
from typing import Any

# Where the program is (src/base/program_stack.h). The thread in herring/process/stacks.py answers.
def open_stack_requests() -> None: ...

# Waits for a request. Returns the native id of the thread that last called Herring, 0 if none has;
# None when requests are closed.
def wait_for_stack_request() -> int | None: ...

# Gives the answer, such as "train.py:40 in load" and "input". `held`: 0, or a number that says that
# each thread waits for a result, and which changes when one has gone on.
def answer_stack(text: str, cause: str, held: int = 0) -> None: ...

# Returns how often a wait for a result has begun or ended; the identifiers of the threads that wait
# in the core now; and those that have ever begun or awaited work, each with its native id.
def waiting_threads() -> tuple[int, list[int], list[tuple[int, int]]]: ...
def close_stack_requests() -> None: ...

# For tests: asks as the core does, and returns the latest text and cause, and how many seconds ago
# the answer came and the open request was made (None: there is none).
def ask_stack() -> None: ...
def latest_stack() -> tuple[str, str, float | None, float | None]: ...
def __getattr__(name: str) -> Any: ...
