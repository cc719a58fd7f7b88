"""A script that names the hosts of an elastic job, as horovodrun's --host-discovery-script does."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from herring.errors import ConfigurationError
from herring.launch.hosts import Host, parse_hosts

OPTION = "--host-discovery-script"
_PAUSE = 1.0  # seconds between two calls of the script


@dataclass(frozen=True)
class Discovery:
    """A command that prints a line for each host that workers can run on."""

    script: str  # A command of the shell. It prints ``host`` or ``host:slots`` for each host.
    slots: int = 1  # the slots of hosts that it names without a number
    pause: float = _PAUSE  # seconds between two calls

    @property
    def command(self) -> list[str]:
        """The command as program and arguments."""
        return ["/bin/sh", "-c", self.script]

    def hosts(self, status: int, printed: str, said: str = "") -> tuple[Host, ...]:
        """Returns the hosts that a call has named, in order; ConfigurationError if it failed."""
        where = f"{OPTION} {self.script}"
        if status:
            last = ": ".join(["", *said.strip().splitlines()[-1:]])
            raise ConfigurationError(f"{where} exited with status {status}{last}")
        return parse_hosts(dict.fromkeys(printed.split()), where, self.slots)

    def first(self, workers: int, patience: float) -> tuple[Host, ...]:
        """Calls the script until there are enough slots, and returns the hosts.

        Args:
            patience: Seconds that this may take.

        Raises:
            ConfigurationError: A call has failed, or there were too few slots for too long.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                done = subprocess.run(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=max(deadline - time.monotonic(), self.pause),
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ConfigurationError(
                    f"{OPTION} {self.script} has not ended within {patience:g} s (--wait)"
                ) from None
            found = self.hosts(done.returncode, done.stdout, done.stderr)
            slots = sum(host.slots for host in found)
            if slots >= workers:
                return found
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"{OPTION} {self.script} has named hosts with {slots} of {workers} slots (-n) "
                    f"within {patience:g} s (--wait)"
                )
            time.sleep(self.pause)
