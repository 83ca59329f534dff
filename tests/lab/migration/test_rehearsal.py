"""A person rehearses a migration with `vpc-lab aws-node`: a node of the stand-in comes over with its pods, and goes back."""

from __future__ import annotations

import json
import time

import pytest

from lab.node.node import REPOSITORY
from tests.lab.fabric.test_cli import Cli

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.heavy]


def in_node(cli: Cli, *words: str, code: int = 0) -> str:
    """Run a program of the checkout in the node."""
    return cli("exec", "node-a", "--", "sh", "-c", f"cd {REPOSITORY} && exec python -m {' '.join(words)}", code=code)


def pods(cli: Cli) -> dict[str, str]:
    """Address of each pod by name, as the runtime has it."""
    rows = [line.split() for line in cli("pods", "node-a").splitlines()]
    return {name: address for _, name, address, *_ in rows}


def test_there_and_back() -> None:
    """As docs/migration.md has it: each pod keeps its address, and new ones come from whoever serves the node."""
    cli = Cli(f"rehearsal-{time.monotonic_ns()}")
    try:
        cli("up", "--nodes", "1", "--hosts", "1", "--attach-delay", "0")
        assert "runs" in cli("aws-node", "node-a", "start")
        assert "runs on node-a already" in cli("aws-node", "node-a", "start", code=1)
        cli("pods", "node-a", "--run", "2")
        of_other = pods(cli)
        shown = cli("aws-node", "node-a", "show")
        assert all(name in shown and address in shown for name, address in of_other.items())

        assert "stay" in cli("aws-node", "node-a", "kill")
        assert "does not run" in cli("aws-node", "node-a", "show")
        assert "is ready" in cli("daemon", "node-a", "start")  # a minute after the other's end
        attachments = json.loads(in_node(cli, "ipamd.ipamctl.main", "attachments", "-o", "json"))["attachments"]
        assert {(row["sandbox_name"], row["address"]) for row in attachments} == set(of_other.items())
        cli("ping", "host-a", *of_other.values())
        cli("pods", "node-a", "--run", "1")
        of_both = pods(cli)

        in_node(cli, "ipamd.ipamctl.main", "export")
        cli("daemon", "node-a", "kill")
        in_node(cli, "ipamd.daemon", "clean-up", code=2)  # nobody serves the node yet
        cli("aws-node", "node-a", "start")
        in_node(cli, "ipamd.daemon", "clean-up")
        cli("pods", "node-a", "--run", "1")
        after = pods(cli)
        assert after.items() > of_both.items()
        assert len(set(after.values())) == 4
        cli("ping", "host-a", *after.values())
        tables = cli("exec", "node-a", "--", "nft", "list", "tables")
        assert "vpc-ipamd" not in tables
        cli("pods", "node-a", "--remove")
    finally:
        cli("down")
