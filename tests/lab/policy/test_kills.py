"""kill -9 of the daemon between any two effects that concern the policy agent: no name stays that only the agent remembers."""

from __future__ import annotations

import pytest

from tests.lab.policy.policed import Policed

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


@pytest.mark.parametrize(
    ("failpoint", "has_predecessor"),
    [
        pytest.param("policy.owed", False, marks=pytest.mark.heavy),
        ("policy.enforced", False),
        pytest.param("attach.wired", True, marks=pytest.mark.heavy),
        ("policy.forgotten-first", True),
    ],
)
def test_a_kill_in_an_add_leaves_no_name_behind(node: Policed, failpoint: str, *, has_predecessor: bool) -> None:
    """The agent may know a name of a sandbox that was never promised, or of a predecessor whose DEL did not come: the next sandbox of
    it is filtered all the same."""
    name = f"{failpoint.partition('.')[2]}-0"
    lost = node.run(name) if has_predecessor else ""
    if lost:
        node.lose(lost)
    node.rig.kill()
    node.rig.start(env={"VPC_IPAMD_FAILPOINT": failpoint})
    node.run_and_die(name)
    node.rig.start()
    if lost:
        node.delete(lost)
    pod = node.run(name)
    node.assert_policed(pod)
    node.remove(pod)


@pytest.mark.parametrize("failpoint", [pytest.param("policy.due", marks=pytest.mark.heavy), "policy.forgotten"])
def test_a_kill_while_a_debt_is_paid_pays_it_again(node: Policed, failpoint: str) -> None:
    """A name that the agent has forgotten already is forgotten once more, which harms nobody."""
    name = f"{failpoint.partition('.')[2]}-0"
    pod = node.run(name)
    node.agent.fall_silent()
    node.remove(pod)
    node.rig.kill()
    node.agent.speak()
    node.rig.start(env={"VPC_IPAMD_FAILPOINT": failpoint}, wait=False)
    assert node.rig.daemon is not None
    node.rig.daemon.wait(60)
    node.rig.start()
    node.await_forgotten(name)
