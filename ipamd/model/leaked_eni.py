"""Decide which detached ENIs are leaked: created for a node, attached to nothing, and too old to be still in creation. Pure.

The daemon applies the rule to the ENIs of its node, and `vpc-ipamd-sweeper` to the ENIs of a cluster (`ipamd/sweeper/sweep.py`).
`why_kept` returns why an ENI is kept; callers delete an ENI for which it returns "". The rule is that of amazon-vpc-cni-k8s
(pkg/awsutils/awsutils.go, getLeakedENIs), with one difference: an ENI without a readable creation time is always kept.
amazon-vpc-cni-k8s adds a missing time as a tag, which costs a call and a permission, and deletes an ENI with an unreadable time at
once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import operator_exclusion
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, DESCRIPTION_PREFIX, INSTANCE_TAG, NO_MANAGE_TAG

AVAILABLE = "available"


def why_kept(eni: DescribedEni, *, now: datetime, min_age: timedelta, cluster_name: str = "") -> str:
    """Return why an ENI is not leaked; "" if it is.

    Args:
        now: the present time (aware UTC).
        min_age: the least age of a leaked ENI, from the creation time in its tag; it must exceed the longest time from creation to
            attachment.
        cluster_name: the cluster that a leaked ENI's tag must name; "": the tag may name any cluster, or be missing.
    """
    if eni.problem:
        return f"EC2's answer about it cannot be read: {eni.problem}"
    if eni.operator:
        return operator_exclusion(eni)
    if eni.status != AVAILABLE or eni.attachment_id or eni.instance_id:
        return f"it is {eni.status}, attached to {eni.instance_id or 'something'}"
    return _why_not_ours(eni, cluster_name) or _why_too_young(eni, now=now, min_age=min_age)


def _why_not_ours(eni: DescribedEni, cluster_name: str) -> str:
    """Return which mark of ours an ENI lacks, or that somebody tagged it with NO_MANAGE_TAG; "" if neither is so."""
    if cluster_name and eni.tags.get(CLUSTER_TAG) != cluster_name:
        return f"its tag {CLUSTER_TAG} is {eni.tags.get(CLUSTER_TAG, 'missing')!r}"
    if not eni.tags.get(INSTANCE_TAG):
        return f"it has no tag {INSTANCE_TAG}"
    if not eni.description.startswith(DESCRIPTION_PREFIX):
        return f"its description does not begin with {DESCRIPTION_PREFIX}"
    if NO_MANAGE_TAG in eni.tags:
        return f"somebody tagged it {NO_MANAGE_TAG}"
    return ""


def _why_too_young(eni: DescribedEni, *, now: datetime, min_age: timedelta) -> str:
    """Return why an ENI does not count as old enough: it is too young, or its age is not known; "" if it is old enough."""
    text = eni.tags.get(CREATED_AT_TAG, "")
    if not text:
        return f"it has no tag {CREATED_AT_TAG}: its age is not known"
    try:
        created_at = datetime.fromisoformat(text)
        if created_at.tzinfo is None:
            raise ValueError("no time zone")
        age = now - created_at.astimezone(UTC)
    except (ValueError, OverflowError):
        return f"its tag {CREATED_AT_TAG} is no time ({text[:40]!r}): its age is not known"
    if age < min_age:
        return f"it is {age.total_seconds():.0f} s old, less than {min_age.total_seconds():.0f} s"
    return ""
