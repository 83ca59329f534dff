"""Make the body of `ipamd/cloud/limits.py` from the instance type facts that moto ships.

They are a recorded DescribeInstanceTypes. Run `python -m tests.unit.cloud.limits_source` and paste its output between the
quotes of TABLE; `test_limits.py` fails when they differ.
"""

from __future__ import annotations

import gzip
import json
import sys
import textwrap
from collections import defaultdict
from importlib.resources import files
from typing import Any

Group = tuple[int, int, int, str]


def facts() -> dict[str, Group]:
    """Each instance type with ENIs on its default card, IPv4 addresses per ENI, network cards and kind."""
    packed = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    return {name: _fact(entry) for name, entry in json.loads(gzip.decompress(packed)).items()}


def tcp_timeouts() -> dict[str, int]:
    """Each instance type with the seconds after which EC2 forgets an idle TCP connection by default."""
    packed = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    entries = json.loads(gzip.decompress(packed)).items()
    return {
        name: entry["NetworkInfo"]["ConnectionTrackingConfiguration"]["DefaultTcpEstablishedTimeout"] for name, entry in entries
    }


def enis_of_all_cards(name: str) -> int:
    """The ENIs that a type may have on all its network cards together."""
    packed = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    cards = json.loads(gzip.decompress(packed))[name]["NetworkInfo"]["NetworkCards"]
    return sum(card["MaximumNetworkInterfaces"] for card in cards)


def lines() -> dict[Group, str]:
    """One string per group, families and sizes in order: `c5:large,xlarge c5d:large`."""
    sizes: dict[Group, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, group in sorted(facts().items()):
        family, size = name.split(".", 1)
        sizes[group][family].append(size)
    return {
        group: " ".join(f"{family}:{','.join(held)}" for family, held in sorted(families.items()))
        for group, families in sorted(sizes.items())
    }


def _fact(entry: dict[str, Any]) -> Group:
    network = entry["NetworkInfo"]
    default = network["DefaultNetworkCardIndex"]
    cards = {card["NetworkCardIndex"]: card["MaximumNetworkInterfaces"] for card in network["NetworkCards"]}
    kind = "metal" if entry["BareMetal"] else entry["Hypervisor"]
    return cards[default], network["Ipv4AddressesPerInterface"], network["MaximumNetworkCards"], kind


def rows() -> list[str]:
    """The table as it stands in the module: rows of at most 120 characters, each complete in itself."""
    made = []
    for group, text in lines().items():
        head = " ".join(map(str, group))
        made += [f"{head} {part}" for part in _wrapped(text, 119 - len(head))]
    return made


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Print the rows."""
    sys.stdout.write("\n".join(rows()) + "\n")


if __name__ == "__main__":
    main()
