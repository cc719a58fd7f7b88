"""Elastic jobs that follow the hosts of --host-discovery-script."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from herring.errors import ConfigurationError
from herring.launch.discovery import Discovery
from herring.launch.hosts import Host
from herring.launch.options import Elastic
from herring.launch.scaling import Scaling
from jobs import expect_success, program, run_job
from launched import LEFT

pytestmark = pytest.mark.usefixtures("runtime_folder")


def test_what_a_script_prints_are_hosts() -> None:
    script = Discovery("find", slots=4)
    found = script.hosts(0, "b:2\n\nuser@a\nb:2\n[fd00::3]:7\n")
    assert [(one.name, one.slots) for one in found] == [("b", 2), ("user@a", 4), ("fd00::3", 7)]
    assert script.hosts(0, "\n") == ()
    for status, printed, text in (
        (0, "a:x", "a has 'x' slots"),
        (0, "a b a:2", "a appears in two places"),
        (3, "", "exited with status 3: no hosts"),
    ):
        with pytest.raises(ConfigurationError, match=text) as error:
            script.hosts(status, printed, "one\nno hosts\n")
        assert str(error.value).startswith("--host-discovery-script find")


def test_a_script_is_called_until_there_are_enough_slots(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = f"echo >> {calls}; [ $(wc -l < {calls}) -lt 3 ] || echo a:2"
    (host,) = Discovery(script, pause=0).first(2, 600)
    assert host.slots == 2 and calls.read_text().count("\n") == 3


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that has the hosts; all but one can be reached."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"""#!/bin/bash
host=${{@: -2:1}}
if [ $host = nowhere ]; then
  touch {tmp_path}/tried
  echo "No route to host" >&2
  exit 255
fi
cd /
exec env HERRING_HOST_ID=$host sh -c "${{@: -1}}"
""")
    ssh.chmod(0o755)
    monkeypatch.setenv("HERRING_SSH", str(ssh))
    found = tmp_path / "hosts"
    found.write_text("localhost:1\n")
    return found


def test_workers_come_and_go_with_the_hosts(hosts: Path) -> None:
    """The second host has two slots, and its workers must get the state of the first one."""
    options = ["--host-discovery-script", f"cat {hosts}", "--slots-per-host", "2"]
    output = expect_success(run_job(options, program("elastic_discovery", str(hosts))))
    assert output.count("is done: ") == 2 and LEFT in output, output
    # The two that come may come one after the other, as the two generations show then.
    assert len(re.findall(r"of 2, seen \[\[0\], .*\[0, 1, 2\], \[1, 2\]\]", output)) == 2, output
    assert "rank 0 leaves" not in output.partition("generation 2")[0], output


def test_all_hosts_are_replaced(hosts: Path) -> None:
    """A worker stays until another one has its state, although its host is not named any more."""
    script = f"""
    import herring.elastic
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while os.environ["HERRING_RANK"] == "0":
            herring.barrier()
            state.step += 1
            if state.step == 3:
                open("{hosts}.new", "w").write("far")
                os.rename("{hosts}.new", "{hosts}")
            state.commit()
            time.sleep(0.01)
        while herring.size() > 1:
            herring.barrier()
            state.step += 1
            state.commit()
            time.sleep(0.01)

    train(state)
    print("is done with the steps of both:", state.step > 3)
    """
    options = ["--host-discovery-script", f"cat {hosts}", "--max-np", "1"]
    output = expect_success(run_job(options, script))
    assert "[1] is done with the steps of both: True" in output, output


def test_hosts_and_calls_that_fail_end_nothing(hosts: Path, tmp_path: Path) -> None:
    script = f"""
    import herring.elastic
    from pathlib import Path
    state = herring.elastic.State(step=0)
    calls, tried = Path("{tmp_path}/calls"), Path("{tmp_path}/tried")

    @herring.elastic.run
    def train(state):
        Path("{hosts}").write_text("localhost:1\\nnowhere:1\\n")
        at = 0
        while not at or calls.stat().st_size < at + 4:
            if not at and tried.exists():
                Path("{hosts}").unlink()
                at = calls.stat().st_size
            time.sleep(0.01)

    train(state)
    print("is done:", herring.size())
    """
    find = f"echo >> {tmp_path}/calls; cat {hosts}"
    output = expect_success(run_job(["--host-discovery-script", find], script))
    assert "is done: 1" in output, output
    text = "nowhere cannot be reached: is it up, and does sshd listen there (-p PORT)?: No route"
    assert text in output and "the job goes on without this host" in output, output
    assert output.count("exited with status 1: cat: ") == 1, output
    assert "the hosts stay as they are" in output, output


class Fake:
    """A job whose hosts, all of which can be reached, are only on paper."""

    def __init__(self, most: int, **slots: int) -> None:
        self.hosts = {name: Host(name, count, False) for name, count in slots.items()}
        self.started: list[tuple[str, int, int]] = []
        self.dismissed: list[int] = []
        self.said: list[str] = []
        self.lobby = SimpleNamespace(
            finished=False,
            failed="",
            latest_slots=frozenset(range(sum(slots.values()))),
            dismiss=self.dismissed.extend,
        )
        layout = SimpleNamespace(workers=[(host, host.slots) for host in self.hosts.values()])
        self.scaling = Scaling(
            SimpleNamespace(
                layout=layout, workers=4, elastic=Elastic(most=most, discovery=Discovery("find"))
            ),
            *(None, None, None),
            SimpleNamespace(latest=self.connection, twin=lambda *_, **__: ""),
            SimpleNamespace(retire=lambda _: None),
            SimpleNamespace(begun=False),
            lambda host, rank, local: self.started.append((host.name, rank, local)),
            lambda level, text: self.said.append(f"{level}: {text}"),
        )
        self.scaling.begin(self.lobby)

    def connection(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(lost=False, ready={}, host=Host(name, 0, False))

    def name(self, **slots: int) -> None:
        self.scaling._follow({name: Host(name, n, False) for name, n in slots.items()}, 0.0)


def test_a_script_that_does_not_end_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"exec sleep 600 has not ended within 0\.01 s"):
        Discovery("exec sleep 600", pause=0.01).first(1, 0.01)
    job = Fake(4, a=2)
    job.scaling._call = SimpleNamespace(process=None)
    for now in (0.0, 1e9, 2e9):
        job.scaling.on_time(now)
    text = "--host-discovery-script find has not ended for 30 s; the hosts stay as they are"
    assert job.said == [f"warning: {text}"]


def test_workers_that_leave_make_room_once() -> None:
    job = Fake(4, a=2, b=2)
    job.name(b=2, c=4)
    assert job.dismissed == [0, 1]
    assert job.started == [("c", 4, 0), ("c", 5, 1)]
    job.name(b=2, c=4)
    assert len(job.started) == 2
    job.name(b=1, c=4)
    assert job.dismissed == [0, 1, 3] and job.started[2:] == [("c", 6, 2)]


def test_one_stays_until_others_have_its_state() -> None:
    job = Fake(2, a=2)
    for _ in range(2):
        job.name(b=2)
        assert job.dismissed == [1] and job.started == [("b", 2, 0), ("b", 3, 1)]
    job.lobby.latest_slots = frozenset([0, 2])
    job.name(b=2)
    assert job.dismissed == [1, 0] and len(job.started) == 2
