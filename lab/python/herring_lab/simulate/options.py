"""The options and the help text of ``herring simulate``."""

from __future__ import annotations

import argparse

from herring.command_line import integer
from herring_lab.simulate.catalogue import MODELS

__all__ = ["DTYPES", "HELP", "SWEEPS", "add_options"]

#: Bytes of the element types that gradients have, and that they are sent in.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What --sweep can vary.
SWEEPS = ("nodes", "servers", "rate", "rtt", "loss")

HELP = f"""\
examples:
  herring simulate --nodes 64 --gpus-per-node 8 --servers 64 --rate 100gbit --rtt 50us \\
      --model bert-large --step 0.45
      step time and efficiency, what binds, and the best number of servers

  herring simulate --nodes 64 --gpus-per-node 8 --rate 25gbit --model bert-large --step 0.45 \\
      --node-price 31.2 --server-price 4.9
      the same on slower links, with as many servers as nodes, and what a step costs

  herring simulate --nodes 16 --servers 0 --size 100M --rate 10gbit
      averaging alone: 100 MB of gradients that are there at once, colocated servers

  herring simulate --gpus-per-node 8 --model gpt-2-xl --step 1.2 --wire-dtype bfloat16 \\
      --sweep nodes=2..12800 --out simulated
      a table and a plot over the number of nodes, beside ring, butterfly, tree and hierarchical
      all-reduce; up to 102,400 workers

  herring simulate --nodes 32 --model vgg-16 --step 0.2 --rate 10gbit --sweep rtt=10us..100ms:x10
  herring simulate --nodes 32 --model vgg-16 --step 0.2 --rate 10gbit --sweep loss=0%,0.01%,0.1%
      other things varied: {", ".join(SWEEPS)}. LOW..HIGH doubles, LOW..HIGH:STEP adds,
      LOW..HIGH:xN multiplies, or write a list

  herring simulate --list-models
      what --model knows: parameters, gradients, where they were published

Nothing is measured and nothing is sent: averaging is a job in virtual time, with the plan and the
credit controller of the library, everything else follows from formulas. What was assumed is printed
with every answer. Needs no root; plots need matplotlib.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``herring simulate`` to its parser."""
    hosts = parser.add_argument_group("hosts")
    hosts.add_argument("--nodes", type=integer, metavar="N", help="machines with workers (8)")
    hosts.add_argument(
        "--gpus-per-node", type=integer, default=1, metavar="G", help="workers on each node (1)"
    )
    hosts.add_argument(
        "--servers",
        type=integer,
        metavar="K",
        help="hosts with a dedicated server each; below --nodes each node has a colocated server "
        "besides (as many as nodes)",
    )
    hosts.add_argument(
        "--node-rate",
        metavar="BYTES",
        help="per second and each way: how fast the workers of a node bring a buffer together and "
        "spread the result (48G)",
    )
    hosts.add_argument(
        "--proxies",
        type=integer,
        default=0,
        metavar="N",
        help="of each server, on a core each (0: one for up to 8 nodes, at most 16)",
    )
    hosts.add_argument(
        "--late",
        metavar="TIME",
        help="what the slowest of twice as many nodes adds to an average (0)",
    )
    hosts.add_argument(
        "--costs",
        metavar="FILE",
        help="JSON with what processors take: frame, byte and wakeup in seconds, cores",
    )
    links = parser.add_argument_group("network")
    links.add_argument("--rate", metavar="RATE", help="of every link in each direction (100gbit)")
    links.add_argument("--server-rate", metavar="RATE", help="of the servers' links (as --rate)")
    links.add_argument("--rtt", metavar="TIME", help="round trip, empty network (50us)")
    links.add_argument("--loss", metavar="SHARE", help="of packets, lost at random (0%%)")
    links.add_argument(
        "--buffer", metavar="BYTES", help="of the switch for each port; or a time (16M)"
    )
    links.add_argument("--mtu", default="9000", metavar="BYTES", help="largest packet (9000)")
    job = parser.add_argument_group("training")
    job.add_argument("--model", metavar="NAME", help=f"{', '.join(MODELS)}")
    job.add_argument("--size", metavar="BYTES", help="of all gradients, instead of --model")
    job.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of the gradients (float32)"
    )
    job.add_argument("--wire-dtype", choices=DTYPES, help="that gradients are sent in (as --dtype)")
    job.add_argument(
        "--step",
        metavar="TIME",
        help="forward and backward pass on one worker, without communication (0: averaging alone)",
    )
    job.add_argument(
        "--backward",
        type=float,
        metavar="PART",
        help="of --step that is the backward pass (0.667)",
    )
    prices = parser.add_argument_group("prices, in any currency")
    prices.add_argument("--node-price", type=float, metavar="P", help="of a node per hour")
    prices.add_argument("--server-price", type=float, metavar="P", help="of a server per hour")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--sweep", metavar="NAME=VALUES", help=f"vary one of {', '.join(SWEEPS)}; see examples"
    )
    out.add_argument("--json", action="store_true", help="print JSON")
    out.add_argument("--out", metavar="DIR", help="write tables, JSON and plots to a folder")
    out.add_argument("--seed", type=integer, default=1, metavar="N", help="of losses and noise (1)")
    out.add_argument("--list-models", action="store_true", help="print the catalogue")
