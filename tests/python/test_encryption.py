"""Whole jobs with HERRING_TLS: right results, the usual ends, and nobody in without the keys."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from herring.command import check
from jobs import expect_success, program, run_job

KEY = {"HERRING_TLS": "psk"}
# 2 nodes of 2 workers with colocated servers, the same with dedicated ones, and single workers.
SOME_LAYOUTS = {
    "colocated": ["-n", "4", "--nodes", "2"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "single": ["-n", "3", "--nodes", "3"],
}


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with two authorities and a certificate by each: good.pem, foreign.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for authority, member in (("root", "good"), ("other", "foreign")):
        root = ["-keyout", f"{authority}.key", "-out", f"{authority}.pem"]
        openssl(folder, "req", "-x509", *key, *root, "-days", "2", "-subj", f"/CN={authority}")
        request = ["-keyout", f"{member}.key", "-out", f"{member}.csr", "-subj", f"/CN={member}"]
        openssl(folder, "req", *key, *request)
        by = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"]
        result = ["-out", f"{member}.pem", "-days", "2"]
        openssl(folder, "x509", "-req", "-in", f"{member}.csr", *by, *result)
    return folder


def by_certificate(folder: Path, member: str = "good", authority: str = "root") -> dict[str, str]:
    return {
        "HERRING_TLS": "certificates",
        "HERRING_TLS_CERTIFICATE": str(folder / f"{member}.pem"),
        "HERRING_TLS_KEY": str(folder / f"{member}.key"),
        "HERRING_TLS_CA": str(folder / f"{authority}.pem"),
    }


def digests(**environment: str) -> list[str]:
    output = expect_success(run_job(SOME_LAYOUTS["dedicated"], program("digests"), **environment))
    return sorted(re.findall("digest .*", output))


def test_results_have_the_same_bits(certificates: Path) -> None:
    plain = digests()
    assert len(plain) == 5
    assert digests(**KEY) == plain
    assert digests(**by_certificate(certificates)) == plain


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
@pytest.mark.parametrize("script", ["collectives", "algorithms", "groups", "messages"])
def test_everything_works(layout: str, script: str) -> None:
    expect_success(run_job(SOME_LAYOUTS[layout], program(script), **KEY))


@pytest.mark.parametrize("script", ["lent_frames", "own_orders"])
def test_several_flows_and_proxies(script: str) -> None:
    settings = {"HERRING_CREDIT": "512KiB", "HERRING_PROXIES": "3", "HERRING_FLOWS": "3"}
    layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
    expect_success(run_job(layout, program(script), **settings, **KEY))


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("script", ["killed_worker", "algorithms_death"])
def test_everybody_learns_of_a_killed_worker(script: str, victim: int, tmp_path: Path) -> None:
    done = run_job(
        ["-n", "4", "--nodes", "4", "--servers", "1", "--keep-going"],
        program(script),
        VICTIM=str(victim),
        ALGORITHM="ring",
        FOLDER=str(tmp_path),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
        **KEY,
    )
    assert done.stdout.count("has learned of it") == 3, done.stdout[-4000:]


def test_everybody_learns_of_a_killed_server() -> None:
    done = run_job(
        ["-n", "3", "--nodes", "3", "--servers", "1", "--keep-going"],
        program("killed_server"),
        **KEY,
    )
    assert done.stdout.count("told") == 3, done.stdout[-4000:]


def test_everybody_learns_of_an_abort() -> None:
    done = run_job(
        [*SOME_LAYOUTS["dedicated"], "--keep-going"],
        """
        herring.init()
        try:
            herring.barrier()
            if herring.rank() == 3:
                herring.abort("the test wants it")
            while True:
                herring.allreduce(np.zeros(100_000, np.float32))
        except herring.HerringError as error:
            assert "the test wants it" in str(error), error
            print("heard", flush=True)
        """,
        **KEY,
    )
    assert done.stdout.count("heard") == 4, done.stdout[-4000:]


def test_who_goes_on_learns_who_has_left() -> None:
    expect_success(
        run_job(
            SOME_LAYOUTS["single"],
            """
            herring.init()
            if herring.rank() != 0:
                herring.allreduce(np.zeros(300_000, np.float32), name="one")
                try:
                    herring.allreduce(np.zeros(300_000, np.float32), name="two")
                except herring.PeerLostError as error:
                    assert "rank 0 (" in str(error) and "left the job" in str(error), error
                else:
                    raise SystemExit("rank 0 was not missed")
                from support import stay_until_all_know
                stay_until_all_know(herring.rank(), range(1, herring.size()))
            else:
                herring.allreduce(np.zeros(300_000, np.float32), name="one")
            """,
            **KEY,
        )
    )


def test_garbage_on_every_port_harms_nobody() -> None:
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    expect_success(run_job(layout, program("garbage"), **KEY))


def outcomes(*of_rank: dict[str, str]) -> dict[int, str]:
    """Returns what two ranks with different variables say when they cannot join each other."""
    done = run_job(
        ["-n", "2", "--nodes", "2", "--keep-going"],
        program("encrypted_mixed"),
        TEST_OF_RANK=json.dumps(of_rank),
        HERRING_CONNECT_TIMEOUT="10",
    )
    found = {int(rank): text for rank, text in re.findall(r"rank ([01]) (\w+: .*)", done.stdout)}
    assert set(found) == {0, 1}, done.stdout[-4000:]
    return found


def test_different_settings_are_told_on_both_sides(certificates: Path) -> None:
    every = {
        "off": {"HERRING_TLS": "off"},
        "psk": KEY,
        "certificates": by_certificate(certificates),
    }
    for here, there in (("off", "psk"), ("psk", "off"), ("certificates", "psk")):
        said = outcomes(every[here], every[there])
        own = f"has HERRING_TLS={here}, but this process has HERRING_TLS={there}"
        assert said[1].startswith("ConfigurationError: "), said
        assert own in said[1] and "for all processes of the job" in said[1], said
        # Rank 0 says whom it has refused when it has waited long enough.
        assert f"it has HERRING_TLS={there}, but this process has HERRING_TLS={here}" in said[0]


def test_a_wrong_secret_is_told_on_both_sides() -> None:
    said = outcomes(KEY, {**KEY, "HERRING_SECRET": secrets.token_hex(32)})
    assert said[1].startswith("AuthenticationError: "), said
    assert all("the job's secret differs" in text for text in said.values()), said


def test_a_certificate_of_another_authority_is_told_on_both_sides(certificates: Path) -> None:
    good = by_certificate(certificates)
    said = outcomes(good, by_certificate(certificates, "foreign", "root"))
    assert said[1].startswith("AuthenticationError: "), said
    assert "foreign.pem" in said[1], said
    assert "root.pem does not vouch for its certificate" in said[0], said
    said = outcomes(good, by_certificate(certificates, "good", "other"))
    assert said[1].startswith("AuthenticationError: "), said
    assert "other.pem does not vouch for its certificate" in said[1], said


def test_files_that_are_missing_are_named(certificates: Path) -> None:
    wrong = {**by_certificate(certificates), "HERRING_TLS_KEY": "/nonexistent/key"}
    done = run_job(["-n", "1"], "herring.init()", **wrong)
    assert "ConfigurationError: HERRING_TLS_KEY=/nonexistent/key cannot be used" in done.stdout
    done = run_job(["-n", "1"], "herring.init()", HERRING_TLS="certificates")
    assert "HERRING_TLS=certificates needs HERRING_TLS_CERTIFICATE" in done.stdout


class Tap:
    """Looks for bytes in all packets of the loopback interface."""

    def __init__(self, mark: bytes) -> None:
        self._mark, self.found = mark, 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                self.found += self._mark in self._socket.recv(1 << 18)
            except TimeoutError:
                if self._ended.is_set():
                    return


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to see packets")
@pytest.mark.parametrize(("tls", "visible"), [("off", True), ("psk", False)])
def test_nobody_on_the_way_sees_a_gradient(tls: str, visible: bool) -> None:
    mark = np.random.default_rng().uniform(1, 2, 16).astype(np.float32).tobytes()
    with Tap(mark) as tap:
        expect_success(
            run_job(
                ["-n", "3", "--nodes", "3", "--servers", "1"],
                program("encrypted_bytes"),
                HERRING_TLS=tls,
                TEST_MARK=mark.hex(),
            )
        )
    assert (tap.found > 0) == visible


def test_check_measures_both() -> None:
    finding = check._encryption()
    assert finding.verdict == "ok", finding
    costs = re.findall(r"HERRING_TLS=(\w+): [\d.]+ Gbit/s, ([\d.]+) CPU seconds", finding.value)
    assert [name for name, _ in costs] == ["psk", "off"]
    assert all(float(seconds) > 0 for _, seconds in costs), finding.value
