"""Lines and columns about legs in the answers of `ipamctl`."""

from __future__ import annotations

from ipamd.ipamctl.verb import Answer
from ipamd.model.words import counted

EXTRA_ADDRESS_COLUMN = ("EGRESS", "other_address")
"""Head and field of the column of `ipamctl attachments` with the address of an extra leg."""

UPLINK_PROBLEM_COLUMN = ("BRANCH ENI", "branch_problem")
"""Head and field of the column of `ipamctl attachments` that shows how EC2's answer contradicts the recorded branch ENI."""

OWN_ENI = "branch ENI"
"""What `ipamctl path` shows in place of the device index and the card of an ENI that one pod has for itself."""


def uplink_lines(answer: Answer) -> list[str]:
    """Write the line of `ipamctl status` about pods with branch ENIs; none where the node serves no such pods."""
    branches = answer["branches"]
    return [f"branches {_branches(branches)}"] if branches["mode"] else []


def trunk_capacity(answer: Answer) -> str:
    """Write how many branch ENIs the node's trunk ENI can carry, after a semicolon; "" if that is not known."""
    branch_count = answer["branch_limit"]
    if branch_count < 0:
        return ""
    if branch_count == 0:
        return "; no trunk ENI, so no branch ENIs"
    return f"; {counted(branch_count, 'branch ENI')}"


def _branches(branches: Answer) -> str:
    line = f"{branches['mode']}: {branches['count']}"
    if branches["branch_limit"] >= 0:
        line += f" of {branches['branch_limit']}"
    if branches["trunk"]:
        line += f", on trunk {branches['trunk']}"
    else:
        line += ", no trunk ENI is attached"
    if branches["waiting_count"]:
        line += f"; {counted(branches['waiting_count'], 'ADD')} waiting for the control plane"
    if branches["unconfirmed_count"]:
        line += f"; {branches['unconfirmed_count']} without network until EC2 confirms the ENI"
    if branches["mismatched_count"]:
        line += f"; EC2 contradicts {branches['mismatched_count']}"
    return line
