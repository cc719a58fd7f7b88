# The compiled module is private to this package, which says the types of what it returns.
#
# `Job.recorded(most)` returns the latest entries of this worker, oldest first, at most 4096. Each is
# a dict with the fields of observe::Entry (src/observe/entry.h): "id", "kind" ("round", "buffer" or
# "call"), "name", "group", "stream", "round", "buffer", "bytes", "waited" (seconds), the moments
# "called", "ready", "reduced", "pushed", "summed" and "done" (seconds of time.monotonic(), or None),
# and "outcome" ("ok", "timeout" ..., or None if the entry has not ended). With the setting
# observe=false the list is empty.
#
# `Job.activity()` returns worker::Activity (src/worker/program.h) as a dict: "where" ("" while the
# program computes), "since" (seconds of time.monotonic()), "rounds", "calls", "in_flight", and
# "waited" (seconds).
from typing import Any

def __getattr__(name: str) -> Any: ...
