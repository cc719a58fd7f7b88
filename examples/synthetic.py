"""Trains a ResNet-50 or a BERT-base on random data, and prints images or sequences per second.

Compare values of --average to measure the cost of averaging: "none" does not average gradients,
"herring" and "ddp" (torch's own DistributedDataParallel) average them over all workers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

EPILOG = """\
examples:
  herring run -n 2 -- python examples/synthetic.py --tiny --device cpu
      two workers with a small model, as a quick check
  herring run -n 8 -- python examples/synthetic.py --model bert --dtype bfloat16
      eight workers, each on its own GPU if there are eight
  herring run -H host1:8,host2:8 --servers 2 -- python examples/synthetic.py
      two hosts with eight workers each, and two servers
  torchrun --nproc-per-node 8 examples/synthetic.py --average ddp
      the same model with torch's DistributedDataParallel, for comparison
  python examples/synthetic.py --average none
      a single worker, to measure a step without averaging

Rank r uses GPU r modulo the number of GPUs of its host. ddp uses NCCL if each worker has its own
GPU, and Gloo otherwise. The data are random numbers that are generated once, so neither disks nor
data loaders are measured. The rate is the total of all workers, from a barrier after the warm-up to
a barrier after the last step. Between steps, only the averaging may wait for a GPU. At the end, the
script checks that all workers have the same parameters.
"""


class Bottleneck(nn.Module):
    """A block of a ResNet: 1x1, 3x3 and 1x1 convolutions, and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps images [samples, channels, height, width] to [samples, 4 * width, ...]."""
        return F.relu(self.body(images) + self.shortcut(images))


class ResNet(nn.Module):
    """ResNet-50 (He et al., 2015; stride in the 3x3 convolutions), or a small network like it."""

    noun = "images"

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        width, depths = (8, (1, 1, 1, 1)) if tiny else (64, (3, 4, 6, 3))
        self.pixels, self.classes = (64, 10) if tiny else (224, 1000)
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, padding=1)),
        ]
        channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage and block == 0 else 1
                layers.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.layers = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, self.classes)
        )

    def batch(self, size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Returns images [size, 3, pixels, pixels] (float32) and labels [size] (int64)."""
        images = torch.randn(size, 3, self.pixels, self.pixels, device=device)
        labels = torch.randint(self.classes, (size,), device=device)
        return images.contiguous(memory_format=torch.channels_last), labels

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        return F.cross_entropy(self.layers(images).float(), labels)

    def optimizer(self) -> torch.optim.Optimizer:
        """Returns a typical optimizer for this model."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


class Bert(nn.Module):
    """BERT-base's encoder and masked-word head (Devlin et al., 2018), or a small model like it."""

    noun = "sequences"

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        self.words, width, depth, heads = (1000, 32, 2, 4) if tiny else (30522, 768, 12, 12)
        self.length, self.masked = (16, 3) if tiny else (128, 20)
        self.word = nn.Embedding(self.words, width)
        self.position = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(self.words))
        for table in (self.word, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def batch(self, size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Returns int64 words [size, length], places [size, masked] and the words at the places."""
        words = torch.randint(self.words, (size, self.length), device=device)
        places = torch.rand(size, self.length, device=device).topk(self.masked).indices
        return words, places, torch.randint(self.words, (size, self.masked), device=device)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Returns the loss."""
        positions = torch.arange(words.shape[1], device=words.device)
        hidden = self.encoder(self.norm(self.word(words) + self.position(positions)))
        rows = torch.arange(len(words), device=words.device)[:, None]
        found = F.linear(self.head(hidden[rows, places]), self.word.weight, self.bias)
        return F.cross_entropy(found.float().flatten(0, 1), labels.flatten())

    def optimizer(self) -> torch.optim.Optimizer:
        """Returns a typical optimizer for this model."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=0.01)


MODELS = {"resnet50": ResNet, "bert": Bert}


class Herring:
    """The workers of a Herring job; averages gradients if `averages` is true."""

    def __init__(self, averages: bool) -> None:
        import herring.torch

        herring.init()
        self._herring = herring.torch
        self._averages = averages
        self.rank, self.size = herring.rank(), herring.size()
        self.name = "herring" if averages else "no averaging"

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Returns the model, wrapped if gradients are averaged."""
        return self._herring.DistributedDataParallel(model) if self._averages else model

    def gather(self, mine: Any) -> list[Any]:
        """Returns the objects of all workers, after all workers have called this."""
        return self._herring.allgather_object(mine)

    def close(self) -> None:
        """Leaves the job."""
        self._herring.shutdown()


class TorchDdp:
    """The workers of a torch.distributed job."""

    def __init__(self, device: str) -> None:
        import torch.distributed as dist

        if "RANK" not in os.environ:
            raise SystemExit("synthetic.py: --average ddp needs torchrun, or herring run")
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        own = device == "cuda" and local <= torch.cuda.device_count() and dist.is_nccl_available()
        dist.init_process_group("nccl" if own else "gloo")
        self._dist = dist
        self._own = own
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.name = f"ddp over {'nccl' if own else 'gloo'}"

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Returns the model, wrapped by DistributedDataParallel."""
        return nn.parallel.DistributedDataParallel(model, [device] if self._own else None)

    def gather(self, mine: Any) -> list[Any]:
        """Returns the objects of all workers, after all workers have called this."""
        everyone: list[Any] = [None] * self.size
        self._dist.all_gather_object(everyone, mine)
        return everyone

    def close(self) -> None:
        """Leaves the job."""
        self._dist.destroy_process_group()


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and does not reformat the examples."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=Formatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="resnet50", help="25.6 and 109 million parameters")
    add(
        "--average",
        choices=["herring", "ddp", "none"],
        default="herring",
        help="the library that averages gradients",
    )
    add(
        "--device",
        choices=["auto", "cuda", "cpu"],
        default="auto",
        help="device to train on; auto uses GPUs if torch sees any",
    )
    add("--batch", type=int, default=32, help="images or sequences per worker and step")
    add("--steps", type=int, default=50, help="number of timed steps")
    add("--warmup", type=int, default=10, help="number of untimed steps before the timed ones")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="bfloat16 computes under autocast; parameters and gradients stay float32",
    )
    add("--tiny", action="store_true", help="use a small model, for machines without GPUs")
    arguments = parser.parse_args()
    for name, least in (("batch", 1), ("steps", 1), ("warmup", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} is {getattr(arguments, name)}; it must be at least {least}")
    seen = torch.cuda.is_available()
    if arguments.device == "cuda" and not seen:
        parser.error(f"--device cuda: torch {torch.__version__} sees no GPU; use cpu or auto")
    if arguments.device == "auto":
        arguments.device = "cuda" if seen else "cpu"
    return arguments


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, ...],
    workers: Herring | TorchDdp,
    arguments: argparse.Namespace,
) -> tuple[float, float]:
    """Runs all steps; returns the seconds of the timed steps, and the last loss."""
    device = batch[0].device

    def steps(count: int) -> torch.Tensor:
        loss = torch.zeros(())
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=arguments.dtype == "bfloat16"):
                loss = model(*batch)
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        workers.gather(None)
        return loss.detach()

    steps(arguments.warmup)
    start = time.perf_counter()
    loss = steps(arguments.steps)
    return time.perf_counter() - start, loss.item()


def digest(model: nn.Module) -> str:
    """Returns a hash of all parameters' bits."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    arguments = parse_arguments()
    if arguments.average == "ddp":
        workers: Herring | TorchDdp = TorchDdp(arguments.device)
    else:
        workers = Herring(averages=arguments.average == "herring")
    if arguments.device == "cuda":
        device = torch.device("cuda", workers.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        where = f"{device} ({torch.cuda.get_device_name(device)})"
        torch.backends.cudnn.benchmark = True
    else:
        device = torch.device("cpu")
        where = "cpu"
        torch.set_num_threads(1)  # The workers share this machine's cores.
    torch.manual_seed(workers.rank)  # Data differ by rank; wrapped models start as rank 0's.
    raw = MODELS[arguments.model](arguments.tiny).to(
        device,
        memory_format=torch.channels_last,  # type: ignore[call-overload]  # torch's types lack it
    )
    model = workers.wrap(raw, device)
    batch = raw.batch(arguments.batch, device)
    parameters = sum(parameter.numel() for parameter in raw.parameters())
    if workers.rank == 0:
        tiny = "tiny " if arguments.tiny else ""
        print(
            f"{tiny}{arguments.model}: {parameters:,} parameters, {arguments.dtype}, on {where}\n"
            f"{workers.size} workers, {arguments.batch} {raw.noun} each, {workers.name}",
            flush=True,
        )
    seconds, loss = train(model, raw.optimizer(), batch, workers, arguments)
    identical = len(set(workers.gather(digest(raw)))) == 1
    if workers.rank == 0:
        rate = workers.size * arguments.batch * arguments.steps / seconds
        print(
            f"{rate:,.1f} {raw.noun}/s, {rate / workers.size:,.1f} per worker; a step takes "
            f"{1e3 * seconds / arguments.steps:.2f} ms; loss {loss:.4f}"
        )
        if arguments.average != "none":
            same = "all workers hold the same parameters"
            print(f"checked: {same}" if identical else f"NOT so: {same}", flush=True)
    del model  # If DistributedDataParallel outlives its group of Gloo, torch may hang in its end.
    workers.close()
    if arguments.average != "none" and not identical:
        raise SystemExit("synthetic.py: the workers ended with different parameters")


if __name__ == "__main__":
    main()
