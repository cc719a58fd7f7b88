"""What all commands share: the style of errors, suggestions, units, and clean exits."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import statuses
import warm
from flights import missing_rank
from herring.command import cli
from herring.terminal.command_line import guarded
from launched import HERRING, LIMIT

BENCH = [sys.executable, "-m", "herring.bench"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Returns the lines of a usage error."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("run -n two -- true", "herring run: -n 'two' is not valid: allowed is an integer"),
        ("run --workers two -- true", "herring run: --workers 'two' is not valid: allowed is"),
        ("run -n", "herring run: -n needs a value"),
        ("config --json=3", "herring config: --json takes no value, and was given '3'"),
        ("check foo", "herring check: 'foo' is one argument too many"),
        ("simulate --gpus 8", "herring simulate: there is no option --gpus"),
        ("kubernetes --image x", "herring kubernetes: --name is missing"),
        ("--verson", "herring: there is no option --verson; did you mean '--version'?"),
        ("", "herring: COMMAND is missing"),
    ],
)  # fmt: skip
def test_errors_are_in_one_style(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, usage, last = said(capsys, *arguments.split())
    assert first.startswith(line)
    prog = first.partition(":")[0]
    assert usage.startswith(f"usage: {prog}")
    assert last == f"'{prog} --help' explains it"


@pytest.mark.parametrize(
    ("arguments", "prog", "given", "meant"),
    [
        ("run --sevrers 2 -- true", "run", "--sevrers", "--servers"),
        ("run --sevrers=2 -- true", "run", "--sevrers", "--servers"),
        # Abbreviations are refused, because a later option may make them ambiguous.
        ("run --server 2 -- true", "run", "--server", "--servers"),
        ("lab run --qeue 3ms -- true", "lab run", "--qeue", "--queue"),
        ("study --rat 1gbit", "study", "--rat", "--rate"),
        ("kubernetes --nam x --image y -- true", "kubernetes", "--nam", "--name"),
        ("study over-hosts --workers 2", "study", "--workers", "--hosts"),
        ("simulate --latency 1ms", "simulate", "--latency", "--rtt"),
        ("doctor --tim 3", "doctor", "--tim", "--time-limit"),
        ("run --tcp-flag -- true", "run", "--tcp-flag", "--tcp"),
    ],
)
def test_options_that_are_not_there(
    arguments: str, prog: str, given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = said(capsys, *arguments.split())
    assert first == f"herring {prog}: there is no option {given}; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("rum -n 2 -- true", ["'rum' is not a command", "kubernetes", "did you mean 'run'?"]),
        ("lab chek", ["herring lab: 'chek' is not a command", "did you mean 'check'?"]),
        ("simulate --dtype float31", ["'float31'", "--dtype", "bfloat16", "'float32'?"]),
        ("completion csh", ["'csh' is not allowed for SHELL", "bash, fish, zsh"]),
        ("run --timeout soon -- true", ["--timeout 'soon' is not a time", "5m"]),
    ],
)
def test_what_is_allowed_is_said(
    arguments: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = said(capsys, *arguments.split())
    for word in words:
        assert word in first


def test_settings_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "HERRING_TIEMOUT"]) == 2
    said = capsys.readouterr().err
    assert "contains HERRING_TIEMOUT; did you mean 'timeout'? 'herring config' lists all" in said


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ("version", "herring "),
        ("-V", "herring "),
        ("--version", "herring "),
        ("help", "usage: herring [-h]"),
        ("help run", "usage: herring run"),
        ("help lab check", "usage: herring lab check"),
    ],
)
def test_help_and_version(arguments: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(start)


@pytest.mark.parametrize(
    "command",
    [
        [*HERRING, "--help"],
        [*HERRING, "run", "--help"],
        [*HERRING, "config", "--json"],
        [*HERRING, "check", "--no-run", "--json"],
        [*HERRING, "simulate", "--list-models"],
        [*HERRING, "kubernetes", "--name", "a", "--image", "b", "--", "true"],
        [*BENCH, "--help"],
    ],
    ids=lambda command: " ".join(command[2:5]),
)
def test_a_reader_that_has_left_gets_no_traceback(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = warm.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    helps = "--help" in command  # argparse ignores errors when it writes help
    assert done.returncode in ((0, 128 + signal.SIGPIPE) if helps else (128 + signal.SIGPIPE,))


def completed(script: str, words: list[str]) -> list[str]:
    """Returns the completions that bash offers for the last of `words`."""
    code = f"""
source {script}
COMP_WORDS=({" ".join(map(shlex.quote, words))})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_herring
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = warm.run(["bash", "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    hosts = tmp_path / "hosts"
    hosts.touch()
    for words, offered in (
        ("herring chec", "check"),
        ("herring stat", "status"),
        (f"herring status {tmp_path}/ho", str(hosts)),
        ("herring run --sev", ""),
        ("herring run --serv", "--servers"),
        ("herring kubernetes --kind j", "jobset"),
        (f"herring run --hostfile {tmp_path}/ho", str(hosts)),
    ):
        assert completed(str(script), words.split()) == offered.split()


def test_zsh_has_a_script_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef herring\n")


def test_fish_has_a_script_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    assert re.search(r"complete -c herring -n '\S+ run' -l servers ", script)
    assert re.search(r"complete -c herring -n '\S+ status' .*-l watch ", script), script


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_without_the_laboratory_has_the_other_commands(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    for name in [name for name in sys.modules if name.partition(".")[0] == "herring_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "herring_lab", None)
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "kubernetes" in script
    assert "simulate" not in script


def test_completion_without_shtab_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("herring completion: shtab is not installed")
    assert "pip install " in said.err


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """Files that commands show, by the commands' names."""
    documents = {"status": statuses.healthy(64), "flight": missing_rank().document()}
    for name, document in documents.items():
        (tmp_path / name).write_text(json.dumps(document))
    return {name: str(tmp_path / name) for name in documents}


SHOWN = [
    "config",
    "status {status}",
    "status {status} --json",
    "status {status} --all",
    "flight {flight}",
    "simulate --list-models",
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
@pytest.mark.parametrize("command", SHOWN)
def test_output_that_cannot_be_written_is_one_line(saved: dict[str, str], command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = warm.run(
            [*HERRING, *command.format(**saved).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
        )
    assert done.returncode == 1
    assert done.stderr == "herring: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("command", SHOWN)
def test_a_reader_that_has_left_ends_the_command_like_the_signal(
    saved: dict[str, str], command: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = warm.run(
        [*HERRING, *command.format(**saved).split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_encoding_of_the_output_lacks_are_escaped(
    tmp_path: Path, encoding: str
) -> None:
    def shown(*arguments: str) -> str:
        done = subprocess.run(
            [*HERRING, *arguments],
            env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60"},
            capture_output=True,
            timeout=LIMIT,
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode(encoding)

    status, flight = tmp_path / "status", tmp_path / "flight"
    name = "Gr\u00f6\u00dfe \u2192 \U0001f41f"
    status.write_text(json.dumps(statuses.healthy(4, name), ensure_ascii=False), encoding="utf-8")
    flight.write_text(json.dumps(missing_rank().document()).replace("train.py", "\u03c9.py"))
    for option in ([], ["--all"], ["--metrics"]):
        found = shown("status", str(status), *option)
        assert (name if encoding == "utf-8" else r"\u2192 \ud83d\udc1f") in found
    assert json.loads(shown("status", str(status), "--json"))["job"] == name
    assert ("\u03c9" if encoding == "utf-8" else r"\u03c9") in shown("flight", str(flight), "--all")


def test_an_error_of_a_file_is_not_blamed_on_the_output() -> None:
    def broken() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        guarded(broken)


def test_ctrl_c_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130
    assert capsys.readouterr().err == ""
