"""`herring kubernetes`: manifests of a job with servers, for JobSet or for Kubeflow Trainer.

The servers are a replicated job of their own. They are ready before the workers are created, so no
accelerator idles while server images load. They end with the workers: the job succeeds when all
workers have. The job's secret is a Secret object, which is new in every manifest.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from herring.base.parts import data_file, import_optional
from herring.base.units import counted
from herring.command.options import add_settings
from herring.errors import ConfigurationError
from herring.launch.hosts import require_range
from herring.rendezvous.settings import given, named, port_range
from herring.terminal.command_line import integer

HELP = """\
examples:
  herring kubernetes --name digits --image registry.example/trainer --workers 4 --servers 2 \\
      -o digits.yaml -- python train.py
      a JobSet of four pods with a worker each and two with a server each; start it with
      'kubectl apply -f digits.yaml'

  herring kubernetes --name digits --image registry.example/trainer --workers 2 --per-pod 8 \\
      --gpus 8 --servers 2 -o digits.yaml -- python train.py
      two pods of eight workers and eight GPUs each; torchrun, which the image must have, starts the
      workers

  herring kubernetes --kind runtime --name herring-torch --image registry.example/trainer \\
      --workers 2 --servers 2 -o runtime.yaml -- python train.py
      a TrainingRuntime of Kubeflow Trainer, for TrainJobs of this shape

The manifest holds the job's secret: do not share the file (-o writes it with mode 0600), or let
--secret name an existing Secret with the key 'secret' (at least 32 hexadecimal digits). JobSet must
be 0.8 or newer, Kubeflow Trainer 2.0 or newer.
"""

# Option, placeholder for its value, minimum, maximum, meaning.
_NUMBERS = (
    ("--workers", "N", 1, 4096, "pods with workers"),
    ("--per-pod", "M", 1, 64, "workers in each of these pods; more than one need torchrun"),
    ("--gpus", "G", 0, 64, "GPUs of each worker pod"),
    ("--port", "PORT", 1024, 65535, "port on which rank 0 listens"),
    ("--restarts", "R", 0, 1000, "number of times the whole job is restarted after a failure"),
)
_STORE_PORT = 29500  # the port of torchrun's store
# PyYAML leaves 1e-3, 0o17 and y without quotes, which Kubernetes takes for a number and a boolean.
_AMBIGUOUS = re.compile(r"[-+.\d]|[yYnN]\Z|.*\n", re.DOTALL)
_PLACEHOLDER = re.compile(r"\$\{(\w+)( as text)?\}")


@dataclass(frozen=True)
class JobOptions:
    """The options from which a manifest is made."""

    name: str  # name of the JobSet or the TrainingRuntime
    image: str  # container image with Herring and the script
    command: Sequence[str]  # program and arguments of each worker
    kind: str = "jobset"  # ``jobset`` or ``runtime``
    workers: int = 1  # number of pods with workers
    per_pod: int = 1  # workers in each of these pods
    # Number of pods with a dedicated server; if 0, the workers have colocated servers.
    servers: int = 0
    gpus: int = 0  # GPUs of a worker pod
    namespace: str | None = None  # namespace of the job, or None for the one that ``kubectl`` uses
    secret: str | None = None  # name of an existing Secret, or None to make one
    port: int = 29600  # port on which rank 0 listens
    # Range in which everything else listens (``HERRING_PORTS``), or None for any port.
    ports: str | None = None
    restarts: int = 0  # how often the whole job is started again after a failure

    def check(self) -> None:
        """Raises ConfigurationError, with the option, its value and what is allowed."""
        # Names of pods and hosts are made from the name, and are limited to 63 characters.
        _check_name("--name", self.name, 40)
        for option, value in (("--namespace", self.namespace), ("--secret", self.secret)):
            if value is not None:
                _check_name(option, value, 63)
        if not re.fullmatch(r"[!-~]{1,500}", self.image):
            raise ConfigurationError(
                f"--image {self.image!r} is not valid: allowed is the name of a container image"
            )
        if not self.command:
            raise ConfigurationError(
                "no command to run: put it after '--', as in '-- python train.py'"
            )
        for option, _, least, most, _ in _NUMBERS:
            require_range(option, getattr(self, _field_of(option)), least, most)
        named("servers").parse(str(self.servers), "--servers")
        torchrun = self.per_pod > 1 or self.kind == "runtime"
        if self.port == _STORE_PORT and torchrun:
            raise ConfigurationError(
                f"--port {self.port} is taken, because torchrun listens there; choose another port"
            )
        if self.ports is not None:
            named("ports").parse(self.ports, "--ports")
            self._check_ports(torchrun)

    def _check_ports(self, torchrun: bool) -> None:
        """Checks that the processes of each pod find ports, and that rank 0 finds its own."""
        ports = port_range({"HERRING_PORTS": self.ports or ""})
        if ports is None:
            return
        shown = f"--ports {self.ports}"
        if self.port in ports:
            raise ConfigurationError(
                f"{shown} contains {self.port}, where rank 0 listens (--port): another process of "
                "its pod could take that port; choose a range without it, or another --port"
            )
        if torchrun and _STORE_PORT in ports:
            raise ConfigurationError(
                f"{shown} contains {_STORE_PORT}, where torchrun listens; choose a range without it"
            )
        colocated = self.workers > 1 and self.servers < self.workers
        needed = self.per_pod + colocated
        if len(ports) < needed:
            whose = "one for its worker" if self.per_pod == 1 else "one for each of its workers"
            whose += " and one for its colocated server" * colocated
            raise ConfigurationError(
                f"{shown} has {counted(len(ports), 'port')}, but a worker pod needs {needed}: "
                f"{whose}; choose a wider range"
            )


def manifests(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the objects of the job, in the order in which Kubernetes must create them.

    Returns:
        A Secret, if the options do not name one, and the JobSet or TrainingRuntime; as dictionaries
        in the form of Kubernetes' JSON.

    Raises:
        ConfigurationError: An option has a value that is not allowed, or kubernetes.yaml was edited
            and is not right.
    """
    options.check()
    yaml = import_optional("yaml", "PyYAML", "reads and writes the file", "kubernetes")
    objects = data_file("command/kubernetes.yaml", yaml.safe_load)
    filled: list[dict[str, Any]] = _fill(objects, _values(options))
    return filled


class _Values(dict[str, Any]):
    """The values by their names in the template."""

    def __missing__(self, name: str) -> NoReturn:
        raise ConfigurationError(
            f"kubernetes.yaml: there is no value {name!r}; allowed are {', '.join(self)}"
        )


def _values(options: JobOptions) -> _Values:
    """Returns what the placeholders and conditions of kubernetes.yaml stand for."""
    jobset = options.kind == "jobset"
    # Kubeflow Trainer expects its own words; a TrainJob and its JobSet have the same name.
    worker = "worker" if jobset else "node"
    job = options.name if jobset else "$(JOBSET_NAME)"
    found = {
        **vars(options),
        "jobset": jobset,
        "runtime": not jobset,
        "one_per_pod": jobset and options.per_pod == 1,
        "nodes_of_torchrun": jobset and options.per_pod > 1,
        "makes_secret": options.secret is None,
        "secret": options.secret or f"{options.name}-secret",
        "token": secrets.token_hex(32),
        "worker": worker,
        "job": job,
        "first_host": f"{job}-{worker}-0-0.{job}",  # as JobSet calls rank 0's pod
        "store_port": _STORE_PORT,
        # Kubernetes turns "$$" into "$" and "$(NAME)" into the value of a variable.
        "command": [word.replace("$", "$$") for word in options.command],
    }
    return _Values(found)


def _fill(part: Any, values: Mapping[str, Any]) -> Any:
    """Returns a part of the template with its values; None if it is to be left out."""
    if isinstance(part, dict):
        if "$if" in part and not any(values[name] for name in part["$if"]):
            return None
        if "$items" in part:
            return _fill(part["$items"], values)
        filled = {key: _fill(each, values) for key, each in part.items() if key != "$if"}
        return {key: each for key, each in filled.items() if each is not None}
    if isinstance(part, list):
        found = [_fill(each, values) for each in part]
        return [one for each in found if each is not None for one in _as_list(each)]
    if not isinstance(part, str):
        return part
    if (whole := _PLACEHOLDER.fullmatch(part)) and not whole[2]:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), part)


def _as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Returns the objects as YAML, keys in the given order; ConfigurationError without PyYAML."""
    yaml = import_optional("yaml", "PyYAML", "writes the file", "kubernetes")

    class Dumper(yaml.SafeDumper):
        """Writes a text in quotes where any version of YAML reads something else without them."""

    def represent(dumper: Any, text: str) -> Any:
        style = '"' if _AMBIGUOUS.match(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    layout = {"sort_keys": False, "explicit_start": True, "allow_unicode": True, "width": 1000}
    return str(yaml.dump_all(objects, Dumper=Dumper, **layout))


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring kubernetes`."""
    command.usage = "herring kubernetes --name NAME --image IMAGE [options] -- COMMAND [ARG ...]"
    command.add_argument("--name", required=True, help="job name, also the prefix of pod names")
    command.add_argument("--image", required=True, help="image with Herring and the script")
    command.add_argument(
        "--kind",
        choices=("jobset", "runtime"),
        default="jobset",
        help="jobset (default), or runtime: a TrainingRuntime of Kubeflow Trainer",
    )
    for option, letter, _, _, text in _NUMBERS:
        default = getattr(JobOptions, _field_of(option))
        text = f"{text} (default: {default})"
        command.add_argument(option, type=integer, metavar=letter, default=default, help=text)
    add_settings(command, "servers", "ports")
    command.add_argument("--namespace", help="namespace of the job")
    command.add_argument("--secret", metavar="NAME", help="name of an existing Secret")
    command.add_argument("-o", "--output", metavar="FILE", help="manifest file (default: stdout)")
    command.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each worker runs"
    )


def handle(options: argparse.Namespace) -> int:
    """Writes the manifest."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    asked = {
        name: getattr(options, name)
        for name in JobOptions.__dataclass_fields__
        if name != "command"
    }
    asked["ports"] = options.ports or given(os.environ, "HERRING_PORTS")
    text = to_yaml(manifests(JobOptions(command=command, **asked)))
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        _write(Path(options.output), text)
    except OSError as error:
        raise ConfigurationError(
            f"--output {options.output} cannot be written: {error.strerror}"
        ) from None
    return 0


def _write(path: Path, text: str) -> None:
    """Writes to a device or pipe, or to a file that only its owner can read, for the secret."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _field_of(option: str) -> str:
    return option[2:].replace("-", "_")


def _check_name(option: str, value: str, most: int) -> None:
    if len(value) > most or not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", value):
        raise ConfigurationError(
            f"{option} {value} is not valid: allowed are at most {most} lower-case letters, digits "
            "and hyphens, with a letter first and no hyphen last"
        )
