"""The limits of control groups, which `herring check` and `herring doctor` read alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from herring.base import cgroup
from herring.command import check
from herring.doctor import facts

V2 = "0::/a/b\n"
V1 = "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "cores", "memory"),
    [
        (V2, {}, None, None),
        (V2, {"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        # A limit of the slice above counts, and the smallest one decides.
        (V2, {"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.5, None),
        (V2, {"a/memory.max": "4000\n", "a/b/memory.max": "9000\n"}, None, 4000),
        # Of another group.
        ("0::/\n", {"a/cpu.max": "250000 100000\n", "a/memory.max": "4000\n"}, None, None),
        (
            V1,
            {
                "cpu/a/cpu.cfs_quota_us": "150000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/a/memory.limit_in_bytes": "5000\n",
            },
            *(1.5, 5000),
        ),
        # A container whose groups have other names outside.
        (V1, {"memory/memory.limit_in_bytes": "7000\n"}, None, 7000),
    ],
)
def test_the_limits_of_all_groups_above_count(
    membership: str, files: dict[str, str], cores: float, memory: int, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert cgroup.cores(tmp_path, membership) == cores
    assert cgroup.memory_limit(tmp_path, membership) == memory


def test_processes_that_the_kernel_killed_are_those_of_the_group(tmp_path: Path) -> None:
    write(tmp_path, {"vmstat": "oom_kill_other 9\noom_kill 7\n"})
    vmstat = tmp_path / "vmstat"
    assert cgroup.oom_kills(tmp_path, V2, vmstat) == 7  # of the machine
    write(tmp_path, {"a/memory.events": "oom 5\noom_kill 5\n"})
    write(tmp_path, {"a/b/memory.events": "oom 3\noom_kill 2\noom_group_kill 0\n"})
    assert cgroup.oom_kills(tmp_path, V2, vmstat) == 2
    write(tmp_path, {"memory/a/b/memory.oom_control": "under_oom 0\noom_kill 4\n"})
    assert cgroup.oom_kills(tmp_path, V1, vmstat) == 4
    assert cgroup.oom_kills(tmp_path, "", tmp_path / "none") is None


def test_check_and_doctor_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"membership": V2, "a/cpu.max": "250000 100000\n", "a/memory.max": "4000\n"})
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_MEMBERSHIP", tmp_path / "membership")
    assert facts.cores()["quota"] == 2.5
    said = {finding.name: finding.value for finding in [*check._cpu(), *check._memory()]}
    assert "limited to 2.5 by the control group" in said["cores"]
    assert "limited to 4 kB by the control group" in said["memory"]
