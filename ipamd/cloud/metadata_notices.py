"""What EC2 announces about the end of an instance, in its metadata: only to spot instances, so only these are asked.

A path that is not there (404) is no notice. Anything else that cannot be read is an error, not "none" (I11): the caller keeps what it
knew. Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html (instance-life-cycle),
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (action, time; two minutes before),
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html (noticeTime; earlier, at best effort).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ipamd.cloud import metadata_enis
from ipamd.model.errors import CloudError
from ipamd.model.freeze import FreezeCause

LIFE_CYCLE = "meta-data/instance-life-cycle"
SPOT = "spot"
INTERRUPTION = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"


def read_notices(read: Callable[[str], str | None]) -> Mapping[FreezeCause, str]:
    """Read both notices of a spot instance.

    Args:
        read: gives the text at a path, None for a 404; raises CloudError.
    Returns: cause -> words with the time that EC2 names. Raises: CloudError naming a path whose text is malformed.
    """
    found = {}
    if action := _words(INTERRUPTION, read(INTERRUPTION), ("action", "time")):
        found[FreezeCause.SPOT_INTERRUPTION] = "EC2 will {} it at {}".format(*action)
    if noticed := _words(REBALANCE, read(REBALANCE), ("noticeTime",)):
        found[FreezeCause.REBALANCE] = "EC2 says since {} that it is likely to be interrupted".format(*noticed)
    return found


def _words(path: str, text: str | None, names: tuple[str, ...]) -> list[str]:
    """The values of a small JSON object, each one word; empty without a text."""
    if text is None:
        return []
    try:
        document = json.loads(text)
        values = [document[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise _malformed(path, repr(exc)[:200]) from exc
    if not all(isinstance(value, str) and metadata_enis.is_word(value) for value in values):
        raise _malformed(path, f"{values!r:.200}")
    return values


def _malformed(path: str, what: str) -> CloudError:
    details = f"the value is malformed ({what}); check what AWS_EC2_METADATA_SERVICE_ENDPOINT points to"
    return CloudError(f"instance metadata /latest/{path} could not be read", details=details)
