"""Runs the lab's own switch, which makes strict links and paths with delay, jitter and loss.

A token bucket lets a lone packet through at once, and a kernel without netem cannot delay packets.
Here every host's ``eth0`` is a TAP device of the compiled ``herring_lab_switch``
(``lab/src/switch``). The switch computes when the last bit of each packet would reach its receiver,
and delivers the packet then::

    host -- egress link -- path: loss, delay, jitter -- (spine --) switch port -- host

Each link takes ``length / rate`` per packet, one packet after the other; the length includes the 14
bytes of the Ethernet header. A link drops packets that would wait longer than its queue is deep.
The devices vanish with the switch's process, which ends with the process that made the cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from herring_lab.emulate.namespaces import ClusterError

_HEADER = 14
_SHARE = 0.05  # the share of packets that may be late
_STILL = 0.1  # the most seconds that any packet may be late
_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Path:
    """A path between two switches or two hosts, without the links at its ends.

    Attributes:
      rate_bits: the rate of a spine in bits per second, each way; None: no limit. Between hosts it
        is not used.
      delay: seconds, one way.
      jitter: the longest random extra delay of a packet, in seconds, evenly distributed from 0;
        packets never overtake each other.
      loss: probability that a packet is lost, 0 to 1.
    """

    rate_bits: float | None = None
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0

    def words(self) -> str:
        """Returns delay, jitter and loss in the switch's notation."""
        return f"{_nanos(self.delay)} {_nanos(self.jitter)} {self.loss!r}"


@dataclasses.dataclass(frozen=True)
class LinkReport:
    """How well strict links kept to their model, since the cluster was made or the last reset.

    Attributes:
      seconds: the time that has passed.
      processor_seconds: processor time of the switch, including the receivers' TCP stacks, which
        run during delivery.
      packets: the number of packets that were delivered.
      late: packets that were delivered more than ``late_limit`` after their time.
      late_limit: the lateness from which on a packet counts as late, in seconds.
      mean_lateness: the mean lateness of a packet, in seconds.
      worst_lateness: the largest lateness of a packet, in seconds.
      longest_turn: the longest time for which the switch read nothing from any host, in seconds.
      lost: packets that the model lost at random.
      overrun: packets that the kernel dropped because the switch did not fetch them in time.
    """

    seconds: float
    processor_seconds: float
    packets: int
    late: int
    late_limit: float
    mean_lateness: float
    worst_lateness: float
    longest_turn: float
    lost: int
    overrun: int

    @property
    def kept_up(self) -> bool:
        """Whether figures that were measured over these links are valid."""
        return (
            self.late <= _SHARE * self.packets
            and self.mean_lateness <= self.late_limit / 2
            and self.worst_lateness <= _STILL
            and self.overrun == 0
        )

    def text(self) -> str:
        """Returns a line that describes the report."""
        share = self.processor_seconds / self.seconds if self.seconds else 0.0
        late = 100 * self.late / max(1, self.packets)
        line = (
            f"links took {share:.2f} of a processor for {self.packets} packets; {late:.2g} % were "
            f"more than {self.late_limit * 1e3:.3g} ms late, the worst "
            f"{self.worst_lateness * 1e3:.3g} ms, the mean {self.mean_lateness * 1e6:.0f} us"
        )
        return f"{line}; {self.overrun} were overrun" if self.overrun else line


class LateLinksError(ClusterError):
    """Strict links could not keep to their model, so figures measured over them are void.

    Attributes:
      report: the numbers.
    """

    def __init__(self, report: LinkReport) -> None:
        super().__init__(
            f"this machine could not carry the links: {report.text()}. What was measured is void; "
            "use a lower rate, fewer hosts or a larger MTU, or wait until nothing else is running"
        )
        self.report = report


def host_address(host: int) -> str:
    """Returns the Ethernet address of a host's TAP device; see ``lab/src/switch/frame.h``."""
    return f"02:48:45:00:{host >> 8:02x}:{host & 255:02x}"


def find_switch() -> pathlib.Path | None:
    """Returns the path of this package's compiled switch; None if it is not installed."""
    import herring_lab
    import herring_lab._simulate

    compiled = pathlib.Path(herring_lab._simulate.__file__).parent
    for folder in (compiled, *map(pathlib.Path, herring_lab.__path__)):
        if (program := folder / "herring_lab_switch").is_file():
            return program
    return None


class Switch:
    """A running switch.

    Args:
      command: the command that starts the switch, including that which enters its namespace.
      spaces: the namespaces of the hosts, in order, as names in ``/run/netns``.
      spines: the number of spines between the leaves of even and odd hosts; 0: all hosts are on
        one switch.
      seed: the seed of losses and jitter.
      mtu: the largest MTU of any host.
      late_limit: the lateness from which on a delivery counts as late, in seconds.

    Raises:
      ClusterError: the switch does not start; the message quotes what it printed.
    """

    def __init__(
        self,
        command: Sequence[str],
        spaces: Sequence[str],
        spines: int,
        seed: int,
        mtu: int,
        late_limit: float,
    ) -> None:
        self._hosts = len(spaces)
        self._late_limit = late_limit
        self._one_at_a_time = threading.Lock()
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process: Any = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        frame = mtu + _HEADER + 4
        first = f"network {len(spaces)} {spines} {seed} {frame} {_nanos(late_limit)}"
        try:
            self.tell([first, *(f"tap {host} {space}" for host, space in enumerate(spaces))])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the switch."""
        return self._process.pid

    @staticmethod
    def link_line(number: int, rate_bits: float | None, queue_seconds: float) -> str:
        """Returns the line that sets a link, for `tell`."""
        return f"link {number} {rate_bits or 0!r} {_nanos(queue_seconds)}"

    def tell(self, lines: Sequence[str]) -> None:
        """Sends lines of ``lab/src/switch/switch.h`` to the switch, and waits until they are done.

        Raises:
          ClusterError: a line could not be executed; the message quotes the switch.
        """
        self._ask([*lines, "sync"])

    def report(self, reset: bool = False) -> tuple[LinkReport, list[list[int]]]:
        """Returns how well the switch kept up, and packets, bytes and drops of each link.

        The report does not include what the hosts' devices have dropped.

        Args:
          reset: whether the next report begins now.

        Raises:
          ClusterError: the switch has ended.
        """
        found: dict[str, Any] = json.loads(self._ask(["report", *(["reset"] if reset else [])]))
        report = LinkReport(
            seconds=found["seconds"],
            processor_seconds=found["processor_seconds"],
            packets=found["packets"],
            late=found["late"],
            late_limit=self._late_limit,
            mean_lateness=found["late_sum"] / max(1, found["packets"]),
            worst_lateness=found["worst"],
            longest_turn=found["turn"],
            lost=found["lost"],
            overrun=0,
        )
        return report, found["links"]

    def close(self) -> None:
        """Ends the switch. More calls have no effect."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def _ask(self, lines: Sequence[str]) -> str:
        try:
            with self._one_at_a_time:
                self._process.stdin.write("\n".join(lines) + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
        except (BrokenPipeError, ValueError):
            answer = ""
        if not answer:
            words = "" if self._process.stderr.closed else self._process.stderr.read().strip()
            raise ClusterError(f"the lab's switch has ended: {words or 'no reason given'}")
        return answer


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)
