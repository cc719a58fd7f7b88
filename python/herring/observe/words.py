"""A status in words: what a job does, what binds, and which ranks and servers stand out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herring.base.units import counted, ranks_text, show_duration, show_time

#: A line of the output: its style ("", "bold", "good", "warn" or "bad") and its text.
Line = tuple[str, str]

_NORMAL = {None, "computing", "waiting", "serving"}
_BAD = {"stopped", "unreachable", "silent", "lost"}
_FEW_STEPS = 30  # as in src/observe/picture.cc
_MOST = 16  # Lines about ranks or servers without --all.
_CAUSES = {
    "compute": "its compute",
    "input": "its input (data loading)",
    "checkpoint": "it writes a checkpoint",
    "swapping": "its memory is swapped out",
    "starved": "other processes take its processors",
    "link": "its link",
    "stopped": "its process is stopped",
    "slow": "it sums slowly",
}
_BINDS = {
    "network": "The network binds",
    "compute": "Compute binds",
    "rank": "A slow rank binds",
    "node stage": "The node stage binds",
    "server": "A slow server binds",
}


def lines(status: Mapping[str, Any], everything: bool = False) -> list[Line]:
    """Returns what people should know about a job: all is well, or what stands out.

    Args:
      everything: Whether no finding is left out, and tables of all ranks and servers follow.
    """
    found = [("bold", headline(status)), ("", steps(status)), binds(status)]
    told = notes(status, everything=everything) or [("good", "No rank or server stands out.")]
    return [*found, *spare_servers(status), *told]


def notes(
    status: Mapping[str, Any], with_ranks: bool = True, everything: bool = False
) -> list[Line]:
    """Returns lines about what stands out: what waits, ranks, servers, groups, other findings.

    Args:
      with_ranks: Whether to have lines about single ranks.
      everything: Whether no finding is left out, and tables of all ranks and servers follow.
    """
    parts = [list(_missing(status)), *_ranks(status), _servers(status), _groups(status)]
    # A rank whose line is cut below has been counted there, so findings do not repeat it.
    told = " ".join(text for part in parts for _, text in part)
    bound = f"{binds(status)[1].partition(',')[0].lower()} "  # such as "the network binds "
    findings = [
        ("warn", each)
        for each in status["findings"]
        if not _tells(told, each) and not each.startswith(bound)
    ]
    missing, *ranks = parts[:3]
    found = missing
    for part in [*(ranks if with_ranks else []), *parts[3:]]:
        found += _cut(part, "the tables have them" if everything else "--all shows them")
    return found + (findings if everything else _cut(findings, "--all shows them"))


def _tells(told: str, finding: str) -> bool:
    """Returns whether a text has the rank or server with which a finding begins."""
    subject = " ".join(finding.split()[:2]).rstrip(":,")
    return re.search(rf"{re.escape(subject)}(?!\w)", told) is not None


def one_line(status: Mapping[str, Any]) -> str:
    """Returns what a list of jobs says about one of them."""
    text = f"{headline(status)}; {_rate(status)}"
    count = sum(1 for rank in status["ranks"] if abnormal(rank))
    return f"{text}; {counted(count, 'rank')} not as usual" if count else text


def headline(status: Mapping[str, Any]) -> str:
    """Returns which job it is, and how large."""
    found = [item["address"] or item["host"] for item in (*status["ranks"], *status["servers"])]
    hosts = set(filter(None, found))
    size = status["size"] if status["size"] is not None else len(status["ranks"])
    nodes = f" on {counted(status['nodes'], 'node')}" if status["nodes"] else ""
    parts = [counted(size, "rank") + nodes]
    parts += [counted(len(status["servers"]), "server")] if status["servers"] else []
    parts += [counted(len(hosts), "host")] if hosts else []
    parts += [f"running for {show_time(status['uptime'])}"] if status["uptime"] is not None else []
    return f"job '{status['job']}': {', '.join(parts)}"


def steps(status: Mapping[str, Any]) -> str:
    """Returns how many steps a job has done, and how long they take."""
    seconds = status["steps"]["seconds"]
    if seconds["median"] is None:
        return _rate(status)
    text = f"{_rate(status)}; a step takes {show_duration(seconds['median'])}"
    if seconds["min"] is not None and seconds["max"] is not None:
        text += f" ({show_duration(seconds['min'])} to {show_duration(seconds['max'])})"
    exposed = status["steps"]["exposed"]
    return text if exposed is None else f"{text}, of which programs wait {show_duration(exposed)}"


def binds(status: Mapping[str, Any]) -> Line:
    """Returns what bounds the speed of a job, with advice."""
    found = status["binds"]
    steps = status["steps"]
    if steps["stands"] and steps["last"] is not None:
        return "warn", f"No step has ended for {show_duration(steps['last'])}."
    if not found["what"]:
        return "", "It is not known yet what binds."
    if found["what"] == "rank" and not found["who"]:
        part = share(found["share"]) or "Much"
        return "", f"Ranks are late in turn: {part} of a step is the wait for the last one."
    text = _BINDS.get(found["what"], f"{found['what']} binds")
    text += f": {found['who']}" if found["who"] else ""
    text += f", {share(found['share'])} of a step" if found["share"] is not None else ""
    style = "warn" if found["what"] in ("rank", "server") else ""
    return style, f"{text}. {_sentence(found['advice'])}".rstrip()


def spare_servers(status: Mapping[str, Any]) -> list[Line]:
    """Returns whether a job with failover would go on if a dedicated server was lost now."""
    spare = status["servers_to_spare"]
    if spare is None or not any(server["kind"] == "dedicated" for server in status["servers"]):
        return []
    if spare:
        more = f", and {spare - 1} more after it" if spare > 1 else ""
        return [("", f"The job would go on without any one of its dedicated servers{more}.")]
    return [("warn", "The loss of a dedicated server would end the job now.")]


def abnormal(rank: Mapping[str, Any]) -> bool:
    """Returns whether a rank or server is in a state that needs somebody's attention."""
    return rank["state"] not in _NORMAL


def ranks_in_order(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the ranks in the order in which somebody should look at them."""

    def key(rank: Mapping[str, Any]) -> tuple[Any, ...]:
        stands_out = rank["outlier"] or rank["chronic"]
        return (
            rank["state"] not in _BAD,
            not abnormal(rank),
            not stands_out,
            -(rank["late"]["median"] or 0),
            rank["rank"] if rank["rank"] is not None else -1,
        )

    return sorted(status["ranks"], key=key)


def _missing(status: Mapping[str, Any]) -> Iterator[Line]:
    for each in status["missing"]:
        since = f" for {show_duration(each['for'])}" if each["for"] is not None else ""
        if each["by"] is not None:
            yield "bad", _message(status, each, since)
            continue
        yield "bad", f"{each['what']} has waited{since} for {ranks_text(each['ranks'])}."


def _message(status: Mapping[str, Any], message: Mapping[str, Any], since: str) -> str:
    """Returns a line about a rank that waits in a message, and the other one."""
    what, others = message["what"] or "", message["ranks"]
    did = "received" if what.startswith("send") else "sent"
    who = f"{ranks_text(others)} never" if others else "no rank has"
    text = f"{who} {did} the message for which rank {message['by']} has waited{since}: {what}"
    for rank in status["ranks"]:
        if rank["rank"] in others and rank["state"] == "waiting" and rank["where"]:
            text += f"; rank {rank['rank']} {rank['where']}"
    return f"{text}."


def _ranks(status: Mapping[str, Any]) -> tuple[list[Line], list[Line]]:
    """Returns lines about ranks in no normal state, and about those that are late."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    found: list[Line] = []
    for rank in ranks_in_order(status):
        late = bool(rank["outlier"] or rank["chronic"])
        if late:
            found.append(("bad" if rank["state"] in _BAD else "warn", _rank(rank)))
            found += [("stack", f"    {rank['stack']}")] if rank["stack"] else []
        elif abnormal(rank):
            alike.setdefault((rank["state"], rank["where"], rank["stack"]), []).append(rank)
    others: list[Line] = []
    for (state, where, stack), ranks in alike.items():
        since = max((rank["for"] or 0 for rank in ranks), default=0)
        text = f"{_who(ranks)}: {state}" + (f" for {show_duration(since)}" if since else "")
        text += f", {where}" if where else ""
        others.append(("bad" if state in _BAD else "warn", text))
        others += [("stack", f"    {stack}")] if stack else []
    return others, found


def _rank(rank: Mapping[str, Any]) -> str:
    """Returns a line about a rank that is late or an outlier."""
    late, parts = rank["late"], []
    if abnormal(rank):
        parts.append(rank["state"] + (f" for {show_duration(rank['for'])}" if rank["for"] else ""))
    if late["median"]:
        text = f"late by {show_duration(late['median'])}"
        text += f" (at most {show_duration(late['max'])})" if late["max"] else ""
        text += f" in {_part_of_steps(late)}" if late["share"] is not None else ""
        parts.append(text)
    if rank["chronic"]:
        parts.append("again and again")
    text = f"rank {rank['rank']} ({rank['host']}, pid {rank['pid']}): " + ", ".join(parts)
    if rank["cause"]:
        text += f": {_CAUSES.get(rank['cause'], rank['cause'])}" if parts else rank["cause"]
    return text if parts or rank["cause"] else f"{text}stands out among the ranks"


def _part_of_steps(late: Mapping[str, Any]) -> str:
    """Returns in how many steps a rank was late: counted, where a share would seem too sure."""
    if late["steps"] and late["steps"] < _FEW_STEPS:
        return f"{round(late['share'] * late['steps'])} of {late['steps']} steps"
    return f"{share(late['share'])} of the steps"


def _servers(status: Mapping[str, Any]) -> list[Line]:
    found: list[Line] = []
    for server in status["servers"]:
        if not server["outlier"] and not abnormal(server):
            continue
        parts = [server["state"]] if abnormal(server) else ["slow"]
        if server["cause"]:
            parts.append(_CAUSES.get(server["cause"], server["cause"]))
        if server["retransmits"]:
            parts.append(f"{server['retransmits']} retransmits")
        if server["rtt"]:
            parts.append(f"round trip {show_duration(server['rtt'])}")
        style = "bad" if server["state"] in _BAD else "warn"
        kind = f", {server['kind']}" if server["kind"] else ""
        who = f"server {server['server']} ({server['host']}{kind}, pid {server['pid']})"
        found.append((style, f"{who}: {', '.join(parts)}"))
    return found


def group_name(group: Mapping[str, Any]) -> str:
    """Returns a group's number, name and ranks: ``group 3 'tp' (ranks 0-3)``."""
    name = f" '{group['name']}'" if group["name"] else ""
    return f"group {group['group']}{name} ({ranks_text(group['ranks'])})"


def _groups(status: Mapping[str, Any]) -> list[Line]:
    found: list[Line] = []
    for group in status["groups"]:
        if not group["outlier"]:
            continue
        text = f"{group_name(group)}: {group['in_flight']} in flight"
        text += f", and nothing has ended for {show_duration(group['for'])}" if group["for"] else ""
        text += f"; nothing in flight on {ranks_text(group['absent'])}" if group["absent"] else ""
        found.append(("warn", text))
    return found


def _cut(found: list[Line], where: str) -> list[Line]:
    """Returns the lines, but says how many more there are, and where, instead of too many."""
    heads = [index for index, (style, _) in enumerate(found) if style != "stack"]
    if len(heads) <= _MOST:
        return found
    return [*found[: heads[_MOST]], ("", f"... and {len(heads) - _MOST} more: {where}")]


def _who(ranks: Sequence[Mapping[str, Any]]) -> str:
    hosts = sorted({rank["host"] for rank in ranks if rank["host"]})
    if len(ranks) == 1:
        return f"rank {ranks[0]['rank']} ({ranks[0]['host']}, pid {ranks[0]['pid']})"
    where = ", ".join(hosts) if len(hosts) <= 3 else f"{len(hosts)} hosts"
    return f"{ranks_text(rank['rank'] for rank in ranks)} ({where})"


def share(value: float | None) -> str:
    """Returns a share such as ``62 %``."""
    return "" if value is None else f"{value * 100:.0f} %"


def _rate(status: Mapping[str, Any]) -> str:
    count, rate = status["steps"]["count"], status["steps"]["per_second"]
    if not count:
        return "no step yet"
    rounds = max((rank["rounds"] or 0 for rank in status["ranks"]), default=0)
    text = f"{counted(count, 'step')}" + (
        f" ({counted(rounds, 'round')})" if rounds > count else ""
    )
    return text + (f", {rate:.3g} per second" if rate is not None else "")


def _sentence(text: str | None) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""
