"""Finds a job through a store of torch, and makes a store of torch through a job."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import secrets
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

import herring
from herring.arrays import runtime
from herring.arrays.objects import broadcast_plain
from herring.base.units import in_seconds
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous.detect import Rendezvous, WorkerEnvironment, detect
from herring.rendezvous.endpoint import bind_any
from herring.rendezvous.identity import host_identity
from herring.rendezvous.meet import Meeting, meet, meet_nobody, read_secret_file
from herring.rendezvous.network import loopback_address, own_address
from herring.rendezvous.publication import Wait

_SECRET_BYTES = 32
# How often this process has met under a key. A second meeting must not read the first one's entry.
_uses: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


def join_by_store(store: Any, rank: int, size: int, settings: Mapping[str, Any]) -> bool:
    """Joins the job of the ranks that share a store, unless this process is in a job already.

    If ``HERRING_RENDEZVOUS`` is set, as dedicated servers require and ``herring run`` does, the
    ranks meet there. Otherwise rank 0 publishes an address and a secret in the store.

    Returns:
      Whether this call joined a job.

    Raises:
      ConfigurationError: The process is in a job as another rank, the store does not reach the
        other ranks, or the environment or a setting is wrong.
      TimeoutError: Not all processes came in time; the message lists those that are missing.
    """
    if not runtime.is_initialized():
        given = "HERRING_RENDEZVOUS" in os.environ
        base = base_of(store)
        if size > 1 and not given and isinstance(base, getattr(dist, "HashStore", ())):
            raise ConfigurationError(
                f"the store is a HashStore, which reaches only this process, but there are {size} "
                "ranks: use a TCPStore or a FileStore"
            )

        def met(worker: WorkerEnvironment, patience: float, first_reminder: float) -> Meeting:
            if given:
                return meet(worker, os.environ, patience, first_reminder)
            restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            name = f"herring/{worker.job}/{restart}"
            name += f"/{next(_uses[name])}"
            wait = Wait(f"rank {worker.rank} of {worker.size}", patience, first_reminder)
            return meet_by_store(store, worker, name, wait)

        if runtime.start(lambda: _worker(rank, size), met, dict(settings)):
            return True
    if (herring.rank(), herring.size()) != (rank, size):
        raise ConfigurationError(
            f"this process is rank {rank} of {size} for torch.distributed, but rank "
            f"{herring.rank()} of {herring.size()} in the job that it joined by "
            "herring.init(): give both the same, or leave out herring.init()"
        )
    return False


def _worker(rank: int, size: int) -> WorkerEnvironment:
    """Returns what the environment says about this worker, with the given rank and size."""
    environ = dict(os.environ)
    known = environ.get("HERRING_RANK", "").strip(), environ.get("HERRING_SIZE", "").strip()
    if known[0] and known != (str(rank), str(size)):
        raise ConfigurationError(
            f"HERRING_RANK={known[0]} and HERRING_SIZE={known[1]} contradict what "
            f"init_process_group was given: rank {rank} of {size}"
        )
    environ |= {"HERRING_RANK": str(rank), "HERRING_SIZE": str(size)}
    if "HERRING_RENDEZVOUS" in os.environ:
        return detect(environ)
    if environ.get("HERRING_SERVERS", "").strip() not in ("", "0"):
        return detect(environ)  # raises an error: servers need an address
    return _without_address(environ, size)


def _without_address(environ: dict[str, str], size: int) -> WorkerEnvironment:
    environ["HERRING_RENDEZVOUS"] = "127.0.0.1:1"  # a placeholder that is never used
    found = detect(environ)
    return dataclasses.replace(found, rendezvous=Rendezvous("none" if size == 1 else "store"))


def worker_again(rank: int, size: int) -> WorkerEnvironment:
    """Returns what the environment says about a worker of a job that follows another one.

    Its rank and size are those of the new job, whatever the launcher has set for the first one.
    """
    environ = dict(os.environ)
    if environ.get("HERRING_SERVERS", "").strip() not in ("", "0"):
        raise ConfigurationError(
            f"HERRING_SERVERS={environ['HERRING_SERVERS'].strip()}: a process group whose members "
            "change has no dedicated servers, because these belong to one job: unset it"
        )
    for name in ("LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS_FD"):
        environ.pop(f"HERRING_{name}", None)
    environ |= {"HERRING_RANK": str(rank), "HERRING_SIZE": str(size)}
    return _without_address(environ, size)


def secret_of(worker: WorkerEnvironment) -> bytes | None:
    """Returns the secret that the user has given to this process, or None."""
    if worker.secret_file is not None:
        return read_secret_file(worker.secret_file)
    return worker.secret


def base_of(store: Any) -> Any:
    """Returns the store below those that only add a prefix."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def meet_by_store(store: Any, worker: WorkerEnvironment, name: str, wait: Wait) -> Meeting:
    """Finds the other ranks in a store: rank 0 publishes an address there, and perhaps a secret."""
    secret = secret_of(worker)
    if worker.size == 1:
        return meet_nobody(secret)
    if worker.rank != 0:
        store.set(f"{name}/host/{worker.rank}", host_identity())
        _wait_for_keys(store, {f"{name}/address": 0}, wait)
        note = json.loads(store.get(f"{name}/address"))
        if not note["secret"] and secret is None:
            raise ConfigurationError(
                "rank 0 was given a secret (HERRING_SECRET_FILE or HERRING_SECRET), but this "
                "process was not: set HERRING_SECRET_FILE for all ranks"
            )
        return Meeting(note["address"], secret or bytes.fromhex(note["secret"]))
    keys = {f"{name}/host/{rank}": rank for rank in range(1, worker.size)}
    _wait_for_keys(store, keys, wait)
    hosts = {store.get(key).decode() for key in keys} | {host_identity()}
    if len(hosts) == 1:
        address = loopback_address()
    else:
        interface = os.environ.get("HERRING_INTERFACE", "")
        address = own_address(getattr(base_of(store), "host", ""), interface)
    listener = bind_any(address, os.environ)
    place = Rendezvous("address", address, listener.getsockname()[1]).address
    shared = secret or secrets.token_bytes(_SECRET_BYTES)
    # The user's own secret stays in the user's file.
    note = {"address": place, "secret": "" if secret else shared.hex()}
    store.set(f"{name}/address", json.dumps(note))

    def withdraw() -> None:
        for key in [f"{name}/address", *keys]:
            with contextlib.suppress(Exception):  # not possible in every store
                store.delete_key(key)

    return Meeting(place, shared, listener, withdraw)


def _wait_for_keys(store: Any, keys: Mapping[str, int], wait: Wait) -> None:
    """Waits until all ranks have written their keys. It polls so that Ctrl-C works."""
    pause = 0.002
    missing = dict(keys)
    while missing:
        if not store.check([next(iter(missing))]):
            ranks = ", ".join(map(str, missing.values()))
            if not wait.goes_on("meet it in the store of init_process_group"):
                raise TimeoutError(
                    f"{wait.who} has waited {in_seconds(wait.timeout)} (HERRING_CONNECT_TIMEOUT) "
                    f"for rank {ranks} to come to the store of init_process_group"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
            continue
        del missing[next(iter(missing))]


def rendezvous(url: str, **_: Any) -> Any:
    """Finds the ranks as `herring.init` does, under any launcher, and makes a store for torch.

    This is the handler of ``init_process_group("herring", init_method="herring://")``.

    Yields:
      The store, the rank of this process, and the number of ranks.
    """
    herring.init()
    given = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)  # added by torch
    for name, found in (("rank", herring.rank()), ("world_size", herring.size())):
        if name in given and given[name][-1] not in ("-1", str(found)):
            raise ConfigurationError(
                f"init_process_group was given {name}={given[name][-1]}, but the launcher says "
                f"{found}: leave it out with init_method='herring://'"
            )
    patience = datetime.timedelta(minutes=5)
    place = None
    if herring.rank() == 0:
        several = herring.num_nodes() > 1
        interface = os.environ.get("HERRING_INTERFACE", "")
        host = own_address("", interface) if several else loopback_address()
        listener = bind_any(host, os.environ)
        place = host, listener.getsockname()[1]
        store = dist.TCPStore(
            *place,
            None,
            True,
            timeout=patience,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    place = broadcast_plain(place, name="torch.store")
    if herring.rank() != 0:
        store = dist.TCPStore(*place, None, False, timeout=patience, wait_for_workers=False)
    yield store, herring.rank(), herring.size()
    raise RuntimeError("the number of ranks cannot change")
