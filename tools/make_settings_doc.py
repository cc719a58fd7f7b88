"""Writes docs/settings.md, and what the launcher checks, from the table of settings in the core.

Usage: python tools/make_settings_doc.py [--check] (with the package built and importable). With
--check nothing is written; the status is 1 if a file is not current.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
TABLE = ROOT / "python" / "herring" / "rendezvous" / "settings.json"  # see settings.py beside it
COMMAND = "python tools/make_settings_doc.py"
COLUMNS = ("name", "env", "type", "scope", "minimum", "maximum", "choices", "allowed")

# Heading, what stands below it, names. Every setting is in exactly one section.
SECTIONS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "Who and where",
        "A launcher sets these for its processes; on separate hosts they are set by hand. They\n"
        "are read from the environment, because they are needed before the core runs:\n"
        "`herring.init()` refuses them as options. `HERRING_LOCAL_RANK` and `HERRING_LOCAL_SIZE`\n"
        "come together or not at all. Without either, the workers of one host are numbered by\n"
        "rank. Other launchers' variables count only where `HERRING_RANK` is not set.",
        (
            "rendezvous",
            "rendezvous_fd",
            "rank",
            "size",
            "local_rank",
            "local_size",
            "servers",
            "secret_file",
            "secret",
            "job",
            "host_id",
            "ports",
        ),
    ),
    (
        "How things are started and called",
        "The environment alone sets these, too. `HERRING_SSH` and `HERRING_AS_HOROVOD` are of\n"
        "`herring run`; the others choose between ways that give the same results\n"
        "([JAX](jax.md), [TensorFlow](tensorflow.md)).",
        ("ssh", "as_horovod", "jax_impl", "tensorflow_impl"),
    ),
    (
        "The job on this host",
        "Set these in the environment of every process of the job, servers included. For\n"
        "`HERRING_INTERFACE` and `HERRING_PORTS` see [network and security](network.md).",
        ("interface", "log_level", "simd", "shm"),
    ),
    (
        "Time",
        "`HERRING_TIMEOUT` is the default; operations and `wait()` take one of their own. The\n"
        "rhythm of the heartbeats is rank 0's. A wait with no end in sight warns first, and names\n"
        "the ranks that are missing. At the start every process says after 5 s whom it waits for,\n"
        "and again after pauses of 10, 20, 40 s ...; likewise ranks that have waited 5 s for one\n"
        "another in different calls are told who waits where. `HERRING_WARN_AFTER` makes the 5 s\n"
        "shorter, never longer.",
        ("timeout", "warn_after", "connect_timeout", "heartbeat_interval", "heartbeat_timeout"),
    ),
    (
        "The data plane",
        "Nothing here has to be set: credit finds its size by itself, the plan chooses the fusion\n"
        "buffers. None of it changes a result by a bit, with one exception: an operation up to\n"
        "`HERRING_SMALL_BYTES` is summed over ranks in one stage, a larger one in two (node, then\n"
        "server), and so may be rounded differently. A fixed credit that is too large for the\n"
        "buffers of a switch costs retransmissions; see [the protocol](protocol.md#credit).",
        (
            "buffer_bytes",
            "segment_bytes",
            "frame_max",
            "small_bytes",
            "flows",
            "proxies",
            "server_weights",
            "credit",
            "credit_max",
            "server_memory",
        ),
    ),
)

HEAD = f"""\
<!-- Written by tools/make_settings_doc.py from src/base/settings_table.h. Do not edit. -->

# Settings

Everything works without a setting; those below are for the cases in which it should work
differently. `herring config` prints each with its value and where the value comes from,
`herring config --json` the same for programs.

- **Origin.** An option of `herring.init()` (`herring.init(timeout=600)`) wins over the environment
  (`HERRING_TIMEOUT=600`), which wins over the default. A variable that is set but empty counts as
  not set. An unknown `HERRING_...` gives a warning that names the nearest known one.
- **Bytes** are written `8192`, `64K`, `4MB` (K, M, G, T are powers of 1000) or `4MiB` (KiB, MiB ...
  are powers of 1024). **Seconds** are written `0.5`, `200ms`, `30s`, `5m`, `1h`. Where 0 is
  allowed beside a range, it means automatic.
- **Shared.** Settings marked *shared* must be alike in the whole job: every process, servers
  included, takes over the value that rank 0 has. Setting them elsewhere has no effect.
- A value that is not allowed is a `ConfigurationError` that names the variable, its value and what
  is allowed.

This page is written by `{COMMAND}`.
"""


def settings_read() -> set[str]:
    """Names that the core looks up somewhere outside the table itself."""
    found: set[str] = set()
    for folder in ("src", "bindings"):
        for source in (ROOT / folder).rglob("*.cc"):
            if source.name != "settings.cc":
                text = source.read_text(encoding="utf-8")
                found |= set(re.findall(r'(?:get_\w+|find)\("(\w+)"\)', text))
    return found


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The page for these settings.

    Args:
      rows: name, env, type, default, help and allowed per setting, as ``herring config --json``.

    Raises:
      ValueError: a setting is in no section, or a section names one that does not exist.
    """
    by_name = {row["name"]: row for row in rows}
    placed = [name for _, _, names in SECTIONS for name in names]
    if sorted(placed) != sorted(by_name):
        odd = sorted(set(placed) ^ set(by_name)) or "one that is there twice"
        raise ValueError(f"SECTIONS of tools/make_settings_doc.py and the core differ in {odd}")
    read = settings_read()
    parts = [HEAD]
    for heading, text, names in SECTIONS:
        parts.append(f"\n## {heading}\n\n{text}\n\n")
        parts.append("| variable | option | default | allowed | meaning |\n|---|---|---|---|---|\n")
        for name in names:
            row = by_name[name]
            option = "" if row["scope"] == "environment" else f"`{name}`"
            default = f"`{row['default']}`" if row["default"] else "empty"
            meaning = row["help"] + (" (*shared*)" if row["scope"] == "job" else "")
            if row["scope"] != "environment" and name not in read:
                meaning += " (**not in effect yet**: nothing reads it)"
            cells = [f"`{row['env']}`", option, default, row["allowed"], meaning]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """What the launcher reads: of each setting what it accepts, and who reads it."""
    kept = [{column: row[column] for column in COLUMNS} for row in rows]
    return json.dumps(kept, indent=1) + "\n"


def current_files() -> dict[Path, str]:
    """What the files say by the core that can be imported here, whatever this environment sets."""
    for name in list(os.environ):
        if name.startswith("HERRING_"):
            del os.environ[name]
    from herring import _core

    rows = [dict(row) for row in _core.settings()]
    return {PAGE: page(rows), TABLE: table(rows)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description="Writes docs/settings.md from the core's table.")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    status = 0
    for path, text in current_files().items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not current: run '{COMMAND}'", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
