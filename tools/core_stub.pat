# What nanobind cannot see of the core: what is in dicts, lists and arrays that the bindings build.
# tools/make_core_stub.py reads this file. Its syntax is that of patterns for nanobind.stubgen.

herring._core.PROTOCOL_VERSION$:
    PROTOCOL_VERSION: int

herring._core.Callbacks.thread$:
    \import threading
    @property
    def thread(self) -> threading.Thread | None: ...
    @thread.setter
    def thread(self, thread: threading.Thread | None) -> None: ...

herring._core.Callbacks.take$:
    \from collections.abc import Callable
    def take(self) -> Callable[[], object] | None:
        """Waits for the next callback; None when the job has ended."""

herring._core.Operation.call_when_done$:
    def call_when_done(self, callback: Callable[[], object]) -> bool: ...

herring._core.Operation.return_to$:
    \from typing import Any
    def return_to(self, outputs: list[Any], waits: bool, seconds: float = 0.0) -> None: ...

herring._core.Operation.result$:
    \import numpy as np
    \import numpy.typing as npt
    def result(self) -> npt.NDArray[np.uint8]: ...

herring._core.Operation.results$:
    def results(self) -> list[tuple[str, tuple[int, ...], npt.NDArray[np.uint8]]]:
        """Returns for each array of a list its dtype, its shape and its bytes."""

herring._core.Job.stats$:
    def stats(self) -> dict[str, Any]:
        """Returns what `herring.stats` describes."""

herring._core.Job.recorded$:
    def recorded(self, most: int = 4096) -> list[dict[str, Any]]:
        """
        Returns the latest entries of this worker, oldest first. With observe=false there are none.

        Each has the fields of observe::Entry (src/observe/entry.h): "id", "kind" ("round", "buffer"
        or "call"), "name", "group", "stream", "round", "buffer", "bytes", "waited" (seconds), the
        moments "called", "ready", "reduced", "pushed", "summed" and "done" (seconds of
        time.monotonic(), or None), and "outcome" ("ok", "timeout" ..., or None if the entry has not
        ended).
        """

herring._core.Job.activity$:
    def activity(self) -> dict[str, Any]:
        """
        Returns engine::Activity (src/engine/program.h): "where" ("" while the program computes),
        "since" (seconds of time.monotonic()), "rounds", "calls", "in_flight", "waited" (seconds).
        """

herring._core.Job.submit$:
    def submit(self, kind: str, arrays: object | None, name: str, timeout: float = 0.0, waits: bool = False, group: Group | None = None, into: object | None = None, listed: bool = False, agreement: str = '', anywhere: bool = False, **options: Any) -> Operation: ...

herring._core.Job.destroy_group$:
    def destroy_group(self, group: Group) -> None: ...

herring._core.Job.name_group$:
    def name_group(self, group: Group | None, name: str) -> None: ...

herring._core.Job.refuse$:
    def refuse(self, kind: str, name: str, why: str, group: Group | None = None) -> None: ...

herring._core.empty$:
    def empty(job: Job, bytes: int) -> npt.NDArray[np.uint8]: ...

herring._core.take_log_lines$:
    def take_log_lines() -> list[tuple[float, int, str, str]]:
        """Waits for lines of the log: seconds, level, process and text."""

herring._core.RoundInfo.lost$:
    @property
    def lost(self) -> list[tuple[int, int, int]]: ...

herring._core.Partial.create$:
    @staticmethod
    def create(job: Job, name: str, dtype: str, elements: int, op: str, by_contributors: bool, quorum: int, grace: float, staleness: int, replays: bool = False, group: Group | None = None) -> Partial: ...

herring._core.next_stream$:
    def next_stream(job: Job, group: Group | None = None) -> int: ...

herring._core.Planned.create$:
    @staticmethod
    def create(job: Job, gradients: Sequence[tuple[int, str]], name: str, op: str, wire_dtype: str, buffer_bytes: int, note_bytes: int, stream: int, group: Group | None = None, device: int | None = None, on_devices: bool = False, casts: bool = False, divide_by_all: bool = False) -> Planned: ...

herring._core.Planned.place$:
    def place(self, arenas: list[Any]) -> None: ...

herring._core.Planned.arena$:
    def arena(self, index: int) -> npt.NDArray[np.uint8]: ...

herring._core.wait_for_stack_request$:
    def wait_for_stack_request() -> int | None:
        """
        Waits until the core asks where the program is (src/base/program_stack.h). Returns the
        native id of the thread that last called Herring, 0 if none has; None when requests are
        closed.
        """

herring._core.answer_stack$:
    def answer_stack(text: str, cause: str, held: int = 0) -> None:
        """
        Gives the answer, such as "train.py:40 in load" and "input". `held` is 0, or a number that
        says that each thread waits for a result, and which changes when one has gone on.
        """

herring._core.waiting_threads$:
    def waiting_threads() -> tuple[int, list[int], list[tuple[int, int]]]:
        """
        Returns how often a wait for a result has begun or ended; the identifiers of the threads
        that wait in the core now; and those that have ever begun or awaited work, each with its
        native id.
        """

herring._core.ask_stack$:
    def ask_stack() -> None:
        """Asks as the core does, for tests."""

herring._core.latest_stack$:
    def latest_stack() -> tuple[str, str, float | None, float | None]:
        """
        Returns the latest text and cause, and how many seconds ago the answer came and the open
        request was made (None: there is none). For tests.
        """

herring._core.setting_rows$:
    def setting_rows() -> list[dict[str, Any]]: ...

herring._core.metric_rows$:
    def metric_rows() -> tuple[list[tuple[str, str, str]], str, list[tuple[str, str, str, str, str, str]]]:
        """Returns scopes, the labels of a job, and metrics (src/observe/metrics_table.h)."""

herring._core.settings$:
    def settings() -> list[dict[str, Any]]: ...

herring._core.parse_setting$:
    def parse_setting(name: str, text: bytes, shown: str) -> bool | int | float | bytes: ...

herring._core.setting_warnings$:
    def setting_warnings() -> list[str]: ...

herring._core.run_server$:
    def run_server(options: dict[str, Any]) -> None: ...

herring._core.describe_devices$:
    def describe_devices() -> dict[str, Any]: ...

herring._core.measure_copies$:
    def measure_copies(device: int, bytes: int) -> dict[str, Any]: ...
