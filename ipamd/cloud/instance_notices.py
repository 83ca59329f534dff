"""Read EC2's notices about the end of an instance from its metadata. Only spot instances get notices, so they are read only there.

A missing path (404) means that there is no notice. Anything else that cannot be read is an error, so that the caller keeps the notices
that it had (I11). Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
(instance-life-cycle), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (action, time;
two minutes before), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html (noticeTime; earlier, at
best effort).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ipamd.cloud.metadata_answers import _malformed, is_word
from ipamd.model.freeze import FreezeCause

LIFE_CYCLE = "meta-data/instance-life-cycle"

SPOT = "spot"

INTERRUPTION = "meta-data/spot/instance-action"

REBALANCE = "meta-data/events/recommendations/rebalance"

NOTICES = (
    (FreezeCause.SPOT_INTERRUPTION, INTERRUPTION, ("action", "time"), "EC2 will {} the instance at {}"),
    (
        FreezeCause.REBALANCE,
        REBALANCE,
        ("noticeTime",),
        "EC2 has reported since {} that the instance is likely to be interrupted",
    ),
)
"""Cause, path, the keys that its JSON object must have, and the sentence that their values fill."""


def read_notices(read: Callable[[str], str | None]) -> Mapping[FreezeCause, str]:
    """Read the notices of a spot instance: that it will be interrupted, and that EC2 recommends to rebalance it.

    Args:
        read: returns the text at a path, None for a 404; raises CloudError.
    Returns: cause -> sentence with the time that EC2 names; empty if there is no notice. Raises: CloudError naming a path whose text
    is malformed.
    """
    sentences = {}
    for cause, path, names, words in NOTICES:
        text = read(path)
        if text is None:
            continue
        try:
            document = json.loads(text)
            values = [document[name] for name in names]
            if not all(isinstance(value, str) and is_word(value) for value in values):
                raise ValueError(f"{values!r:.200}")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise _malformed(path, repr(exc)) from exc
        sentences[cause] = words.format(*values)
    return sentences
