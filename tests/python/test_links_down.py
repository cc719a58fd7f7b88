"""A host that loses its network learns of the loss as soon as the other hosts do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from emulated import needs_hosts
from herring_lab.emulate import Cluster
from herring_lab.emulate.runner import Plan, run
from jobs import program


@needs_hosts()
@pytest.mark.parametrize("switch", [False, True], ids=["its-own", "the-switch's"])
@pytest.mark.parametrize("host", [0, 2])
def test_a_link_goes_down(
    host: int, switch: bool, tmp_path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "started"
    plan = Plan([sys.executable, *program("link_down", str(started))], 3, timeout=60, grace=50)
    with Cluster(3) as hosts:
        own = hosts.namespace(host)
        device = ["-n", own, "link", "set", "eth0"]
        if switch:
            device = ["-n", f"{own.rpartition('-')[0]}-sw0", "link", "set", f"p{host}"]
        cut = f"until [ -e {started} ]; do sleep 0.05; done; ip {' '.join(device)} down"
        with subprocess.Popen(["sh", "-c", cut]) as cutting:
            status = run(hosts, plan)
            cutting.kill()
    output = "\n".join(capfd.readouterr())
    # Deadlines are far beyond the timeout of the job.
    assert status == 0 and sorted(re.findall(r"lost (\d) ", output)) == ["0", "1", "2"], output
