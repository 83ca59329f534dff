"""An operator finds the page of each task in the README, and each command on these pages is run by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipamd.model.capacity import MANY_VCPUS, MAX_PODS_FEW, MAX_PODS_MANY
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.node import FakeNode
from tests.lab.tickets.screens import WIDTHS, screen_slug
from tests.stories.stale_reads import run_sandboxes
from tests.task_pages import (
    CLUSTER_PROGRAMS,
    DOCS,
    ELSEWHERE,
    NODE_PROGRAMS,
    PAGES,
    ROOT,
    RUN_BY,
    TASKS,
    Runner,
    commands,
    filled,
    parse,
    runner,
    sections,
)

PROGRAMS = {*CLUSTER_PROGRAMS, *NODE_PROGRAMS, "make", "skopeo", "vpc-lab", "curl", "ssh", "grep", "openssl", "systemctl"}


def test_the_readme_names_every_task() -> None:
    """Eight rows, in this order, each with links to its pages."""
    table = (ROOT / "README.md").read_text().partition("| Task | Read |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z ]+) \| (.*) \|$", table, re.M)
    assert [task for task, _ in rows] == list(TASKS)
    for task, links in rows:
        assert [page for page in TASKS[task] if f"](docs/{page}" not in links] == [], task


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run(page: str) -> None:
    """By the tests of the pages, each in a file that is there and reads this page; or what stands in for it has a reason."""
    for where in Runner:
        if where == Runner.ELSEWHERE or not commands(page, where):
            continue
        file = ROOT / RUN_BY[page, where]
        assert file.exists(), file
        assert f'"{page}"' in file.read_text(), f"{file} does not read {page}"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides(page: str) -> None:
    """What looks like a command begins with `$ `, or no test would find it; and every page but the reference has some."""
    found = [command for section in sections(page).values() for command in section.commands]
    assert found
    known = "\n".join(found)
    for line in re.findall(r"^ {4,}(\S.*)$", (DOCS / page).read_text(), re.M):
        assert line.startswith("$ ") or line in known or line.split()[0] not in PROGRAMS, line


def test_each_ticket_has_its_screens() -> None:
    """`make screens` was run after a ticket was added: a reviewer finds it at both widths, and no ticket that went."""
    shown_commands = {command for where in (Runner.TROUBLED, Runner.FLEET) for command in commands("troubleshooting.md", where)}
    headings = [heading for heading, section in sections("troubleshooting.md").items() if set(section.commands) & shown_commands]
    for width in WIDTHS:
        shown = {path.name for path in (DOCS / "screens").glob(f"*.{width}.txt")}
        starts = [screen_slug(heading) for heading in headings]
        assert [start for start in starts if not any(name.startswith(start) for name in shown)] == []
        assert [name for name in sorted(shown) if not name.startswith(tuple(starts))] == []


def test_what_no_test_of_the_pages_runs_is_on_a_page() -> None:
    """The list of exceptions holds nothing that is gone, and each names a test that is there."""
    found = {command for page in PAGES for command in commands(page, Runner.ELSEWHERE)}
    assert found == set(ELSEWHERE)
    for reason in ELSEWHERE.values():
        assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/]+\.py", reason)), reason
        assert "tests/" in reason


@pytest.mark.parametrize(
    ("settings", "held"), [(PoolSettings(), 18), (PoolSettings(warm_ip_target=2), 3)], ids=["default", "two"]
)
def test_what_a_node_with_one_pod_holds(tmp_path: Path, settings: PoolSettings, held: int) -> None:
    """The figures of an m5.large on the page about capacity."""
    page = " ".join((DOCS / "capacity.md").read_text().split())
    assert f"holds {held} addresses" in page or f"With `WARM_IP_TARGET=2` it holds {held}" in page
    node = FakeNode(tmp_path, settings=settings)
    node.bring_up()
    run_sandboxes(node, "web")
    for _ in range(5):
        node.pool.cycle()
        node.clock.advance(settings.release_hold_s)
    assert node.datastore.counts().total == held
    node.datastore.close()


def test_what_says_no_is_what_the_status_says() -> None:
    """What the page on installing quotes of the status is in the troubleshooting, which is held to the code."""
    table = (DOCS / "install.md").read_text().partition("## What says no")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `ipamctl status` \| (.*?) \|", table, re.M)
    known = (DOCS / "troubleshooting.md").read_text() + (DOCS / "migration.md").read_text()
    assert len(rows) == 3
    for row in rows:
        assert [word for word in re.findall(r"`([^`]+)`", row) if word not in known] == []


def test_the_caps_of_the_page_are_those_of_the_code() -> None:
    """EKS's, as `ipamctl capacity` counts."""
    page = " ".join((DOCS / "capacity.md").read_text().split())
    assert f"at most {MAX_PODS_FEW} below {MANY_VCPUS} vCPUs and {MAX_PODS_MANY} above" in page


@pytest.mark.parametrize(("family", "setting"), [(IPV4, "ENABLE_V4_EGRESS"), (IPV6, "ENABLE_V6_EGRESS")], ids=["IPv4", "IPv6"])
def test_the_pages_have_the_size_of_the_range_for_egress(family: Family, setting: str) -> None:
    """It bounds the pods of a node, on the pages about capacity, IPv6 and troubles."""
    count = f"{len(family.local_range.addresses()):,}"
    capacity, ipv6, troubles = ((DOCS / page).read_text() for page in ("capacity.md", "ipv6.md", "troubleshooting.md"))
    assert re.search(rf"\b{count}\b[^,|]* with `{setting}`", capacity)
    assert re.search(rf"at most \|.* {count} \|", ipv6)
    assert count in troubles.partition("## Egress is used up")[2].partition("\n## ")[0]


def test_commands_are_found() -> None:
    """With what belongs to them in the next lines, without comments, and their words replaced."""
    page = parse(
        "# T\n\n    $ make image\n\n## H\n\nSee `ready`:\n\n    $ kubectl patch '[\n      1]' \\\n        -n x   # why\n    output\n\n"
        "       $ ipamctl history ADDRESS --at TIME\n\n    $ AWS=1 ipamd x\n"
    )
    assert page[""].commands == ("make image",)
    assert page["H"].commands == ("kubectl patch '[\n1]' \\\n-n x", "ipamctl history ADDRESS --at TIME", "AWS=1 ipamd x")
    assert page["H"].quoted == {"ready"}
    assert filled("ipamctl x ADDRESS --set MAX_ADDRESS=1 TIME=2", {"ADDRESS": "a", "TIME": "t"}) == (
        "ipamctl x a --set MAX_ADDRESS=1 TIME=2"
    )


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("make image", Runner.ELSEWHERE),
        ("kubectl -n kube-system exec POD -- ipamctl status", Runner.NODE),
        ("MAX_ENI=2 ipamctl capacity", Runner.NODE),
        ("kubectl get nodes", Runner.CLUSTER),
        ("X=manifests/x ipamctl config", Runner.CLUSTER),
    ],
)
def test_where_a_command_is_run(command: str, where: Runner) -> None:
    """By its program, or by what it reads."""
    assert runner(command) == where


def test_a_command_that_nobody_would_run_is_an_error() -> None:
    """A new program on a page needs somebody who runs it."""
    with pytest.raises(ValueError, match="no test runs 'rm -rf /'"):
        runner("rm -rf /")
