"""The options and the help text of ``herring simulate``."""

from __future__ import annotations

import argparse

from herring.arrays.wire import PACKED_DTYPES
from herring.terminal.command_line import integer
from herring_lab.simulate.catalogue import MODELS

#: Bytes per element of each dtype that gradients may have.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Bytes per element on the wire. A pack of 1 KiB has 992 numbers of 8 bits and their scales, or the
#: 255 largest numbers of a block, such as of 25,500 with "topk:0.01".
WIRE_DTYPES = {
    **DTYPES,
    **dict.fromkeys(("fp8", "int8"), 1024 / 992),
    **{name: 1024 * float(name[5:]) / 255 for name in PACKED_DTYPES if name.startswith("topk:")},
}
#: Names of the options that --sweep can vary.
SWEEPS = ("nodes", "servers", "rate", "rtt", "loss")

HELP = f"""\
examples:
  herring simulate --nodes 64 --gpus-per-node 8 --servers 64 --rate 100gbit --rtt 50us \\
      --model bert-large --step 0.45
      Prints the step time, the efficiency, the bottleneck and the best number of servers.

  herring simulate --nodes 64 --gpus-per-node 8 --rate 25gbit --model bert-large --step 0.45 \\
      --node-price 31.2 --server-price 4.9
      Does the same for slower links and as many servers as nodes, and adds what a step costs.

  herring simulate --nodes 16 --servers 0 --size 100M --rate 10gbit
      Times averaging alone: 100 MB of gradients, all ready at once, with colocated servers.

  herring simulate --gpus-per-node 8 --model gpt-2-xl --step 1.2 --wire-dtype bfloat16 \\
      --sweep nodes=2..12800 --out simulated
      Writes a table and a plot of step time over the number of nodes, up to 102,400 workers,
      and compares Herring with ring, butterfly, tree and hierarchical all-reduce.

  herring simulate --nodes 32 --model vgg-16 --step 0.2 --rate 10gbit --sweep rtt=10us..100ms:x10
  herring simulate --nodes 32 --model vgg-16 --step 0.2 --rate 10gbit --sweep loss=0%,0.01%,0.1%
      Vary the round trip or the loss. --sweep can vary: {", ".join(SWEEPS)}.
      LOW..HIGH doubles the value from point to point, LOW..HIGH:STEP adds STEP, LOW..HIGH:xN
      multiplies by N, and A,B,C lists the values.

  herring simulate --nodes 8 --rate 20mbit --rtt 20ms --model gpt-2 --step 0.3 \\
      --wire-dtype fp8 --meet-every 100
      Computes an average step of training that meets after every 100 steps.

  herring simulate --list-models
      Lists the models that --model accepts, with their parameters, gradients and sources.

The command measures nothing and sends nothing. It simulates averaging in virtual time with the
library's own plan and credit controller; formulas give the rest. Every answer lists its
assumptions. Root is not needed; plots need matplotlib.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``herring simulate`` to its parser."""
    hosts = parser.add_argument_group("hosts")
    hosts.add_argument(
        "--nodes", type=integer, metavar="N", help="number of worker machines (default 8)"
    )
    hosts.add_argument(
        "--gpus-per-node", type=integer, default=1, metavar="G", help="workers per node (default 1)"
    )
    hosts.add_argument(
        "--servers",
        type=integer,
        metavar="K",
        help="number of dedicated servers, each on a host of its own (default: as many as nodes). "
        "With fewer servers than nodes, each node also runs a colocated server.",
    )
    hosts.add_argument(
        "--node-rate",
        metavar="BYTES",
        help="bytes per second, each way, at which the workers of a node together sum a buffer and "
        "copy its result back (default 48G); needs several workers per node",
    )
    hosts.add_argument(
        "--proxies",
        type=integer,
        default=0,
        metavar="N",
        help="event-loop threads of each server, each on a core of its own (default 0: one for "
        "every 8 nodes, at most 16)",
    )
    hosts.add_argument(
        "--late",
        metavar="TIME",
        help="extra delay of the slowest node each time the node count doubles (default 0)",
    )
    hosts.add_argument(
        "--costs",
        metavar="FILE",
        help="JSON file with processor costs: 'frame', 'byte' and 'wakeup' in seconds, and the "
        "number of 'cores'. 'herring study predictions' measures them and writes costs.json.",
    )
    links = parser.add_argument_group("network")
    links.add_argument(
        "--rate", metavar="RATE", help="rate of each link, each way (default 100gbit)"
    )
    links.add_argument(
        "--server-rate", metavar="RATE", help="rate of dedicated servers' links (default: --rate)"
    )
    links.add_argument("--rtt", metavar="TIME", help="round trip without queueing (default 50us)")
    links.add_argument(
        "--loss", metavar="SHARE", help="share of packets lost at random (default 0%%)"
    )
    links.add_argument(
        "--buffer",
        metavar="BYTES",
        help="buffer of each switch port, in bytes or as a time at --rate, as in 2ms (default 16M)",
    )
    links.add_argument(
        "--mtu", default="9000", metavar="BYTES", help="largest IP packet (default 9000)"
    )
    job = parser.add_argument_group("training")
    job.add_argument("--model", metavar="NAME", help=f"one of {', '.join(MODELS)}")
    job.add_argument("--size", metavar="BYTES", help="size of all gradients, instead of --model")
    job.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of the gradients (default float32)"
    )
    job.add_argument(
        "--wire-dtype",
        choices=WIRE_DTYPES,
        help="type in which gradients are sent (default: --dtype)",
    )
    job.add_argument(
        "--step",
        metavar="TIME",
        help="time of the forward and backward pass, without communication (default 0: only the "
        "averaging is timed)",
    )
    job.add_argument(
        "--meet-every",
        type=integer,
        default=1,
        metavar="N",
        help="number of steps after which ranks average how far they have come, as "
        "herring.torch.DiLoCo does (default 1: they average gradients in each step)",
    )
    job.add_argument(
        "--backward",
        type=float,
        metavar="PART",
        help="part of --step that the backward pass takes, above 0 and up to 1 (default 0.667)",
    )
    prices = parser.add_argument_group("prices, in any currency")
    prices.add_argument("--node-price", type=float, metavar="P", help="price of a node per hour")
    prices.add_argument(
        "--server-price", type=float, metavar="P", help="price of a dedicated server per hour"
    )
    out = parser.add_argument_group("output")
    out.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        help=f"compute a row for each value of {', '.join(SWEEPS)}; see the examples",
    )
    out.add_argument("--json", action="store_true", help="print the answer as JSON")
    out.add_argument(
        "--out", metavar="DIR", help="also write the table, its JSON and a plot to DIR"
    )
    out.add_argument(
        "--seed", type=integer, default=1, metavar="N", help="seed of losses and noise (default 1)"
    )
    out.add_argument(
        "--list-models", action="store_true", help="list the models that --model accepts"
    )
