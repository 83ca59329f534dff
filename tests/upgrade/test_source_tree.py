"""A large node goes one step back, to a release that knows no buckets of rules, and comes forward again (docs/upgrade.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.node.kernel_view import read_kernel
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc
from tests.rig import Rig, wait_until
from tests.upgrade.release import Release, lacks_commit
from tests.upgrade.test_upgrade import assert_answer, attachments

COMMIT = "00634f5"
"""The last one whose rules of single addresses are all at 1536."""

PAGE = Path("docs/upgrade.md")

MANY = {"m5.large": InstanceLimits((40,), 4), "t3.nano": InstanceLimits((2,), 2)}
"""Few addresses on each of many ENIs, so that 117 may have a rule; and what a host is."""

MISSING = lacks_commit(COMMIT)
pytestmark = [pytest.mark.slow, pytest.mark.privileged, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture
def made() -> Iterator[Rig]:
    """A node of this type without a daemon, and a host that asks."""
    with Lab(nodes=["node-a"], hosts=["host-a"], containerd=False, vpc=Vpc(limits=MANY)) as lab:
        yield Rig(lab, lab.node("node-a"), env={"WARM_IP_TARGET": "2"})


def places(made: Rig) -> dict[str, set[int]]:
    """The priorities of the rules from each sandbox's address."""
    found: dict[str, set[int]] = {}
    for rule in read_kernel(made.node).rules:
        if rule.is_sandbox and rule.priority >= 1536:
            found.setdefault(rule.source, set()).add(rule.priority)
    return found


def command() -> str:
    """What the page tells to run."""
    (line,) = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if "seq 1537" in line]
    return line


def test_one_step_back_and_forward(made: Rig, tmp_path: Path) -> None:
    """Pods answer under each release. The earlier one adds its rules, the command removes ours, and ours come back."""
    before = replace(Release.at_commit(COMMIT, tmp_path), setting_names={})
    after = Release.of_checkout(tmp_path)
    daemon = after.start_daemon(made)
    for number in range(6):
        assert made.add(f"pod-{number}").ok
    wait_until(lambda: bool(places(made)) and all(min(each) > 1536 for each in places(made).values()), what="buckets")
    ruled = set(places(made))
    daemon.kill()

    daemon = before.start_daemon(made)
    wait_until(lambda: all(1536 in places(made).get(address, ()) for address in ruled), what="the former rules")
    assert_answer(made, attachments(made))
    made.node.run(["/bin/sh", "-c", command()])
    assert set(places(made)) == ruled
    assert all(each == {1536} for each in places(made).values())
    assert_answer(made, attachments(made))
    gone = next(f"pod-{number}" for number in range(6) if str(attachments(made)[f"pod-{number}"]["address"]) in ruled)
    ruled.remove(str(attachments(made)[gone]["address"]))
    assert made.delete(gone).ok
    assert set(places(made)) == ruled
    daemon.kill()

    daemon = after.start_daemon(made)
    wait_until(lambda: all(min(each) > 1536 for each in places(made).values()), what="buckets again", timeout_s=120)
    assert set(places(made)) == ruled
    assert_answer(made, attachments(made))
    daemon.kill()
