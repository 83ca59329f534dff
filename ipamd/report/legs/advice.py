"""The next step for each condition about legs, by the condition's subject, and the page about it. See `ipamd/report/verdict.py`."""

from __future__ import annotations

from collections.abc import Mapping

LEG_ADVICE: Mapping[str, tuple[str, str]] = {
    "branch": ("find out who wrote the pod's annotation, and delete the pod", "docs/security-groups.md#what-happens"),
    "egress": ("follow the message, or turn the egress off", "docs/ipv6.md"),
}
