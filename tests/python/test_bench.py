"""The benchmark: sizes, known contents, the loop, the command line, and Gloo as a competitor."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import warm

pattern = pytest.importorskip("herring.bench.pattern")

from herring.base.units import parse_size  # noqa: E402
from herring.bench import cli, measure, report, sizes  # noqa: E402
from herring.bench.communicator import HerringCommunicator, Prepared  # noqa: E402
from herring.errors import ConfigurationError, InvalidArgumentError  # noqa: E402
from herring_lab.competitors import torch_rendezvous  # noqa: E402
from ports import block  # noqa: E402

COMBINATIONS = [
    (dtype, op)
    for dtype in pattern.DTYPES
    for op in pattern.OPS
    if op != "average" or "float" in dtype
]


def as_numbers(elements: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements


def reduce_reference(contributions: list[np.ndarray], dtype: str, op: str) -> np.ndarray:
    """Reduces in the dtype itself, one contribution at a time; every step must be exact."""
    rows = [as_numbers(row, dtype) for row in contributions]
    function = {"min": np.minimum, "max": np.maximum, "product": np.multiply}.get(op, np.add)
    result = rows[0].copy()
    for row in rows[1:]:
        result = function(result, row)
        if dtype == "bfloat16":
            bits = result.astype(np.float32).view(np.uint32)
            assert not np.any(bits & 0xFFFF), "a partial result is no bfloat16"
    if op == "average":
        result = result / np.asarray(len(rows), result.dtype)
    if dtype == "bfloat16":
        return (result.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return result.astype(np.dtype(dtype))


def contributions_of(known: pattern.Pattern, count: int) -> list[np.ndarray]:
    rows = [np.zeros(count, pattern.storage_dtype(known.dtype)) for _ in range(known.size)]
    for rank, row in enumerate(rows):
        known.fill(row, rank)
    return rows


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4K", 4000),
        ("4KB", 4000),
        ("25M", 25_000_000),
        ("12.5M", 12_500_000),
        ("1g", 10**9),
        ("64KiB", 65536),
        ("2MiB", 2 << 20),
        (" 100 M ", 100_000_000),
    ],
)
def test_sizes_are_decimal_unless_they_say_i(text, size):
    assert parse_size(text) == size
    assert parse_size(sizes.format_size(size)) == size


@pytest.mark.parametrize("text", ["", "K", "0", "-4K", "4P", "1.5", "0.1K1", "4KK", "nan"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(ConfigurationError, match=r"size|bytes"):
        parse_size(text)


# --- known contents ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16])
def test_expected_result_is_the_reduction(dtype, op, size):
    known = pattern.Pattern(dtype, op, size)
    rows = contributions_of(known, 1000)
    assert known.count_wrong(reduce_reference(rows, dtype, op)) == 0


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "average"), ("float16", "sum"), ("int8", "sum")]
)
def test_one_wrong_element_is_counted(dtype, op):
    known = pattern.Pattern(dtype, op, 4)
    result = reduce_reference(contributions_of(known, 1000), dtype, op)
    result[617] += 1
    assert known.count_wrong(result) == 1


def test_a_missing_or_doubled_rank_and_a_misplaced_piece_show():
    known = pattern.Pattern("float32", "sum", 4)
    rows = contributions_of(known, 4096)
    assert known.count_wrong(reduce_reference(rows[:3], "float32", "sum")) == 4096
    assert known.count_wrong(reduce_reference([*rows, rows[0]], "float32", "sum")) == 4096
    right = reduce_reference(rows, "float32", "sum")
    assert known.count_wrong(np.roll(right, 1024)) > 3000


def test_contents_span_chunks():
    known = pattern.Pattern("int64", "max", 2)
    rows = contributions_of(known, (1 << 18) + 5)
    assert known.count_wrong(reduce_reference(rows, "int64", "max")) == 0
    assert known.count_wrong(rows[0]) > 0


def test_a_dtype_too_small_for_the_ranks_is_refused():
    with pytest.raises(InvalidArgumentError, match="too small for 200 ranks"):
        pattern.Pattern("bfloat16", "sum", 200)


# --- the loop ------------------------------------------------------------------------------------


class World:
    """Exchanges arrays between threads of this process, each of which stands for a rank."""

    def __init__(self, size: int, spoil: int = 0) -> None:
        self.size = size
        self.spoil = spoil
        self.fence = threading.Barrier(size, timeout=600)
        self.slots: list[np.ndarray | None] = [None] * size

    def exchange(self, rank: int, value: np.ndarray) -> list[np.ndarray]:
        self.slots[rank] = value.copy()
        self.fence.wait()
        everything = list(self.slots)
        self.fence.wait()
        return everything


class ThreadCommunicator:
    name = "threads"
    local_size = 1

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = self.num_nodes = world.size
        self.calls: list[str] = []
        self.sent = 0

    def barrier(self):
        self.calls.append("barrier")
        self.world.fence.wait()

    def allreduce(self, count, dtype, op):
        return self.planned([count], dtype, op)

    def planned(self, counts, dtype, op):
        parts = [np.zeros(count, pattern.storage_dtype(dtype)) for count in counts]

        def run():
            self.calls.append("allreduce")
            for part in parts:
                self.sent += part.nbytes * (self.rank + 1)
                rows = self.world.exchange(self.rank, part)
                part[:] = reduce_reference(rows, "float32", op)
                part[: self.world.spoil] += 1

        return Prepared(run, parts, lambda: self.calls.append("close"))

    def gather(self, numbers):
        self.calls.append("gather")
        return np.stack(self.world.exchange(self.rank, numbers))

    def counters(self):
        return self.sent, 2 * self.sent

    def describe(self):
        return {}

    def close(self):
        pass


def measure_in_threads(request: measure.Request, size: int = 3, spoil: int = 0):
    world = World(size, spoil)
    communicators = [ThreadCommunicator(world, rank) for rank in range(size)]
    results: list[measure.Measurement | None] = [None] * size

    def work(rank: int) -> None:
        results[rank] = measure.measure(communicators[rank], request)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert all(result is not None for result in results)
    return communicators, results


def test_loop_puts_a_barrier_before_each_iteration_and_gathers_once():
    request = measure.Request(4000, warmup=2, iterations=3, batches=2)
    communicators, results = measure_in_threads(request)
    calls = communicators[0].calls
    assert calls.count("allreduce") == 2 * (2 + 3)
    assert calls.count("gather") == 1
    assert calls[-2:] == ["gather", "close"]
    for index, call in enumerate(calls):
        if call == "allreduce":
            assert calls[index - 1] == "barrier"
    entry = results[0].to_json()
    assert entry["bytes"] == 4000
    assert entry["count"] == 1000
    assert len(entry["times_seconds"]) == 6
    assert [len(batch) for batch in entry["batches_seconds"]] == [3, 3]
    assert entry["wrong"] is None
    # Ranks 0, 1 and 2 send 4000, 8000 and 12000 bytes per iteration; warm-up does not count.
    assert entry["wire_bytes_per_worker"] == 8000
    assert entry["wire_bytes_received_per_worker"] == 16000
    assert entry["linkbw_bytes_per_second"] == pytest.approx(24000 / entry["p50_seconds"])


def test_every_rank_learns_the_slowest_times():
    _, results = measure_in_threads(measure.Request(400, warmup=0, iterations=4))
    assert results[0].times == results[1].times == results[2].times


@pytest.mark.parametrize("op", ["sum", "average"])
def test_check_counts_over_all_ranks_and_checked_results(op):
    request = measure.Request(4000, op=op, warmup=1, iterations=2, check=True)
    _, results = measure_in_threads(request)
    assert results[0].wrong == 0
    # Five wrong elements in the first and the last result of each of three ranks.
    _, results = measure_in_threads(request, spoil=5)
    assert results[0].wrong == 5 * 2 * 3


def test_planned_divides_the_bytes_and_checks_every_gradient():
    request = measure.Request(40_000, warmup=1, iterations=1, check=True, operation="planned")
    counts = request.gradient_counts()
    assert len(counts) == 50
    assert sum(counts) == 10_000
    assert min(counts) >= 1
    _, results = measure_in_threads(request)
    assert results[0].wrong == 0
    _, results = measure_in_threads(request, spoil=1)
    assert results[0].wrong == 50 * 2 * 3
    assert measure.Request(8, operation="planned").gradient_counts() == [1, 1]


def test_known_contents_go_where_the_operation_works():
    # As on a GPU, the operation works on a copy of its own.
    moves = []

    class Elsewhere(ThreadCommunicator):
        def allreduce(self, count, dtype, op):
            host, device = np.zeros(count, np.float32), np.zeros(count, np.float32)

            def move(target, source):
                moves.append("load" if target is device else "store")
                target[:] = source

            return Prepared(
                lambda: moves.append("run"),
                [host],
                load=lambda: move(device, host),
                store=lambda: move(host, device),
            )

    # With one rank, the sum is that rank's contribution.
    request = measure.Request(400, op="sum", warmup=1, iterations=2, check=True)
    result = measure.measure(Elsewhere(World(1), 0), request)
    assert result.wrong == 0
    assert moves == ["load", "run", "store", "run", "load", "run", "store"]


def test_percentile_never_flatters():
    assert measure.percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert measure.percentile([float(i) for i in range(1, 201)], 0.99) == 198.0
    assert measure.percentile([7.0], 0.5) == 7.0


def test_table_is_aligned():
    communicators, results = measure_in_threads(measure.Request(4000, check=True))
    lines = report.header(communicators[0], "allreduce", {"array": "numpy"}).splitlines()
    assert all(line.startswith("#") for line in lines)
    assert len(report.row(results[0])) == len(lines[-2])


def test_header_counts_servers():
    communicators, _ = measure_in_threads(measure.Request(400))
    servers = [{"name": f"s{i}", "dedicated": i < 1, "weight": 0.3} for i in range(3)]
    text = report.header(communicators[0], "allreduce", {"servers": servers, "array": "numpy"})
    assert "# servers: 3 (1 dedicated)\n# array: numpy\n" in text


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "4Q"], "is not a size"),
        (["--dtype", "int32"], "int32 has no average"),
        (["--iterations", "0"], "0 is below 1"),
        (["--dtype", "complex64"], "'complex64' is not allowed for --dtype"),
        (["--algorithm", "rings"], "did you mean 'ring'"),
        (["--algorithm", "ring", "--peer", "mpich"], "mpich has butterfly, doubling"),
        (["--algorithm", "linear"], "herring has herring, server, tree, ring, butterfly, doubling"),
        (["--algorithm", "ring", "--peer", "gloo"], "gloo has no algorithms to select: it chooses"),
    ],
)
def test_bad_options_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["allreduce", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_gloo_meets_where_a_port_is_kept_free_or_one_port_above():
    environ = {"HERRING_RANK": "1", "HERRING_SIZE": "4", "HERRING_RENDEZVOUS": "10.0.0.1:29400"}
    assert torch_rendezvous(environ) == (1, 4, "tcp://10.0.0.1:29401")
    kept = {**environ, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "45000"}
    assert torch_rendezvous(kept) == (1, 4, "tcp://10.0.0.1:45000"), "kept free by herring run"
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    assert torch_rendezvous(environ) == (0, 2, "env://")
    with pytest.raises(ConfigurationError, match="HERRING_RENDEZVOUS"):
        torch_rendezvous({})


class FakeReduction:
    """A plan over one rank that pads between gradients and checks that each round is complete."""

    node_stage = "host"

    def __init__(self, gradients, *, name, op="average", device=None, wire_dtype=None):
        self.memory = np.zeros(4096, np.uint8)
        self.placements = []
        offset = 0
        for elements, dtype in gradients:
            nbytes = elements * pattern.item_bytes(dtype)
            self.placements.append((0, offset, nbytes))
            offset += -(-nbytes // 64) * 64
        self.pending = None

    def arena(self, index):
        assert index == 0
        return self.memory

    def begin(self, active=True):
        self.pending = set(range(len(self.placements)))

    def ready(self, index):
        self.pending.remove(index)

    def wait(self, timeout=None):
        assert not self.pending

    def close(self):
        self.memory = None


class Done:
    def wait(self):
        pass


@pytest.mark.parametrize("operation", ["allreduce", "planned", "variables"])
def test_herring_is_used_by_its_public_interface(operation, monkeypatch, capsys):
    names = []
    fake = types.ModuleType("herring")
    fake.__path__ = sys.modules["herring"].__path__
    fake.init = lambda: None
    fake.shutdown = lambda: names.append("shutdown")
    fake.barrier = lambda: None
    fake.rank = lambda: 0
    fake.size = fake.local_size = fake.num_nodes = lambda: 1
    fake.empty = lambda shape, dtype: np.zeros(shape, dtype)
    fake.allreduce = lambda array, op, *, name, algorithm: names.append(name)
    fake.allreduce_async = lambda array, op, *, name: names.append(name) or Done()
    fake.allgather = lambda array: array
    fake.stats = lambda: {"bytes_sent": 1, "bytes_received": 2, "credit_bytes": 3, "servers": []}
    fake.PlannedReduction = FakeReduction
    monkeypatch.setitem(sys.modules, "herring", fake)
    assert cli.main([operation, "--sizes", "400", "--check", "--iterations", "2"]) == 0
    assert "# wrong elements: 0 OK" in capsys.readouterr().out
    assert names[-1] == "shutdown"
    assert len(set(names[:-1])) == {"allreduce": 1, "planned": 0, "variables": 50}[operation]


def test_arrays_of_any_memory(monkeypatch):
    fake = types.ModuleType("herring")
    fake.init = lambda: None
    fake.rank = lambda: 0
    fake.size = fake.local_size = fake.num_nodes = lambda: 1
    fake.allreduce = lambda array, op, *, name, algorithm: None
    monkeypatch.setitem(sys.modules, "herring", fake)
    prepared = HerringCommunicator(shared=False).allreduce(8, "int16", "sum")
    assert prepared.parts[0].dtype == np.int16


def ends_of_bench(tmp_path, path, workers, arguments):
    """Runs the benchmark here without a launcher; returns each rank's status and output."""
    # The benchmark needs two adjacent ports: one for the job, the next for the competitor.
    with block(2) as (port, _):
        return _ends_of_bench(tmp_path, path, workers, arguments, port)


def _ends_of_bench(tmp_path, path, workers, arguments, port):
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("5ec4e7" * 10)
    processes = []
    for rank in range(workers):
        env = {
            **os.environ,
            "HERRING_RENDEZVOUS": f"127.0.0.1:{port}",
            "HERRING_RANK": str(rank),
            "HERRING_SIZE": str(workers),
            "HERRING_LOCAL_RANK": str(rank),
            "HERRING_LOCAL_SIZE": str(workers),
            "HERRING_SERVERS": "0",
            "HERRING_SECRET_FILE": str(secret),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "herring.bench", "allreduce", "--json", str(path)]
        processes.append(
            warm.Popen(
                [*command, *arguments],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


def run_bench(tmp_path, workers, arguments):
    """Runs the benchmark here without a launcher; returns rank 0's output and the JSON."""
    path = tmp_path / "result.json"
    ends = ends_of_bench(tmp_path, path, workers, arguments)
    for status, output in ends:
        assert status == 0, output
    assert not any("GB/s" in output for _, output in ends[1:]), "only rank 0 prints the table"
    return ends[0][1], json.loads(path.read_text())


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    path = tmp_path / "none" / "x.json"
    ends = ends_of_bench(tmp_path, path, 3, [])
    refusal = f"herring.bench: ConfigurationError: --json {path}: "
    assert ends[0] == (3, f"{refusal}cannot be written: No such file or directory\n")
    others = f"{refusal}rank 0 cannot write the file; its own error says why\n"
    assert ends[1:] == [(3, others)] * 2


def check_document(document, workers, expected_sizes):
    assert document["workers"] == workers
    assert [entry["bytes"] for entry in document["results"]] == expected_sizes
    for entry in document["results"]:
        assert entry["wrong"] == 0
        assert 0 < entry["min_seconds"] <= entry["p50_seconds"]
        assert entry["p50_seconds"] <= entry["p99_seconds"] <= entry["max_seconds"]
        assert len(entry["times_seconds"]) == 3


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_gloo_peer_end_to_end(tmp_path):
    arguments = ["--peer", "gloo", "--sizes", "4K,1M", "--warmup", "1", "--iterations", "3"]
    output, document = run_bench(tmp_path, 2, [*arguments, "--check"])
    assert document["library"] == "gloo"
    assert "# wrong elements: 0 OK" in output
    check_document(document, 2, [4000, 1_000_000])
    assert document["results"][0]["wire_bytes_per_worker"] is None


@pytest.mark.skipif(importlib.util.find_spec("herring._core") is None, reason="no native core")
@pytest.mark.parametrize("array", ["herring", "numpy"])
def test_herring_end_to_end(tmp_path, array):
    arguments = ["--array", array, "--sizes", "4K,1M", "--warmup", "1", "--iterations", "3"]
    output, document = run_bench(tmp_path, 2, [*arguments, "--check"])
    assert document["library"] == "herring"
    assert document["nodes"] == 1
    assert "# wrong elements: 0 OK" in output
    check_document(document, 2, [4000, 1_000_000])
    for entry in document["results"]:
        assert isinstance(entry["wire_bytes_per_worker"], int)


@pytest.mark.skipif(importlib.util.find_spec("herring._core") is None, reason="no native core")
def test_herring_needs_no_torch(tmp_path):
    code = (
        "import sys, herring.bench.cli, herring.bench.communicator;"
        "import herring; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0
