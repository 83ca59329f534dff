"""Each ticket of docs/troubleshooting.md that concerns a fleet, on made nodes that have it: the page's command, and what it answers.

The pages of metrics are those of a whole daemon of fakes, by zone and release. `make screens` keeps what the commands show.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

import ipamd
from ipamd.model.errors import CloudDeniedError, CloudError, PoolEmptyError, SubnetExhaustedError
from kubectl_ipamd.judgement import NodeState
from tests.fakes.node import FakeNode
from tests.lab.tickets.screens import write_screens
from tests.stories.stale_reads import run_sandboxes
from tests.task_pages import Runner, Section, commands, sections
from tests.unit.kubectl import cluster
from tests.unit.kubectl.conftest import Desk
from tests.unit.service.metric_values import closing_nodes, start

PAGE = sections("troubleshooting.md")
TICKETS = commands("troubleshooting.md", Runner.FLEET)
ZONE = "us-west-2a"
"""The zone of a node of fakes."""

ZONES = {
    ZONE: "subnet-0a17c5d2f346baa94",
    "us-west-2b": "subnet-0b93e61f0c7d25a18",
    "us-west-2c": "subnet-0c4420d9e8b1f6735",
}
"""Zone -> its subnet."""

EARLIER, LATER = ipamd.__version__, "0.2.0"
IDLE_S = 2 * 3600.0
"""For so long a node that needs nothing has not asked EC2."""

HANGS_S = 8.0
"""For so long a daemon that does not answer keeps its connection: longer than the plugin waits for one node."""

RUN: set[str] = set()
"""Commands that were run, as the page has them."""

LOOPING = {"waiting": {"reason": "CrashLoopBackOff"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff"}}


class Pages:
    """Pages of metrics of daemons of fakes."""

    def __init__(self, folder: Path, made: list[FakeNode]) -> None:
        self.folder, self.made = folder, made
        self.texts: dict[tuple[int, type[CloudError] | None], str] = {}

    def page(self, zone: str, *, pods: int = 5, error: type[CloudError] | None = None, version: str = EARLIER) -> str:
        """Return the page of a node.

        Args:
            pods: so many are added; a refused one ends that.
            error: EC2's answer to each call that would give an address, once the node is up. With one that says that the subnet is
                full EC2 shows no free address in it.
        """
        if (pods, error) not in self.texts:
            self.texts[pods, error] = self._text(pods, error)
        text = self.texts[pods, error].replace(ZONE, zone).replace("subnet-1", ZONES[zone])
        return text.replace(f'version="{EARLIER}"', f'version="{version}"')

    def _text(self, pods: int, error: type[CloudError] | None) -> str:
        folder = self.folder / f"node-{len(self.texts)}"
        folder.mkdir()
        node = start(self.made, folder)
        node.health.mark_ready()
        node.ec2.told_free_count = 0 if error is SubnetExhaustedError else 2000
        if error is not None:
            for method in ("assign_addresses", "create_eni"):
                node.ec2.fail[method] = [error("refused by the test")] * 50
        try:
            for number in range(pods):
                run_sandboxes(node, f"pod-{number}")
        except PoolEmptyError:
            node.pool.cycle()
        else:
            node.clock.advance(IDLE_S)
        return generate_latest(node.app.metrics.registry).decode()


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    """Pages in a folder of their own."""
    folder = tmp_path / "daemons"
    folder.mkdir()
    with closing_nodes() as made:
        yield Pages(folder, made)


def name_of(number: int) -> str:
    """A node's name as EKS makes it."""
    return f"ip-10-0-{100 + number // 250}-{number % 250}.us-west-2.compute.internal"


def zone_of(number: int) -> str:
    """Nodes are in the zones in turn."""
    return list(ZONES)[number % len(ZONES)]


def add(desk: Desk, number: int, metrics: str | None, **options: Any) -> str:
    """Add a node with a daemon, whose pod is named as Kubernetes does. Returns: the node's name."""
    name = name_of(number)
    desk.cluster.add(name, metrics, pod=f"vpc-ipamd-x{number:03}p", **{"zone": zone_of(number), **options})
    return name


def section(heading: str) -> Section:
    """A ticket's section."""
    assert heading in PAGE, f"the page has no section {heading}"
    return PAGE[heading]


def ask(desk: Desk, heading: str, *, number: int = 0) -> tuple[int, dict[str, Any]]:
    """Run a command of a ticket, and keep its screens. Returns: its exit status and answer."""
    command = section(heading).commands[number]
    words = shlex.split(command)
    assert words[:2] == ["kubectl", "ipamd"]
    RUN.add(command)
    argv = [sys.executable, "-m", "kubectl_ipamd", "--kubectl", str(desk.folder / "kubectl"), *words[2:]]

    def run(line: Sequence[str]) -> str:
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120).stdout

    write_screens(f"{heading} {words[2]}", command, argv, run=run, is_fixed=False)
    return desk.ask(*words[2:])


def attention(answer: dict[str, Any]) -> dict[str, str]:
    """Node -> state, for those that need attention."""
    return {row["node"]: row["state"] for row in answer["nodes"] if row["state"] not in ("ready", "full")}


def test_one_zone_has_no_addresses(desk: Desk, pages: Pages) -> None:
    """The full subnet and its zone are first; the nodes of the others are well; the page's second step names who keeps addresses."""
    full = "us-west-2b"
    for number in range(9):
        error = SubnetExhaustedError if zone_of(number) == full else None
        add(desk, number, pages.page(zone_of(number), pods=5 + number, error=error))
    status, answer = ask(desk, "One zone has no addresses")
    subnets, zones = answer["subnets"], answer["zones"]
    assert (status, subnets[0]["subnet"], zones[0]["zone"]) == (0, ZONES[full], full)
    assert [(row["free"] == 0, row["nodes"]) for row in subnets] == [(True, 3), (False, 3), (False, 3)]
    assert [(row["free"] == 0, row["nodes"]) for row in zones] == [(True, 3), (False, 3), (False, 3)]
    assert subnets[0]["answer_age_s"] < min(row["answer_age_s"] for row in subnets[1:])
    troubled = attention(desk.ask("status")[1])
    assert set(troubled) == {name_of(number) for number in range(9) if zone_of(number) == full}
    assert set(troubled.values()) == {"empty", "blocked"}


def test_one_zone_has_free_addresses_and_a_denied_call(desk: Desk, pages: Pages) -> None:
    """The page's row "FREE is enough": WHY has a word of the page."""
    add(desk, 0, pages.page(ZONE, pods=12, error=CloudDeniedError))
    (row,) = desk.ask("status")[1]["nodes"]
    assert (row["state"], row["blocked"]) == ("empty", "denied")
    assert row["blocked"] in row["reason"]
    assert row["blocked"] in section("One zone has no addresses").quoted


def test_nodes_are_not_ready_after_an_upgrade(desk: Desk, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state of the page's table, the worst first, on a tenth of the nodes: so many the roll changes at once."""
    heading = "Nodes are NotReady after an upgrade"
    monkeypatch.setattr(cluster, "SILENT_S", HANGS_S)
    for number in range(45):
        version = LATER if number < 12 else EARLIER
        add(desk, number, pages.page(zone_of(number), version=version), image=version)
    denied = cluster.page("denied-at-start").replace(f'version="{EARLIER}"', f'version="{LATER}"')
    broken: dict[str, Any] = {"image": LATER, "is_ready": False}
    names = {
        "crash-loop": add(desk, 45, None, state=LOOPING, restarts=4, exit_code=2, **broken),
        "down": add(desk, 46, None, state=NO_IMAGE, **broken),
        "no-answer": add(desk, 47, None, **broken),
        "not-ready": add(desk, 48, denied, **broken),
        "no-daemon": name_of(49),
    }
    desk.cluster.add_node(names["no-daemon"], zone=zone_of(49), is_ready=False)
    status, answer = ask(desk, heading)
    assert (status, attention(answer)) == (1, {name: state for state, name in names.items()})
    rows = {row["node"]: row for row in answer["nodes"]}
    assert list(rows)[: len(names)] == [names[state] for state in NodeState if state in names]
    assert "status 2" in rows[names["crash-loop"]]["reason"]
    assert rows[names["not-ready"]]["conditions"] == ["ec2"]
    assert {name for name, row in rows.items() if not row["node_ready"]} == set(names.values())
    assert set(names) <= section(heading).quoted


def test_which_of_300_nodes_are_short(desk: Desk, pages: Pages) -> None:
    """Only those that can give fewer than the number are named: nodes without any first, then the rest by what they have."""
    heading, empty = "Which of 300 nodes are short", "us-west-2b"
    packed = {7: 27, 40: 24, 170: 25, 201: 23}
    for number in range(300):
        if number in (88, 256):
            text = pages.page(empty, pods=12, error=SubnetExhaustedError)
        else:
            text = pages.page(zone_of(number), pods=packed.get(number, 3 + number % 7))
        add(desk, number, text)
    status, answer = ask(desk, heading)
    expected = {88: "empty", 256: "empty", **dict.fromkeys(packed, "short")}
    assert (status, attention(answer)) == (1, {name_of(number): state for number, state in expected.items()})
    assert answer["summary"]["by_state"] == {"empty": 2, "short": 4, "ready": 294}
    shown = [(row["state"], row["assignable"], row["blocked"]) for row in answer["nodes"][: len(expected)]]
    assert shown == [("empty", 0, "subnet-full")] * 2 + [("short", count, "node-full") for count in (0, 2, 3, 4)]
    assert all(row["blocked"] in row["reason"] for row in answer["nodes"][: len(expected)])
    assert {"empty", "subnet-full", "short", "node-full"} <= section(heading).quoted


def test_a_rollback_stopped_half_way(desk: Desk, pages: Pages) -> None:
    """The releases are counted; the node at which the roll waits has the earlier image, and its daemon ends with status 3."""
    heading = "A rollback stopped half-way"
    for number in range(9):
        version = EARLIER if number < 7 else LATER
        add(desk, number, pages.page(zone_of(number), version=version), image=version)
    waiting = add(desk, 9, None, state=LOOPING, restarts=5, exit_code=3, image=EARLIER, is_ready=False)
    status, answer = ask(desk, heading)
    counts = [(row["version"], row["image"].rpartition(":")[2], row["count"]) for row in answer["versions"]]
    assert (status, counts) == (1, [(EARLIER, EARLIER, 7), (LATER, LATER, 2), ("", EARLIER, 1)])
    assert answer["versions"][2]["nodes"] == [waiting]
    status, answer = ask(desk, heading, number=1)
    assert (status, attention(answer)) == (1, {waiting: "crash-loop"})
    assert "status 3" in answer["nodes"][0]["reason"]


def test_every_command_of_a_fleet_was_run() -> None:
    """No ticket without a test."""
    assert set(TICKETS) - RUN == set()
