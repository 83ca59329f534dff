"""Which detached ENIs are leaked: made for a node, attached to nothing, and old enough that nobody is still making them. Pure.

One rule for a node's own, at its start, and for a cluster's (`ipamd/sweeper/`). It says why an ENI is kept, because everything that
it lets through is deleted. As in amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, getLeakedENIs) but for this: an ENI without a readable
creation time is kept for ever; there an absent time is written now, which costs a call and a permission, and an unreadable one
deletes at once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, DESCRIPTION_PREFIX, INSTANCE_TAG, NO_MANAGE_TAG

AVAILABLE = "available"


def why_kept(eni: DescribedEni, *, now: datetime, min_age: timedelta, cluster_name: str = "") -> str:
    """Say why an ENI is no leaked one; "" if it is.

    Args:
        now: aware UTC.
        min_age: since the creation time in its tag; must exceed the longest time from creation to attachment.
        cluster_name: whose tag it must carry, exactly; "" for none.
    """
    if eni.problem:
        return f"EC2's answer about it cannot be read: {eni.problem}"
    if eni.status != AVAILABLE or eni.attachment_id or eni.instance_id:
        return f"it is {eni.status}, attached to {eni.instance_id or 'something'}"
    if cluster_name and eni.tags.get(CLUSTER_TAG) != cluster_name:
        return f"its tag {CLUSTER_TAG} is {eni.tags.get(CLUSTER_TAG, 'missing')!r}"
    if not eni.tags.get(INSTANCE_TAG):
        return f"it has no tag {INSTANCE_TAG}"
    if not eni.description.startswith(DESCRIPTION_PREFIX):
        return f"its description does not begin with {DESCRIPTION_PREFIX}"
    if NO_MANAGE_TAG in eni.tags:
        return f"somebody tagged it {NO_MANAGE_TAG}"
    return _why_too_young(eni.tags.get(CREATED_AT_TAG, ""), now, min_age)


def _why_too_young(text: str, now: datetime, min_age: timedelta) -> str:
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
