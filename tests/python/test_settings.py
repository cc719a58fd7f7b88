"""The docs, `herring config`, the command line and init() accept the same values of settings."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import warm
from herring import _core
from herring.command import cli, config
from herring.errors import ConfigurationError
from herring.launch import environment
from herring.rendezvous import settings
from herring.rendezvous.detect import detect, detect_server
from jobs import program

ROOT = Path(__file__).resolve().parents[2]
ROWS = {row["env"]: row for row in map(dict, _core.setting_rows())}
OUTSIDE = ("launcher", "environment")  # Scopes of the settings that init() does not accept.
SECRET = "ab" * 32
# Other variables that must be set so that a variable's value is valid.
COMPANIONS = {
    "HERRING_RANK": {"HERRING_SIZE": "1048576", "HERRING_RENDEZVOUS": "h:1"},
    "HERRING_SIZE": {"HERRING_RANK": "0", "HERRING_RENDEZVOUS": "h:1"},
    "HERRING_LOCAL_RANK": {
        "HERRING_RANK": "0",
        "HERRING_SIZE": "1048576",
        "HERRING_LOCAL_SIZE": "1048576",
        "HERRING_RENDEZVOUS": "h:1",
    },
    "HERRING_LOCAL_SIZE": {
        "HERRING_RANK": "0",
        "HERRING_SIZE": "1048576",
        "HERRING_LOCAL_RANK": "0",
        "HERRING_RENDEZVOUS": "h:1",
    },
    "HERRING_SERVERS": {"HERRING_RANK": "0", "HERRING_SIZE": "2", "HERRING_RENDEZVOUS": "h:1"},
    "HERRING_RENDEZVOUS_FD": {"HERRING_RENDEZVOUS": "h:1"},
    "HERRING_TLS": {f"HERRING_TLS_{name}": "/a/file" for name in ("CERTIFICATE", "KEY", "CA")},
    "HERRING_SEGMENT_BYTES": {"HERRING_FRAME_MAX": "64MiB"},
    "HERRING_BUFFER_BYTES": {"HERRING_SEGMENT_BYTES": "1024"},
    "HERRING_CREDIT": {"HERRING_SEGMENT_BYTES": "1024"},
    "HERRING_CREDIT_MAX": {"HERRING_SEGMENT_BYTES": "1024"},
    "HERRING_FRAME_MAX": {"HERRING_SEGMENT_BYTES": "1024"},
    "HERRING_HEARTBEAT_INTERVAL": {"HERRING_HEARTBEAT_TIMEOUT": "604800"},
    "HERRING_HEARTBEAT_TIMEOUT": {"HERRING_HEARTBEAT_INTERVAL": "0.01"},
}
FORMS = {
    "bool": (["true", "0", "On"], ["2", "maybe"]),
    "name": (["a", "run-1.b_C"], ["my job", "a/b", "ä"]),
    "secret": ([SECRET, SECRET.upper()], ["g" * 32, "a" * 33]),
    "address": (["h:1", "[::1]:65535"], ["h", "h:0", "h:65536", "a b:1", "::1:5"]),
    "ports": (["1-65535", "30000", "7-7"], ["0", "0-5", "5-4", "65536", "1-65536", "x"]),
    "weights": (["1", "2, 1,0.5", "0,1"], [",", "1,x", "0,0", "-1"]),
}


def edges(row: dict) -> tuple[list[str], list[str]]:
    """Returns values at the edges of what a setting accepts: the last valid, the first invalid."""
    kind, least, most = row["type"], row["minimum"], row["maximum"]
    if kind == "int":
        return [f"{least:.0f}", f"{most:.0f}", f"+{most:.0f}"], [
            *(f"{most + 1:.0f}", "x", "1.5", f"{most:.0f}0000000000000000000"),
            *([f"{least - 1:.0f}"] if "0 or" not in row["allowed"] else ["-1"]),
        ]
    if kind == "bytes":
        return [f"{least:.0f}", f"{most:.0f}"], [f"{most + 64:.0f}", "x", "-1"]
    if kind == "seconds":
        return [repr(least), repr(most)], [repr(most * 1.001), repr(least / 2), "inf", "x"]
    if kind == "enum":
        return [*row["choices"], row["choices"][0].upper()], ["nonsense"]
    good, bad = FORMS.get(kind, (["x"], []))
    filler = "1" if kind != "weights" else "1,"
    if kind in ("name", "secret", "string"):
        good = [*good, filler * int(most)]
        bad = [*bad, filler * (int(most) + 2)]
    return good, bad


def refuses(call, *arguments: object) -> str:
    try:
        call(*arguments)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("variable", sorted(ROWS))
def test_edges_are_the_same_for_all(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = ROWS[variable]
    monkeypatch.chdir(tmp_path)  # a value may name a folder, which is made
    for name in ROWS:
        monkeypatch.delenv(name, raising=False)
    good, bad = edges(row)
    for text, allowed in [*((text, True) for text in good), *((text, False) for text in bad)]:
        environment = {**COMPANIONS.get(variable, {}), variable: text}
        with monkeypatch.context() as context:
            for name, value in environment.items():
                context.setenv(name, value)
            shown = refuses(config.settings_rows)
        assert (shown == "") == allowed, (text[:50], shown)
        assert (refuses(settings.setting(variable).parse, text) == "") == allowed, text[:50]
        if row["scope"] not in OUTSIDE:
            continue
        if variable not in ("HERRING_SECRET", "HERRING_SECRET_FILE"):
            environment = {**environment, "HERRING_SECRET": SECRET}
        elsewhere = ("SSH", "AS_HOROVOD", "ELASTIC", "NOTICE", "GPU_WAITS", "SERVER_NUMBER")
        if variable.removeprefix("HERRING_") in elsewhere or variable.endswith("_IMPL"):
            continue  # `detect` does not read these; their readers call `settings`.
        refused = refuses(detect, environment)
        assert (refused == "") == allowed, (text[:50], refused)
        if not allowed:
            assert variable in refused
            assert variable in shown


def test_a_server_reads_them_alike() -> None:
    base = {"HERRING_RENDEZVOUS": "h:1", "HERRING_SECRET": SECRET}
    for variable in ("HERRING_RENDEZVOUS", "HERRING_SECRET", "HERRING_JOB", "HERRING_PORTS"):
        good, bad = edges(ROWS[variable])
        for text in good:
            assert not refuses(detect_server, {**base, variable: text}), (variable, text[:50])
        for text in bad:
            assert variable in refuses(detect_server, {**base, variable: text}), text[:50]


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("HERRING_SHM", "Off", False),
        ("HERRING_FLOWS", "+3", 3),
        ("HERRING_BUFFER_BYTES", "4MiB", 4 << 20),
        ("HERRING_TIMEOUT", "5m", 300.0),
        ("HERRING_SIMD", "AVX2", "avx2"),
        ("HERRING_JOB", " a ", "a"),
        ("HERRING_HOST_ID", "\udcff", "\udcff"),  # a byte that is not valid UTF-8
    ],
)
def test_a_value_has_the_type_of_its_row(variable: str, text: str, value: object) -> None:
    found = settings.value_of({variable: text}, variable)
    assert (type(found), found) == (type(value), value)
    assert settings.given({variable: " "}, variable) is None
    default = settings.value_of({}, variable)
    assert default == settings.setting(variable).parse(ROWS[variable]["default"])


def test_an_error_names_origin_value_and_limits_but_no_secret() -> None:
    row = settings.setting("HERRING_FLOWS")
    limits = "is not valid: allowed is an integer from 1 to 64"
    assert refuses(row.parse, "99") == f"HERRING_FLOWS=99 {limits}"
    assert refuses(row.parse, "99", "--flows") == f"--flows 99 {limits}"
    assert refuses(row.parse, "99", "") == f"'99' {limits}"
    hidden = refuses(settings.setting("HERRING_SECRET").parse, "7" * 31)
    assert "HERRING_SECRET=(hidden, 31 characters)" in hidden and "77" not in hidden


@pytest.mark.parametrize("text", ["BASELINE", " baseline "])
def test_the_kernels_read_their_setting_as_everybody(text: str) -> None:
    program = "from herring import _core; print(_core.simd_level())"
    done = warm.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HERRING_SIMD": text},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout == "baseline\n"


COMMANDS = {
    "run": ["size", "servers", "ssh", "interface", "connect_timeout", "as_horovod"],
    "server": ["rendezvous", "interface"],
    "kubernetes": ["servers", "ports"],
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_options_of_the_command_are_the_tables(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--name", "a", "--image", "b"] if command == "kubernetes" else []
    rest = [] if command == "server" else ["--", "true"]
    parse = cli.make_parser().parse_args
    for name in COMMANDS[command]:
        row = ROWS[f"HERRING_{name.upper()}"]
        good, bad = edges(row)
        flags = [word for word in row["flags"].split() if word.startswith("-")]
        if row["type"] == "bool":
            assert getattr(parse([command, *needed, *flags, *rest]), name) is True
            continue
        for flag in flags:
            for text in good:
                given = parse([command, *needed, f"{flag}={text}", *rest])
                assert getattr(given, name) == settings.named(name).parse(text)
            for text in bad:
                with pytest.raises(SystemExit):
                    parse([command, *needed, f"{flag}={text}", *rest])
                said = capsys.readouterr().err
                assert f"{flag} {text!r} is not valid" in said and row["allowed"] in said
        given = getattr(parse([command, *needed, *rest]), name)
        assert given == (0 if name == "servers" else None)


def test_what_a_launcher_sets_does_not_leak_into_its_job() -> None:
    variables = dict.fromkeys(ROWS, "1")
    kept = environment.own_environment(variables, several=True)
    assert kept == {v: "1" for v in ROWS if ROWS[v]["scope"] != "launcher"}
    for variable in settings.variables_of("launcher"):
        with pytest.raises(ConfigurationError, match="herring run sets it itself"):
            environment.passed_environment({}, [f"{variable}=1"])


# Settings that are not tested in a job of one process: they find other processes, or depend on the
# machine or on files.
NOT_ALONE = re.compile(
    r"HERRING_(RANK|SIZE|LOCAL_\w+|SERVERS|RENDEZVOUS\w*|SECRET_FILE|INTERFACE|PORTS|TLS|ELASTIC)"
)


def test_init_accepts_what_config_does() -> None:
    cases, wanted = [], []
    for variable, row in ROWS.items():
        if NOT_ALONE.fullmatch(variable):
            continue
        good, bad = edges(row)
        for text, allowed in [*((t, True) for t in good), *((t, False) for t in bad)]:
            if variable in ("HERRING_SERVER_WEIGHTS", "HERRING_SERVER_MEMORY") and allowed:
                continue  # These settings concern servers, and this job has none.
            companions = COMPANIONS.get(variable, {})
            cases.append((variable, "", companions, text))
            wanted.append((variable, text, allowed))
            if row["scope"] not in OUTSIDE and not companions:
                cases.append((variable, row["name"], {}, text))
                wanted.append((variable, text, allowed))
            elif row["scope"] in OUTSIDE:
                cases.append((variable, row["name"], {}, text))
                wanted.append((variable, text, False))
    done = warm.run(
        [sys.executable, *program("settings_init")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = [
        (variable, text[:40], allowed, error)
        for (variable, text, allowed), error in zip(wanted, found)
        if (error == "") != allowed
    ]
    assert not wrong, wrong


def test_every_variable_that_is_read_is_a_setting() -> None:
    known = {*ROWS, "HERRING_"}
    others = {
        # Variables of the build (CMake), of tests and tools, and of the laboratory.
        "HERRING_RETURN_IF_ERROR",
    }
    found: dict[str, str] = {}
    for path in (ROOT / "python" / "herring").rglob("*.py"):
        for name in re.findall(r"environ\S*[\[(]\s*[\"'](HERRING_[A-Z_]+)", path.read_text()):
            found[name] = path.name
    for folder in ("src", "bindings"):
        for path in (ROOT / folder).rglob("*.cc"):
            for name in re.findall(r"getenv\(\"(HERRING_[A-Z_]+)\"", path.read_text()):
                found[name] = path.name
    assert found
    assert not {name: where for name, where in found.items() if name not in known | others}


def test_the_page_names_every_setting_and_what_it_accepts() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for variable, row in ROWS.items():
        (block,) = re.findall(
            rf"^### `{variable}`\n(.*?)(?=\n##|\Z)", page, re.MULTILINE | re.DOTALL
        )
        assert row["help"] in block
        assert f"\n- allowed: {row['allowed']}\n" in f"{block}\n"
        options = [] if row["scope"] in OUTSIDE else [row["name"]]
        options += [word for word in row["flags"].split() if word.startswith("-")]
        listed = re.findall(r"^- option: (.*)$", block, re.MULTILINE)
        assert listed == ([", ".join(f"`{each}`" for each in options)] if options else [])
