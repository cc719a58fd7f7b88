"""Writes docs/settings.md from the table of settings in the core.

Usage: python tools/make_settings_doc.py [--check]. The package must be built and importable. With
--check, nothing is written, and the exit status is 1 if the page is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from written_page import ROOT, write_or_check

PAGE = ROOT / "docs" / "settings.md"
COMMAND = "python tools/make_settings_doc.py"

OBSERVING = ("observe", "report_every", "status", "timeline", "flight_folder")

# For each section, its heading, its introduction, and a filter for settings. A setting appears in
# the first section whose filter accepts it.
SECTIONS: Sequence[tuple[str, str, Callable[[Mapping[str, str]], bool]]] = (
    (
        "Who and where",
        "A launcher sets these for its processes; on separate hosts, set them by hand. They are\n"
        "read from the environment only, because they are needed before the job starts:\n"
        "`herring.init()` rejects them as options. Set both `HERRING_LOCAL_RANK` and\n"
        "`HERRING_LOCAL_SIZE`, or neither. If neither is set, the workers of a host are numbered\n"
        "by rank. Other launchers' variables are used only if `HERRING_RANK` is not set.\n"
        "`HERRING_SSH` and `HERRING_AS_HOROVOD` configure `herring run` itself. `herring run`\n"
        "sets the others for the processes it starts, whatever their values are where it runs.",
        lambda row: row["scope"] == "launcher",
    ),
    (
        "Ports, notice, and how frameworks call Herring",
        "These are read from the environment only, too. [Ports](how-to/ports.md) is about\n"
        "`HERRING_PORTS`, and [elastic jobs](how-to/elastic.md#notice-before-the-end) about\n"
        "`HERRING_NOTICE`. The others choose between methods that give the same results\n"
        "([JAX](jax.md), [TensorFlow](tensorflow.md), [GPUs](gpus.md)).",
        lambda row: row["scope"] == "environment",
    ),
    (
        "Time",
        "`HERRING_TIMEOUT` is the default timeout; operations and `wait()` accept a timeout of\n"
        "their own. Rank 0's value sets the interval of the heartbeats. Before a wait times out,\n"
        "a warning names the missing ranks. At the start, every process says after 5 s whom it\n"
        "waits for, and again after pauses of 10, 20, 40 s ... While the others may still import\n"
        "their libraries, these lines have the level `info`: for as long as the process itself\n"
        "took to start, and at most 30 s. If ranks wait for each other in different calls for\n"
        "5 s, they are told who waits where. `HERRING_WARN_AFTER` can shorten the 5 s, but not\n"
        "lengthen them. A [deadlock](failure.md#deadlocks) that is certain ends after 10 s in\n"
        "which nothing moves, whatever the settings are.",
        lambda row: row["type"] == "seconds",
    ),
    (
        "What Herring records and reports",
        "Processes record what they do, and rank 0 compares them. Without these records, results\n"
        "stay the same, but Herring cannot say which rank is late.",
        lambda row: row["name"] in OBSERVING,
    ),
    (
        "The job on this host",
        "Set these in the environment of every process of the job, including servers. For\n"
        "`HERRING_INTERFACE`, see [network and security](network.md), for `HERRING_LOG_LEVEL`,\n"
        "[the log](logging.md).",
        lambda row: row["scope"] == "process",
    ),
    (
        "The data plane",
        "You need not set any of these: Herring adapts the credit (the bytes that a flow may have\n"
        "outstanding), and the plan chooses the fusion buffers, in which gradients travel. These\n"
        "settings do not change a bit of any result, with one exception: an operation\n"
        "of up to `HERRING_SMALL_BYTES` is summed over ranks in one stage. A larger operation is\n"
        "summed in two stages (node, then server), so its result may be rounded differently. A\n"
        "fixed credit that is too large for the buffers of a switch causes retransmissions; see\n"
        "[the protocol](protocol.md#credit).",
        lambda row: row["scope"] == "job",
    ),
)

HEAD = """\
<!-- Written by tools/make_settings_doc.py from src/base/settings_table.h. Do not edit. -->

# Settings

Herring works without any settings; use the settings below to change its behaviour. `herring config`
prints each setting with its value and the origin of the value; `herring config --json` prints the
same for programs.

- **Origin.** An option of `herring.init()` (`herring.init(timeout=600)`) overrides the environment
  (`HERRING_TIMEOUT=600`), which overrides the default. A variable that is set but empty counts as
  not set. An unknown `HERRING_...` variable causes a warning that names the most similar known one.
- **Options** without dashes are arguments of `herring.init()`. Options with dashes are options of
  `herring`'s commands (`herring run --help`).
- **Bytes** are written `8192`, `64K`, `4MB` (K, M, G, T are powers of 1000) or `4MiB` (KiB, MiB ...
  are powers of 1024). **Seconds** are written `0.5`, `200ms`, `30s`, `5m`, `1h`. Where 0 is
  allowed in addition to a range, it means automatic.
- Settings marked *shared* must be the same in the whole job: every process, including servers,
  takes over rank 0's value. Setting them elsewhere has no effect.
- A value that is not allowed raises a `ConfigurationError` that names the variable, its value and
  the allowed values.
"""


def settings_read() -> set[str]:
    """Returns the names of settings that the core reads anywhere outside the table itself."""
    found: set[str] = set()
    for folder in ("src", "bindings"):
        for source in (ROOT / folder).rglob("*.[ch]*"):
            if source.name != "settings.cc":
                text = source.read_text(encoding="utf-8")
                found |= set(re.findall(r'(?:get_\w+|find)\("(\w+)"\)', text))
    return found


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns the text of the page.

    Args:
      rows: the rows of the table of settings, from ``_core.setting_rows()``.
    """
    read = settings_read()
    parts = [HEAD]
    left = list(rows)
    for heading, text, takes in SECTIONS:
        parts.append(f"\n## {heading}\n\n{text}\n\n")
        for row in filter(takes, left):
            of_init = row["scope"] in ("process", "job")
            options = [row["name"]] if of_init else []
            options += [each for each in row["flags"].split() if each.startswith("-")]
            meaning = row["help"].removesuffix(".")
            meaning += " (*shared*)." if row["scope"] == "job" else "."
            if of_init and row["name"] not in read:
                meaning += " **Not in effect yet**: nothing reads it."
            parts.append(f"### `{row['env']}`\n\n{meaning}\n\n")
            default = f"`{row['default']}`" if row["default"] else "empty"
            parts.append(f"- default: {default}\n")
            parts.append(f"- allowed: {row['allowed']}\n")
            if options:
                parts.append(f"- option: {', '.join(f'`{each}`' for each in options)}\n")
            parts.append("\n")
        left = [row for row in left if not takes(row)]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts)).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the page, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes docs/settings.md from the core's table.")
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    options = parser.parse_args(arguments)
    from herring import _core

    return write_or_check(PAGE, page(_core.setting_rows()), COMMAND, options.check)


if __name__ == "__main__":
    sys.exit(main())
