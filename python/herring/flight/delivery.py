"""Finds where an operation is stuck that every rank has called: on its way to servers and back."""

from __future__ import annotations

from collections.abc import Sequence

from herring.base.units import ranks_text, show_duration
from herring.flight.findings import Finding, doing, is_down, longest_wait, note
from herring.flight.operations import Operation, describe
from herring.flight.record import Entry, Record

_LATE = 0.1  # seconds; ranks that come within this time count as together


def path_finding(record: Record, operation: Operation) -> Finding:
    """Says where the data of an operation is that every rank has called."""
    if (late := _late(record, operation)) is not None:
        return late
    unready = [r for r in operation.waiting if operation.calls[r].ready is None]
    if unready:
        return _unready(record, operation, unready)
    return _Path(record, operation).finding()


def _late(record: Record, operation: Operation) -> Finding | None:
    """Looks for ranks that came after others had given up, or only just before the record."""
    calls = operation.calls
    given_up = [one.done for one in calls.values() if not one.finished and one.done is not None]
    if given_up:
        late = [r for r, one in sorted(calls.items()) if (one.called or 0.0) > min(given_up)]
        others = [rank for rank in calls if rank not in late]
        if late and others:
            after = min(calls[rank].called or 0.0 for rank in late) - min(given_up)
            text = (
                f"{describe(late, record)} called {operation.title} {show_duration(after)} after "
                f"{ranks_text(others)} had given it up"
            )
            return Finding("late", text, tuple(late), operation=operation.key)
    moments = {rank: one.ready for rank, one in calls.items() if one.ready is not None}
    if len(moments) < len(calls):
        return None
    last, first = max(moments.values()), min(moments.values())
    since = min([record.time, *given_up]) - last
    late = [rank for rank, ready in sorted(moments.items()) if ready - first > (last - first) / 2]
    if last - first < _LATE or last - first < 2 * since or len(late) == len(calls):
        return None
    text = (
        f"{describe(late, record)} gave {'their' if len(late) > 1 else 'its'} data of "
        f"{operation.title} {show_duration(last - first)} after "
        f"{ranks_text(rank for rank in calls if rank not in late)}, and "
        f"{show_duration(since)} before the record ends"
    )
    return Finding("late", text, tuple(late), operation=operation.key)


def _unready(record: Record, operation: Operation, unready: Sequence[int]) -> Finding:
    ready = [rank for rank in operation.calls if rank not in unready]
    if not ready:
        text = f"all ranks have begun {operation.title}, and none has given all its data yet"
        return Finding("computing", text, operation=operation.key)
    counts = ""
    if len(unready) == 1 and (buffers := operation.buffers.get(unready[0])):
        total = max(len(operation.buffers.get(rank, ())) for rank in operation.calls)
        given = sum(one.ready is not None for one in buffers)
        if total > 0 and given < total:
            counts = f" ({given} of {total} buffers)"
    down = [rank for rank in unready if is_down(record, "rank", rank)]
    clauses = [text for rank in unready if (text := doing(record, "rank", rank))]
    reason = f"; {clauses[0]}" if len(unready) == 1 and clauses else ""
    verb = "have" if len(unready) > 1 else "has"
    owner = "their" if len(unready) > 1 else "its"
    waited = show_duration(longest_wait(record, operation))
    text = (
        f"{describe(unready, record)} {verb} begun {operation.title} and not given all {owner} "
        f"data{counts}, for which {ranks_text(ready)} waited {waited}{reason}"
    )
    kind = "stopped" if down and len(down) == len(unready) else "unready"
    return Finding(kind, text, tuple(unready), operation=operation.key)


class _Path:
    """The first piece of an operation that is stuck, and what each process says about it."""

    def __init__(self, record: Record, operation: Operation) -> None:
        self._record = record
        self._operation = operation
        self._pieces = self._first_stuck()
        self._late = [r for r, one in sorted(self._pieces.items()) if one.done is None]
        if not self._late:  # the piece has arrived or failed everywhere
            self._late = [r for r, one in sorted(self._pieces.items()) if not one.finished]

    def _first_stuck(self) -> dict[int, Entry]:
        """Returns each rank's entry for the first fusion buffer that is stuck, or for the call."""
        operation = self._operation
        numbers = sorted(
            {
                one.buffer
                for rank in operation.waiting
                for one in operation.buffers.get(rank, ())
                if not one.finished
            }
        )
        for number in numbers:
            pieces = {
                rank: one
                for rank, buffers in operation.buffers.items()
                for one in buffers
                if one.buffer == number
            }
            if len(pieces) == len(operation.calls):
                return pieces
        return dict(operation.calls)

    def _sums(self) -> dict[int, Entry]:
        """Returns each server's entry for the piece."""
        numbers = {one.buffer for one in self._pieces.values() if one.kind == "buffer"}
        found = {}
        for server, sums in self._operation.sums.items():
            for one in sums:
                if not numbers or one.buffer in numbers:
                    found[server] = one
        return found

    def finding(self) -> Finding:
        record, operation = self._record, self._operation
        down = [rank for rank in operation.calls if is_down(record, "rank", rank)]
        down = [rank for rank in down if not operation.calls[rank].finished]
        if down:
            text = (
                f"{describe(down, record)} had called {operation.title}, for which "
                f"{ranks_text(r for r in operation.waiting if r not in down)} waited "
                f"{self._waited()}; {note(record, 'rank', down[0])}"
            )
            return self._found("stopped", text, down)
        sums = self._sums()
        suspects = {*self._expected(), *sums}
        gone = [server for server in sorted(suspects) if is_down(record, "server", server)]
        gone = [server for server in gone if server not in sums or sums[server].done is None]
        if gone:
            text = (
                f"{ranks_text(operation.waiting)} waited {self._waited()} in {operation.title} for "
                f"{self._server(gone[0])}: {note(record, 'server', gone[0])}"
            )
            return self._found("stopped", text, servers=gone)
        return self._on_server(sums) or self._before_server(sums)

    def _on_server(self, sums: dict[int, Entry]) -> Finding | None:
        """Looks for servers that have everyone's data."""
        for server, one in sorted(sums.items()):
            if one.ready is not None and one.summed is None:
                text = (
                    f"{self._server(server)} has had everyone's data of {self._operation.title} "
                    f"for {self._since(one.ready)}, and has not summed it"
                )
                return self._found("server", text, servers=[server])
        summed = [server for server, one in sorted(sums.items()) if one.summed is not None]
        if not sums or len(summed) < len({*sums, *self._expected()}) or not self._late:
            return None
        if all(self._pieces[rank].pushed is None for rank in self._late):
            return None  # their own data may be what another server misses
        first = min(summed, key=lambda server: sums[server].summed or 0.0)
        text = (
            f"{ranks_text(summed, 'server')} summed {self._operation.title} "
            f"{self._since(sums[first].summed)} before, but the result did not arrive at "
            f"{describe(self._late, self._record)}: look at the link between them"
        )
        if len(self._late) == len(self._pieces):
            return self._found("result", text, servers=summed if len(summed) == 1 else ())
        return self._found("result", text, self._late)

    def _before_server(self, sums: dict[int, Entry]) -> Finding:
        operation, title = self._operation, self._operation.title
        held = [rank for rank in self._late if self._pieces[rank].pushed is None]
        pushed = [rank for rank in self._pieces if self._pieces[rank].pushed is not None]
        combined = [rank for rank in self._pieces if self._pieces[rank].reduced is not None]
        lacking = [rank for rank in held if self._pieces[rank].reduced is None]
        hosts = {self._host(rank) for rank in lacking}
        if lacking and combined and len(hosts) == 1 and "" not in hosts:
            host = next(iter(hosts))
            if not any(self._host(rank) == host for rank in combined):
                text = (
                    f"{ranks_text(lacking)} on {host} gave their data of {title}, and the "
                    f"processes of that host have not combined it for {self._waited()}"
                )
                return self._found("node", text, lacking)
        unseen = [server for server in self._expected() if server not in sums]
        if unseen and pushed and not held:
            text = (
                f"{ranks_text(pushed)} sent {title}, and nothing of it reached "
                f"{self._server(unseen[0])} within {self._waited()}: the link to it is cut"
            )
            return self._found("link", text, servers=unseen)
        if held and pushed:
            text = (
                f"{describe(held, self._record)} has not sent all of {title} for {self._waited()}, "
                f"but {ranks_text(pushed)} {'have' if len(pushed) > 1 else 'has'}: look at the "
                f"link between {ranks_text(held)} and the servers"
            )
            return self._found("link", text, held)
        waiting = [server for server, one in sorted(sums.items()) if one.ready is None]
        if waiting and pushed and not held:
            told = self._missing_at_servers()
            whose = ranks_text(told) if told else "a rank (the record cannot tell which)"
            text = (
                f"all ranks sent {title}, but {self._server(waiting[0])} lacks data of {whose} "
                f"for {self._waited()}: look at the link between them"
            )
            return self._found("link", text, told, waiting)
        where = "no server's record came" if not self._record.servers else "no server has it"
        text = (
            f"all ranks have called {title} and given their data, and "
            f"{ranks_text(operation.waiting)} waited {self._waited()}; cannot tell for whom "
            f"({where})"
        )
        return self._found("unknown", text)

    def _expected(self) -> list[int]:
        """Returns the servers that have summed this plan or name before, so must see it again."""
        key = self._operation.key
        streams = {one.stream for one in self._pieces.values()}
        numbers = {one.buffer for one in self._pieces.values() if one.kind == "buffer"}
        expected = []
        for server, process in self._record.servers.items():
            for one in process.entries:
                same = one.name == key.name or (not one.name and one.stream in streams)
                if same and one.group == key.group and (not numbers or one.buffer in numbers):
                    expected.append(server)
                    break
        silent = [index for kind, index in self._record.silent if kind == "server"]
        return sorted({*expected, *silent})

    def _missing_at_servers(self) -> list[int]:
        key = self._operation.key
        what = (self._operation.title, key.name, f"'{key.name}' (round {key.round})")
        return sorted({r for one in self._record.missing if one.what in what for r in one.ranks})

    def _host(self, rank: int) -> str:
        process = self._record.ranks.get(rank)
        return process.host if process is not None else ""

    def _server(self, server: int) -> str:
        process = self._record.servers.get(server)
        host = f" ({process.host})" if process is not None and process.host else ""
        return f"server {server}{host}"

    def _waited(self) -> str:
        """Returns how long all data have been there at most."""
        last = max(one.ready or 0.0 for one in self._operation.calls.values())
        ended = [self._operation.calls[rank].done for rank in self._operation.waiting]
        end = max([self._record.time if one is None else one for one in ended], default=last)
        return show_duration(max(end - last, 0.0))

    def _since(self, moment: float | None) -> str:
        return show_duration(max(self._record.time - (moment or self._record.time), 0.0))

    def _found(
        self, kind: str, text: str, ranks: Sequence[int] = (), servers: Sequence[int] = ()
    ) -> Finding:
        return Finding(kind, text, tuple(ranks), tuple(servers), self._operation.key)
