"""For each condition about legs, by its subject: the next step, and the page that explains it. See `ipamd/report/verdict.py`."""

from __future__ import annotations

from collections.abc import Mapping

LEG_ADVICE: Mapping[str, tuple[str, str]] = {
    "branch": ("find out who wrote the pod's annotation, and delete the pod", "docs/security-groups.md#what-happens"),
    "egress": ("follow the message, or turn the egress off", "docs/ipv6.md"),
}
