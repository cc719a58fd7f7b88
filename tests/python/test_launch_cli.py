"""The other commands: config, check, server, version. The extension module is replaced where the
command itself is at stake, and used where it must be there.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest

import herring
import warm
from herring import _core
from herring.command import check, cli, config
from herring.doctor import facts
from herring.errors import ConfigurationError
from herring.process import logs

HERRING = [sys.executable, "-m", "herring.command.cli"]
ROWS = [
    {
        "name": "flows",
        "env": "HERRING_FLOWS",
        "type": "int",
        "default": "1",
        "value": "4",
        "origin": "environment",
        "help": "Connections between a node and a server",
        "allowed": "an integer from 1 to 64",
    },
    {
        "name": "credit",
        "env": "HERRING_CREDIT",
        "type": "bytes",
        "default": "0",
        "value": "0",
        "origin": "default",
        "help": "Bytes a flow may have outstanding",
        "allowed": "bytes",
    },
]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("herring._core")
    module.settings = lambda: ROWS
    module.setting_warnings = lambda: ["HERRING_FLOW is no setting"]
    module.simd_level = lambda: "avx2"
    module.describe_devices = _core.describe_devices
    module.server_proxies = lambda address: (16, 25 * 10**9, 4)  # type: ignore[attr-defined]
    module.served = []
    module.run_server = module.served.append
    module.start_up_times = lambda _: (60.0, 5.0, True)
    module.setting_rows, module.parse_setting = _core.setting_rows, _core.parse_setting
    module.log_warning = lambda _: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "herring._core", module)
    monkeypatch.setattr(herring, "_core", module, raising=False)
    monkeypatch.setattr(logs, "start", lambda _: {})
    return module


def test_config_as_json(core: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == ROWS
    assert captured.err == "warning: HERRING_FLOW is no setting\n"


def test_config_as_table(core: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "FLOWS"]) == 0
    shown = capsys.readouterr().out
    for word in ("HERRING_FLOWS", "4", "environment", "Connections", "an integer from 1 to 64"):
        assert word in shown
    assert "HERRING_CREDIT" not in shown


def test_config_of_an_unknown_name(
    core: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    with pytest.raises(ConfigurationError):
        config.settings_rows(["nonsense"])


def test_server(core: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRING_SECRET", "ab" * 16)
    monkeypatch.setenv("HERRING_RENDEZVOUS", "127.0.0.1:1")
    assert cli.main(["server"]) == 0
    assert cli.main(["server", "--rendezvous", "localhost:2", "--interface", "lo"]) == 0
    assert [served.pop("waited") < 60 for served in core.served] == [True, True]
    assert core.served == [
        {"rendezvous": "127.0.0.1:1", "secret": b"\xab" * 16},
        {"rendezvous": "127.0.0.1:2", "secret": b"\xab" * 16, "interface": "lo"},
    ]


def test_server_without_rendezvous(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HERRING_RENDEZVOUS", raising=False)
    assert cli.main(["server"]) == 2
    assert "--rendezvous HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "verdict", "status"),
    [("HERRING_PRTS", "1", "note", 0), ("HERRING_PORTS", "abc", "fail", 1)],
)
def test_check_without_running_examines_the_variables(
    variable: str,
    value: str,
    verdict: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    cli.main(["config"])
    expected = re.sub(r"^(warning|herring config): ", "", capsys.readouterr().err.rstrip("\n"))
    assert variable in expected
    assert cli.main(["check", "--no-run", "--json"]) == status
    found = json.loads(capsys.readouterr().out)["findings"]
    (finding,) = (each for each in found if each["name"] == "settings")
    assert (finding["value"], finding["verdict"]) == (expected, verdict)


def test_check_without_running(core: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--no-run", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["extension module"]["value"] == "SIMD level avx2"
    assert "127.0.0.1" in found["interface lo"]["value"]
    proxies = found["proxies of a server"]["value"]
    assert proxies.startswith("4, in jobs of as many nodes (a link of 25 Gbit/s at ")
    assert proxies.endswith(", 16 cores)")
    named = ("cpu", "cores", "memory", "/dev/shm", "huge pages", "open files", "locked memory")
    for name in (*named, "openssl"):
        assert found[name]["value"]
    assert cli.main(["check", "--no-run"]) == 0
    assert "SIMD level avx2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "value", "verdict"),
    [
        (["always [madvise] never", "always [advise] never"], ("madvise", "advise"), "ok"),
        (["always madvise [never]", "always [never]"], ("never", "never"), "note"),
        ([], ("not in this kernel", "not in this kernel"), "ok"),
    ],
)
def test_check_tells_where_huge_pages_are(
    monkeypatch: pytest.MonkeyPatch, files: list[str], value: tuple[str, str], verdict: str
) -> None:
    read = iter(files or ["", ""])
    monkeypatch.setattr(facts, "text_of", lambda _path: next(read))
    found = check._huge_pages()
    assert found.value == f"private memory: {value[0]}, shared memory: {value[1]}"
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ((512, 4096), "'ulimit -n 4096'"),
        ((512, resource.RLIM_INFINITY), "'ulimit -n 1024'"),
        ((512, 512), "more than the hard limit: raise it to 1024 with 'nofile' in"),
        ((1024, 4096), ""),
    ],
)
def test_check_advises_how_to_open_more_files(
    limits: tuple[int, int], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = check._limits()[0]
    assert found.verdict == ("note" if advice else "ok")
    assert advice in found.advice and ("ulimit -n 512" not in found.advice)


def test_check_reports_a_failed_trial(
    core: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = check.Line("all-reduce", "exit status 1", "fail", "why")
    monkeypatch.setattr(check, "trials", lambda: [failed])
    assert cli.main(["check"]) == 1
    assert "exit status 1" in capsys.readouterr().out


def test_check_tries_an_all_reduce() -> None:
    pytest.importorskip("herring._core")
    done = warm.run(
        [*HERRING, "check", "--json"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    tried = [each for each in findings if each["name"].startswith("all-reduce")]
    assert len(tried) == 2
    assert all("right to the bit" in each["value"] for each in tried)


def test_settings_of_the_core() -> None:
    pytest.importorskip("herring._core")
    rows = {row["env"]: row for row in config.settings_rows()}
    assert rows["HERRING_FLOWS"]["type"] == "int"
    for row in rows.values():
        assert set(row) == {*ROWS[0], "scope", "minimum", "maximum", "choices", "flags"}
        assert row["help"]


def test_what_commands_need_is_not_imported_by_training() -> None:
    code = """
import sys
import herring
herring.init()
herring.shutdown()
print(*{"hostlist", "psutil", "rich", "shtab", "yaml"} & set(sys.modules))
"""
    alone = {"HERRING_RANK": "0", "HERRING_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_version_and_help() -> None:
    done = warm.run(
        [*HERRING, "--version"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0
    said = re.fullmatch(
        r"herring (\S+) \(protocol (\d+), commit (\w+)( with changes)?\)\n", done.stdout
    )
    assert said is not None, done.stdout
    assert said[1] == version("herring-dl")
    header = Path(__file__).parents[2] / "src" / "wire" / "hello.h"
    assert f"kProtocolVersion = {said[2]};" in header.read_text(encoding="utf-8")
    for name in ("run", "server", "config", "check"):
        done = warm.run(
            [*HERRING, name, "--help"], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0
        assert f"herring {name}" in done.stdout


def test_no_command() -> None:
    done = warm.run(HERRING, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
