"""The daemon confines sandboxes before it serves ADD, from nothing but its settings, and says how much was dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.vpc.family import IPV6
from tests.families import in_both_of_lab, lab_family_for
from tests.rig import Rig, rig

pytestmark = [pytest.mark.privileged, in_both_of_lab("made")]

TABLES = ("ip", "ip6")
UNREACHABLE = {"AWS_EC2_ENDPOINT": "http://127.0.0.1:1", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A node with a sandbox."""
    with rig(family=lab_family_for(request)) as one:
        assert one.add("a").ok
        yield one


def has_tables(made: Rig) -> bool:
    """Whether both tables are there, with the rule that sends packets of host veths through them."""
    listed = [made.node.run(["nft", "list", "table", family, "vpc-ipamd-confine"], check=False).stdout for family in TABLES]
    return all('iifname "eni*" meta iifkind "veth" goto from_sandbox' in text for text in listed)


def test_spoofed_packets_are_counted_in_the_status(made: Rig) -> None:
    """The line *source* and the reply say that the check is in place; the audit has nothing to say."""
    assert has_tables(made)
    status = made.status()
    assert status is not None
    assert status["confinement"]["source_check_enforced"]
    assert {each["reason"] for each in status["confinement"]["dropped"]} == {
        "source",
        "redirect",
        "loopback",
        "returned",
        "arp",
        "foreign",
        *(("listening", "discovery") if made.family is IPV6 else ("ipv6",)),
    }
    made.assert_sound(expected=1)


def test_a_restart_confines_before_anything_answers(made: Rig) -> None:
    """Tables are gone, EC2 and metadata do not answer: ADD is served from known addresses, and sandboxes are confined."""
    made.kill()
    for family in TABLES:
        made.node.run(["nft", "delete", "table", family, "vpc-ipamd-confine"])
    made.start(env=UNREACHABLE)
    assert has_tables(made)
    assert made.add("b").ok
    made.restart()
    made.assert_sound(expected=2)
