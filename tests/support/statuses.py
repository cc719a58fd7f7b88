"""Statuses of jobs as rank 0 would report them, for tests and for the pages about statuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TIME = 1795680000.1


def healthy(ranks: int = 4, job: str = "resnet") -> dict[str, Any]:
    """Returns the status of a job on several hosts with two ranks each, and with two servers."""
    return {
        "schema": "herring-status-1",
        "herring": "0.3.0",
        "job": job,
        "id": job,
        "slurm_job_id": "4711",
        "time": TIME,
        "uptime": 734.2,
        "size": ranks,
        "nodes": (ranks + 1) // 2,
        "epoch": 1,
        "servers_to_spare": None,
        "steps": {
            "count": 7200,
            "per_second": 9.81,
            "seconds": {"min": 0.0968, "median": 0.1019, "max": 0.1153},
            "compute": 0.0826,
            "node_stage": 0.0044,
            "push": 0.0377,
            "pull": 0.0391,
            "wait_for_ranks": 0.0031,
            "exposed": 0.0162,
        },
        "binds": {"what": "compute", "share": 0.81, "who": None, "advice": None},
        "ranks": [rank_of(number) for number in range(ranks)],
        "servers": [server_of(number, ranks) for number in range(2)],
        "missing": [],
        "groups": [
            group_of(0, "world", range(ranks), rounds=7200),
            group_of(1, "tp", range(2), calls=14400),
        ],
        "operations": [
            operation_of("allreduce", "1-16MB", 4 * 7200, 2**22, 0.011),
            operation_of("allreduce", "0-4KB", 14400, 8, 0.0002),
        ],
        "findings": [],
    }


def rank_of(number: int) -> dict[str, Any]:
    """Returns the status of a rank that is as fast as all others."""
    return {
        "rank": number,
        "host": f"node{number // 2 + 1:02d}",
        "node": number // 2,
        "pid": 41200 + number,
        "state": "computing",
        "where": "",
        "for": 0.041,
        "stack": "",
        "heard": 0.4,
        "late": {"median": 0.0004 * (number % 3), "max": 0.0061, "share": 0.02, "steps": 600},
        "score": 0.99,
        "cause": None,
        "chronic": False,
        "outlier": False,
        "rounds": 7200,
        "calls": 144,
        "in_flight": 2,
        "compute": 0.0826,
        "wait": 0.0162,
        "bytes_sent": 734_003_200_000,
        "bytes_received": 734_112_400_128,
        "retransmits": 12 + number,
        "rtt": 0.00021,
        "credit": 1_048_576,
        "kept": 0,
        "memory": 6_442_450_944,
        "major_faults": 3,
        "clock_offset": -0.000012 * number,
        "clock_error": 0.00004,
    }


def server_of(number: int, ranks: int) -> dict[str, Any]:
    """Returns the status of a dedicated server."""
    return {
        "server": number,
        "kind": "dedicated",
        "host": f"server{number + 1:02d}",
        "node": None,
        "pid": 9900 + number,
        "state": "serving",
        "heard": 0.7,
        "weight": 0.5,
        "bytes_sent": 734_003_200_000 * ranks // 4,
        "bytes_received": 733_999_000_000 * ranks // 4,
        "in_flight": 3,
        "retransmits": 5,
        "rtt": 0.0002,
        "memory": 104_857_600,
        "outlier": False,
        "cause": None,
    }


def group_of(number: int, name: str, ranks: Iterable[int], **counts: int) -> dict[str, Any]:
    """Returns the status of a group in which something has just ended."""
    return {
        "group": number,
        "name": name,
        "size": len([*ranks]),
        "ranks": [*ranks],
        "rounds": 0,
        "calls": 0,
        "in_flight": 1,
        "for": 0.012,
        "absent": [],
        "outlier": False,
        **counts,
    }


def operation_of(
    collective: str, message_size: str, ended: int, each: int, seconds: float
) -> dict[str, Any]:
    """Returns the counters of one kind of operation, each with so many bytes and seconds."""
    return {
        "collective": collective,
        "message_size": message_size,
        "ended": ended,
        "bytes": ended * each,
        "seconds": ended * seconds,
    }


def late() -> dict[str, Any]:
    """Returns the status of a job with a chronically late rank and a server with a bad link."""
    status = healthy(8)
    status["steps"] |= {
        "per_second": 7.5,
        "seconds": {"min": 0.1287, "median": 0.1331, "max": 0.2144},
        "wait_for_ranks": 0.0312,
        "exposed": 0.0475,
    }
    status["binds"] = {
        "what": "rank",
        "share": 0.23,
        "who": "rank 5 (node03)",
        "advice": "without it a step would be 1.3 times as fast",
    }
    status["ranks"][5] |= {
        "late": {"median": 0.0312, "max": 0.1024, "share": 0.94, "steps": 600},
        "score": 0.76,
        "cause": "input",
        "chronic": True,
        "outlier": True,
        "stack": "train.py:40 in load",
        "compute": 0.1138,
    }
    status["servers"][1] |= {"outlier": True, "cause": "link", "retransmits": 48211, "rtt": 0.0087}
    status["findings"] = ["rank 5 (node03) is late by 31 ms in 94 % of the steps: its input"]
    return status


def stalled() -> dict[str, Any]:
    """Returns the status of a job in which everybody waits for two ranks."""
    status = healthy(8)
    status["steps"] |= {"per_second": 0.0, "last": 42.4, "stands": True}
    status["binds"] = {"what": None, "share": None, "who": None, "advice": None}
    for number, rank in enumerate(status["ranks"]):
        rank |= {"state": "waiting", "where": "waits in the gradients of round 7201", "for": 42.3}
        if number == 3:
            rank |= {"state": "stopped", "where": "", "for": 42.5, "cause": "stopped"}
        if number == 6:
            rank |= {
                "state": "silent",
                "where": "computes",
                "for": 39.0,
                "stack": "checkpoint.py:112 in save",
            }
    status["groups"][1] |= {"for": 42.1, "absent": [1], "outlier": True}
    status["missing"] = [{"what": "'gradients' (round 7201)", "for": 42.3, "ranks": [3, 6]}]
    status["findings"] = ["all ranks wait for rank 3 and rank 6"]
    return status
