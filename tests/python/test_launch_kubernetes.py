"""Manifests for Kubernetes, and what a server and a worker need in a pod."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from herring.command.cli import main
from herring.command.kubernetes import JobOptions, manifests, to_yaml
from herring.errors import ConfigurationError
from herring.rendezvous.detect import detect, detect_server
from herring.rendezvous.endpoint import resolve
from herring.rendezvous.publication import Wait

COMMON = {"name": "digits", "image": "trainer", "command": ["python", "train.py"]}


def parts(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JobSet's spec, and its replicated jobs by name."""
    job = manifests(JobOptions(**{**COMMON, **more}))[-1]
    spec = job["spec"] if job["kind"] == "JobSet" else job["spec"]["template"]["spec"]
    return spec, {each["name"]: each for each in spec["replicatedJobs"]}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return found


def variables(job: dict[str, Any], **fields: str) -> dict[str, str]:
    """The environment as a pod gets it; `fields` are what its fields and secrets hold."""
    found: dict[str, str] = {}
    for each in container(job)["env"]:
        value = each.get("value")
        if value is None:
            (source,) = each["valueFrom"].values()
            value = fields[source.get("key") or re.sub(r"\W", "_", source["fieldPath"])]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


INDEX = "metadata_annotations__batch_kubernetes_io_job_completion_index__"
JOBSET = "metadata_labels__jobset_sigs_k8s_io_jobset_name__"


def test_workers_and_servers_find_each_other() -> None:
    spec, jobs = parts(workers=4, servers=2)
    fields = {"secret": "ab" * 32, INDEX: "3"}
    worker = detect(variables(jobs["worker"], **fields))
    server = detect_server(variables(jobs["server"], **fields))
    assert (worker.rank, worker.size, worker.servers) == (3, 4, 2)
    assert worker.rendezvous.address == server.rendezvous.address
    # As JobSet names the first pod of the first job of `worker`.
    assert worker.rendezvous.address == "digits-worker-0-0.digits:29600"
    assert worker.secret == server.secret == bytes.fromhex("ab" * 32)
    assert jobs["worker"]["template"]["spec"]["parallelism"] == 4
    assert jobs["server"]["template"]["spec"]["completions"] == 2
    assert spec["network"]["enableDNSHostnames"]


@pytest.mark.parametrize(("kind", "worker"), [("jobset", "worker"), ("runtime", "node")])
def test_servers_are_ready_first_and_end_with_the_workers(kind: str, worker: str) -> None:
    spec, jobs = parts(servers=1, kind=kind)
    # What depends on another must stand behind it.
    assert list(jobs) == ["server", worker]
    assert jobs[worker]["dependsOn"] == [{"name": "server", "status": "Ready"}]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": [worker]}
    server = container(jobs["server"])
    assert server["readinessProbe"]["exec"]["command"][-1] == server["command"][-1]
    spec, jobs = parts(kind=kind)
    assert list(jobs) == [worker]
    assert "dependsOn" not in jobs[worker]


def test_a_runtime_takes_the_name_of_its_train_job() -> None:
    _, jobs = parts(kind="runtime", workers=2, servers=1)
    fields = {"secret": "ab" * 32, JOBSET: "run-7"}
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    worker = detect({**variables(jobs["node"], **fields), **torchrun})
    server = detect_server(variables(jobs["server"], **fields))
    assert worker.rendezvous.address == server.rendezvous.address == "run-7-node-0-0.run-7:29600"
    assert (worker.job, worker.servers) == ("run-7", 1)
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert jobs["node"]["template"]["metadata"]["labels"] == label
    assert container(jobs["node"])["name"] == "node"
    assert container(jobs["node"])["command"] == [
        "torchrun",
        "--nproc-per-node=1",
        "--no-python",
        *COMMON["command"],
    ]


def test_several_workers_in_a_pod() -> None:
    _, jobs = parts(workers=2, per_pod=8, gpus=8)
    worker = container(jobs["worker"])
    assert worker["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert worker["command"][:4] == [
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=8",
        "--node-rank=$(POD_INDEX)",
    ]
    assert worker["command"][-3:] == ["--no-python", "python", "train.py"]
    assert "HERRING_RANK" not in variables(jobs["worker"], **{"secret": "", INDEX: "0"})


def test_secrets_differ_and_may_be_ones_own() -> None:
    first, second = (manifests(JobOptions(**COMMON))[0] for _ in range(2))
    assert first["kind"] == "Secret"
    assert len(bytes.fromhex(first["stringData"]["secret"])) == 32
    assert first["stringData"] != second["stringData"]
    assert [each["kind"] for each in manifests(JobOptions(**COMMON, secret="own"))] == ["JobSet"]
    (key,) = (
        each["valueFrom"]["secretKeyRef"]
        for each in container(parts(secret="own")[1]["worker"])["env"]
        if each["name"] == "HERRING_SECRET"
    )
    assert key == {"name": "own", "key": "secret"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", "Digits"),
        ("name", "a" * 41),
        ("name", "a-"),
        ("name", "7a"),
        ("namespace", "a_b"),
        ("secret", ""),
        ("image", ""),
        ("image", "a b"),
        ("workers", 0),
        ("per_pod", 65),
        ("servers", -1),
        ("gpus", -1),
        ("port", 80),
        ("restarts", -1),
    ],
)
def test_what_cannot_work_is_refused(option: str, value: object) -> None:
    shown = f"--{option.replace('_', '-')} {value}".strip()
    with pytest.raises(ConfigurationError, match="allowed") as caught:
        manifests(JobOptions(**{**COMMON, option: value}))
    assert shown.replace("'", "") in str(caught.value).replace("'", "")


def test_the_port_of_torchrun_is_taken() -> None:
    assert manifests(JobOptions(**COMMON, port=29500))
    with pytest.raises(ConfigurationError, match="torchrun listens there"):
        manifests(JobOptions(**COMMON, port=29500, per_pod=2))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ports": "29600-29700"}, "contains 29600, where rank 0 listens (--port)"),
        ({"ports": "29599-29601", "port": 29601}, "contains 29601, where rank 0 listens (--port)"),
        ({"ports": "29500-29510", "per_pod": 2}, "contains 29500, where torchrun listens"),
        ({"ports": "29500-29510", "kind": "runtime"}, "contains 29500, where torchrun listens"),
        (
            {"ports": "30000", "workers": 2},
            "has 1 port, but a worker pod needs 2: one for its worker and one for its colocated",
        ),
        (
            {"ports": "30000-30006", "workers": 2, "servers": 2, "per_pod": 8},
            "has 7 ports, but a worker pod needs 8: one for each of its workers; choose a wider",
        ),
    ],
)
def test_ranges_of_ports_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)) as caught:
        manifests(JobOptions(**{**COMMON, **options}))
    assert str(caught.value).startswith(f"--ports {options['ports']} ")


@pytest.mark.parametrize(
    "options",
    [
        {"ports": "29500-29599"},
        {"ports": "30000"},
        {"ports": "30000", "workers": 2, "servers": 2},
        {"ports": "30000-30008", "workers": 2, "servers": 1, "per_pod": 8},
    ],
)
def test_ranges_of_ports_may_be_just_wide_enough(options: dict[str, Any]) -> None:
    assert manifests(JobOptions(**{**COMMON, **options}))


def test_a_refused_range_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    words = ["--name", "digits", "--image", "trainer", "--ports", "29600", "-o", str(file)]
    command = [sys.executable, "-m", "herring.command.cli", "kubernetes", *words, "--", "python"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and "contains 29600" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_yaml() -> None:
    value = {"b": ["x: y", {"d": 1, "c": [2]}], "a": True, "e": "- \"q\" 'é' #\n"}
    assert to_yaml([value, {"g": {}, "h": [[]]}]) == (
        "---\nb:\n- 'x: y'\n- d: 1\n  c:\n  - 2\na: true\n"
        'e: "- \\"q\\" \'é\' #\\n"\n---\ng: {}\nh:\n- []\n'
    )


@pytest.mark.parametrize(
    "word",
    ["1e-3", "0o17", "0x1", "017", ".5", "+1", "12:30", "y", "N", "on", "null", "~", "", "-"],
)
def test_words_stay_words_in_every_version_of_yaml(word: str) -> None:
    assert re.search(r"^a: (['\"]).*\1$", to_yaml([{"a": word}]), re.MULTILINE)


def test_without_a_writer_of_yaml_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["kubernetes", "--name", "a", "--image", "b", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("herring kubernetes: PyYAML is not installed")
    assert "pip install " in said


def test_the_command_writes_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("old")
    path.chmod(0o644)
    options = ["--name", "digits", "--image", "trainer", "-o", str(path), "--", "python", "-u"]
    assert main(["kubernetes", *options]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert '- "-u"' in path.read_text()
    options[5] = str(tmp_path)
    assert main(["kubernetes", *options]) == 2
    # What is no file is written to, and stays what it is.
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(path)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for options[5] in (str(pipe), str(link)):
        assert main(["kubernetes", *options]) == 0
    assert b'- "-u"' in os.read(reader, 1 << 16)
    os.close(reader)
    assert pipe.is_fifo() and link.is_symlink() and sorted(tmp_path.iterdir()) == [path, link, pipe]


def test_words_of_the_command_reach_the_container() -> None:
    options = JobOptions("digits", "trainer", ["echo", "$$ $(HERRING_SERVERS) 🐟"])
    text = to_yaml(manifests(options))
    assert "- $$$$ $$(HERRING_SERVERS) 🐟\n" in text  # as Kubernetes expands it


def test_a_name_that_comes_with_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = socket.getaddrinfo, []

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return real("127.0.0.9", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("herring.rendezvous.endpoint._POLL_SECONDS", 0.01)
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert resolve("first-pod", "X", pod, Wait("this test", 30, 60)) == "127.0.0.9"
    assert len(asked) == 3
    asked.clear()
    with pytest.raises(ConfigurationError, match=r"X names the host 'first-pod'.*does its pod run"):
        resolve("first-pod", "X", pod, Wait("this test", 0.001, 60))
    asked.clear()
    with pytest.raises(ConfigurationError, match="cannot be resolved"):
        resolve("first-pod", "X", {}, Wait("this test", 30, 60))
    assert len(asked) == 1


def test_a_server_tells_that_it_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    with socket.socket() as holder:  # a port where nobody listens
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "herring.command.cli", "server"),
                *("--rendezvous", address, "--ready-file", str(path)),
            ],
            env={"HERRING_SECRET": "ab" * 32},
        )
        try:
            deadline = time.monotonic() + 60
            while not path.exists():
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            server.send_signal(signal.SIGTERM)
            assert server.wait(600) == 0
        finally:
            server.kill()
            server.wait()
    assert not path.exists()


def test_a_server_that_cannot_tell() -> None:
    with pytest.raises(ConfigurationError, match="--ready-file /nonexistent/x cannot be written"):
        from herring.launch.server import run_server

        run_server("127.0.0.1:5", ready_file="/nonexistent/x")


def test_a_value_that_the_template_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edited = [{"kind": "JobSet", "metadata": {"name": "${jobname}"}}]
    monkeypatch.setattr("herring.command.kubernetes.data_file", lambda *_: edited)
    with pytest.raises(ConfigurationError, match=r"no value 'jobname'; allowed are name, image,"):
        manifests(JobOptions(**COMMON))
