"""`vpc-lab hand`: do to a node's ENIs what people at the console and other tools do, behind the daemon's back.

    vpc-lab hand detach ENI [--force]              vpc-lab hand delete ENI
    vpc-lab hand unassign ADDRESS|PREFIX           vpc-lab hand assign ENI [--address A | --prefixes N]
    vpc-lab hand attach NODE|ENI [--type efa-only] [--addresses N] [--no-manage]
    vpc-lab hand announce NODE --notice interruption|rebalance|nothing
    vpc-lab hand groups ENI                        vpc-lab hand volumes NODE --count N

This is the command's side; the lab's is handwork.py.
"""

from __future__ import annotations

import argparse

from lab.cli.control import ask
from lab.cli.handwork import ACTIONS

NOTICES = ("interruption", "rebalance", "nothing")
TYPES = ("interface", "efa", "efa-only", "trunk", "branch", "ipv6-only")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `vpc-lab hand`."""
    parser.add_argument("action", choices=sorted(ACTIONS))
    parser.add_argument(
        "target", help="an ENI's ID; unassign: an address or prefix; attach: a node or an ENI; announce, volumes: a node"
    )
    parser.add_argument("--force", action="store_true", help="detach: at once")
    parser.add_argument("--address", default="", help="assign: this one, wherever it is now")
    parser.add_argument("--prefixes", type=int, default=0, metavar="N", help="assign: N prefixes instead of an address")
    parser.add_argument("--type", default="interface", choices=TYPES, help="attach: kind of the new ENI (default: %(default)s)")
    parser.add_argument("--addresses", type=int, default=0, metavar="N", help="attach: secondary addresses of the new ENI")
    parser.add_argument("--no-manage", action="store_true", help="attach: with the tag by which the daemon leaves an ENI alone")
    parser.add_argument(
        "--notice",
        default="interruption",
        choices=NOTICES,
        help="announce: what metadata of a spot instance says (default: %(default)s)",
    )
    parser.add_argument("--count", type=int, default=1, metavar="N", help="volumes: how many the node has from now on")


def run(arguments: argparse.Namespace) -> int:
    """Ask the lab to do it, and say what was done."""
    names = ("action", "target", "force", "address", "prefixes", "type", "addresses", "no_manage", "notice", "count")
    print(ask(arguments.name, "hand", **{name: getattr(arguments, name) for name in names})["done"])
    return 0
