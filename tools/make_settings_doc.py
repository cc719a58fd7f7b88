"""Writes docs/settings.md from the table of settings in the core.

Usage: python tools/make_settings_doc.py [--check] (with the package built and importable). With
--check nothing is written; the status is 1 if the page is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
COMMAND = "python tools/make_settings_doc.py"

# Heading, what stands below it, and which settings it has; the first that takes one has it.
SECTIONS: Sequence[tuple[str, str, Callable[[Mapping[str, str]], bool]]] = (
    (
        "Who and where",
        "A launcher sets these for its processes; on separate hosts they are set by hand. They\n"
        "are read from the environment, because they are needed before the job starts:\n"
        "`herring.init()` refuses them as options. `HERRING_LOCAL_RANK` and `HERRING_LOCAL_SIZE`\n"
        "come together or not at all. Without either, the workers of one host are numbered by\n"
        "rank. Other launchers' variables count only where `HERRING_RANK` is not set.\n"
        "`HERRING_SSH` and `HERRING_AS_HOROVOD` are of `herring run`. It sets the others for what\n"
        "it starts, whatever they are where it is called.",
        lambda row: row["scope"] == "launcher",
    ),
    (
        "How a process is reached and calls",
        "The environment alone sets these, too. For `HERRING_PORTS` see\n"
        "[network and security](network.md). The last two choose between ways that give the same\n"
        "results ([JAX](jax.md), [TensorFlow](tensorflow.md)).",
        lambda row: row["scope"] == "environment",
    ),
    (
        "Time",
        "`HERRING_TIMEOUT` is the default; operations and `wait()` take one of their own. The\n"
        "rhythm of the heartbeats is rank 0's. A wait with no end in sight warns first, and names\n"
        "the ranks that are missing. At the start every process says after 5 s whom it waits for,\n"
        "and again after pauses of 10, 20, 40 s ...; likewise ranks that have waited 5 s for one\n"
        "another in different calls are told who waits where. `HERRING_WARN_AFTER` makes the 5 s\n"
        "shorter, never longer.",
        lambda row: row["type"] == "seconds",
    ),
    (
        "The job on this host",
        "Set these in the environment of every process of the job, servers included. For\n"
        "`HERRING_INTERFACE` see [network and security](network.md).",
        lambda row: row["scope"] == "process",
    ),
    (
        "The data plane",
        "Nothing here has to be set: credit finds its size by itself, the plan chooses the fusion\n"
        "buffers. None of it changes a result by a bit, with one exception: an operation up to\n"
        "`HERRING_SMALL_BYTES` is summed over ranks in one stage, a larger one in two (node, then\n"
        "server), and so may be rounded differently. A fixed credit that is too large for the\n"
        "buffers of a switch costs retransmissions; see [the protocol](protocol.md#credit).",
        lambda row: row["scope"] == "job",
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
- **Options.** `init()` takes the settings that have a name in the second column; the options there
  are of `herring`'s commands (`herring run --help`).
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
        for source in (ROOT / folder).rglob("*.[ch]*"):
            if source.name != "settings.cc":
                text = source.read_text(encoding="utf-8")
                found |= set(re.findall(r'(?:get_\w+|find)\("(\w+)"\)', text))
    return found


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The page for these settings.

    Args:
      rows: of the table, as ``_core.setting_rows()`` has them.
    """
    read = settings_read()
    parts = [HEAD]
    left = list(rows)
    for heading, text, takes in SECTIONS:
        parts.append(f"\n## {heading}\n\n{text}\n\n")
        parts.append("| variable | option | default | allowed | meaning |\n|---|---|---|---|---|\n")
        for row in filter(takes, left):
            of_init = row["scope"] in ("process", "job")
            options = [row["name"]] if of_init else []
            options += [each for each in row["flags"].split() if each.startswith("-")]
            default = f"`{row['default']}`" if row["default"] else "empty"
            meaning = row["help"] + (" (*shared*)" if row["scope"] == "job" else "")
            if of_init and row["name"] not in read:
                meaning += " (**not in effect yet**: nothing reads it)"
            names = ", ".join(f"`{each}`" for each in options)
            cells = [f"`{row['env']}`", names, default, row["allowed"], meaning]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
        left = [row for row in left if not takes(row)]
    return "".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description="Writes docs/settings.md from the core's table.")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    from herring import _core

    text = page(_core.setting_rows())
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is not current: run '{COMMAND}'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
