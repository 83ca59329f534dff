"""Declare the fields of settings.

A change of a field declared with `setting` takes effect at the next start. A change of a field declared with `live` takes effect while
the daemon runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ipamd.model.record import field

PODS_KEEP = "Pods that run keep what they have: delete them so that a change applies to them."
"""The sentence for users about a setting that acts on a pod only at its ADD."""


def setting(
    env: str, parse: Callable[[str], Any], default: Any, text: str, *, is_live: bool = False, is_kept_by_pods: bool = False
) -> Any:
    """Declare a field of settings.

    Args:
        env: the environment variable of the setting.
        parse: converts the text of the variable to the value. It raises ValueError for a wrong text.
        default: the value if the variable is not set.
        text: a sentence about the setting, for users.
        is_live: whether a change takes effect while the daemon runs.
        is_kept_by_pods: whether the setting acts on a pod only at its ADD, so that a change does not reach pods that run. Then
            PODS_KEEP is appended to the text.
    """
    if is_kept_by_pods:
        text = f"{text} {PODS_KEEP}"
    metadata = {"env": env, "parse": parse, "text": text, "is_live": is_live, "is_kept_by_pods": is_kept_by_pods}
    return field(default=default, metadata=metadata)


live = partial(setting, is_live=True)
"""Declare a field that `ipamd/process/reload.py` changes while the daemon runs."""
