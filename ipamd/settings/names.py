"""Names that look like a setting and are none: refused, with the nearest that is one (I15).

The environment of a pod holds far more than settings, so what does not look like ours or amazon-vpc-cni-k8s's is left alone: the
variables of the AWS SDK, those that Kubernetes makes for each Service, those of images and webhooks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from ipamd.model.words import counted, printable
from ipamd.settings.fields import Settings
from ipamd.settings.upstream import UPSTREAM, Fate

Parser = Callable[[str], Any]

FAMILIES = ("VPC_IPAMD_", "AWS_VPC_K8S_", "AWS_VPC_CNI_", "AWS_VPC_ENI_", "WARM_")
"""Beginnings of names that nobody else uses: every other name that begins so is refused."""

OTHERS_OF_OURS = ("VPC_IPAMD_FAILPOINT",)
"""Read elsewhere: `ipamd/failpoints.py`."""

OF_A_SERVICE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""How the variables end that kubelet makes for each Service of the namespace.
Source: https://kubernetes.io/docs/concepts/services-networking/service/, environment variables."""

LENGTH_MAX = 128
"""Longer names are no misspelt settings: the longest that there is has 40. Ours."""

UNKNOWN_MAX = 20
"""Unknown names of a file that are told one by one: to find the nearest to one costs milliseconds, and a file of 1 MB may hold
100,000. Ours."""

SHORT, SHORT_DISTANCE, LONG_DISTANCE = 12, 1, 2
"""A misspelt name differs in one character, or in two where it has more than 12. Ours: no name of the SDK is that near."""


@cache
def ours() -> frozenset[str]:
    """The variable of every field of `Settings`."""
    topics = [getattr(Settings(), topic.name) for topic in dataclasses.fields(Settings)]
    return frozenset(item.metadata["env"] for topic in topics for item in dataclasses.fields(topic))


@cache
def _meant() -> tuple[str, ...]:
    """Every name that a misspelt one may have been meant for: those that change something."""
    return tuple(sorted(ours() | {row.name for row in UPSTREAM if row.fate is not Fate.WITHOUT_MEANING}))


def unknown(given: Mapping[str, str], *, is_ours: bool) -> list[str]:
    """Name each set variable that is no setting. Returns: one sentence for each, sorted by name.

    Args:
        is_ours: there is nothing but settings in it, so that a name need not look like one: the settings file.
    """
    known = ours() | {row.name for row in UPSTREAM} | set(OTHERS_OF_OURS)
    found = []
    names = sorted(name for name in given if name not in known and (given[name] or is_ours))
    more = max(len(names) - UNKNOWN_MAX, 0) if is_ours else 0
    for name in names[: len(names) - more]:
        if len(name) > LENGTH_MAX or (_is_of_a_service(name) and not is_ours):
            continue
        near = nearest(name, _meant())
        family = next((one for one in FAMILIES if name.upper().startswith(one)), "")
        if near or is_ours or family:
            best = near or _closest(name, [one for one in _meant() if one.startswith(family)])
            found.append(f"{printable(name)}: there is no such setting; did you mean {best}?")
    return found + ([f"{counted(more, 'more name')} in the file: there are no such settings"] if more else [])


def nearest(name: str, known: Iterable[str], *, most: int | None = None) -> str:
    """The known name that differs least, "" if all differ in more than `most` characters; without it, by the name's length."""
    allowed = most if most is not None else (SHORT_DISTANCE if len(name) <= SHORT else LONG_DISTANCE)
    spelt = name.upper().replace("-", "_")
    letters = set(spelt)
    # One mistake brings in a character and takes one away at most: told in a microsecond, and true of nearly every pair.
    near = [one for one in known if abs(len(one) - len(spelt)) <= allowed and len(letters ^ _letters(one)) <= 2 * allowed]
    distances = ((_distance(spelt, one.upper(), allowed), one) for one in near)
    distance, best = min(distances, default=(allowed + 1, ""))
    return best if distance <= allowed else ""


@cache
def _letters(name: str) -> frozenset[str]:
    return frozenset(name.upper())


def _closest(name: str, known: list[str]) -> str:
    """The known name that a far one may have been meant for: one that begins with it, or else the nearest."""
    return next((one for one in known if one.startswith(name.upper())), "") or nearest(name, known, most=LENGTH_MAX)


def _is_of_a_service(name: str) -> bool:
    """Whether kubelet makes such a name; a Service may be called like a setting, and `vpc-ipamd` is likely."""
    return OF_A_SERVICE.fullmatch(name) is not None


def _distance(one: str, other: str, most: int) -> int:
    """Count the insertions, deletions, changes and swaps of neighbours between two names; beyond `most` it is not counted out."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, right in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > most and min(before) > most:  # a swap reaches back two rows
            return most + 1
    return row[-1]
