"""Refuse misspelt names of settings, and suggest the nearest setting (I15).

The environment of a pod has many other variables, from the AWS SDK, from images and webhooks, and from Kubernetes for each Service. So
names that do not resemble a setting of this program or of amazon-vpc-cni-k8s are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from ipamd.model.words import counted, printable
from ipamd.settings.fields import Settings
from ipamd.settings.former_names import FORMER_NAMES
from ipamd.settings.upstream import UPSTREAM, Fate

FAMILIES = ("VPC_IPAMD_", "AWS_VPC_K8S_", "AWS_VPC_CNI_", "AWS_VPC_ENI_", "WARM_")
"""Prefixes that only this program and amazon-vpc-cni-k8s use. A name with such a prefix that is not a known setting is refused."""

OURS_BESIDE_FIELDS = ("VPC_IPAMD_FAILPOINT",)
"""Variables of this program that are not fields of `Settings`. `ipamd/failpoints.py` reads VPC_IPAMD_FAILPOINT."""

OF_A_SERVICE = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Matches the variables that kubelet makes for each Service of the namespace.
Source: https://kubernetes.io/docs/concepts/services-networking/service/, environment variables."""

LENGTH_MAX = 128
"""The largest number of characters of a name that counts as a misspelt setting. Ours: the longest name of a setting has 40."""

UNKNOWN_MAX = 20
"""The largest number of unknown names of a file that are listed one by one. Ours: finding the nearest setting costs milliseconds for
each name, and a file of 1 MB may have 100,000 names."""

SHORT, SHORT_DISTANCE, LONG_DISTANCE = 12, 1, 2
"""A name counts as misspelt if it differs from a setting in one character, or in two if it has more than 12 characters. Ours: no
variable of the AWS SDK differs so little."""


@cache
def ours() -> frozenset[str]:
    """Return the variables of all fields of `Settings`."""
    return frozenset(field.metadata["env"] for _, field, _ in Settings().declared())


def unknown(given: Mapping[str, str], *, is_settings_file: bool) -> list[str]:
    """Find variables that are not settings. Returns: one sentence for each, sorted by name.

    Args:
        is_settings_file: whether `given` comes from the settings file. In the file every unknown name is wrong. In the environment
            only a name that resembles a setting is wrong.
    """
    names = _unknown_names(given, is_settings_file=is_settings_file)
    more_count = 0
    if is_settings_file:
        more_count = max(len(names) - UNKNOWN_MAX, 0)
    sentences = []
    for name in names[: len(names) - more_count]:
        if _may_be_misspelt(name, is_settings_file=is_settings_file):
            sentences += _sentences_about(name, is_settings_file=is_settings_file)
    if more_count:
        sentences.append(f"{counted(more_count, 'more name')} in the file: there are no such settings")
    return sentences


def _sentences_about(name: str, *, is_settings_file: bool) -> list[str]:
    """Return a list with the sentence about an unknown name; [] if it comes from the environment and resembles no setting."""
    suggestion = FORMER_NAMES.get(name, "") or _spelt_otherwise(name) or nearest(name, _meant())
    family = _family_of(name)
    if not (suggestion or family or is_settings_file):
        return []
    return [_advise(name, suggestion or _nearest_in_family(name, family))]


def nearest(name: str, candidates: Iterable[str], *, most: int | None = None) -> str:
    """Find the candidate that differs least from `name`.

    Args:
        most: the number of characters that may differ. If it is None, the number follows from the length of the name.
    Returns: "" if every candidate differs in more characters.
    """
    allowed = LONG_DISTANCE
    if most is not None:
        allowed = most
    elif len(name) <= SHORT:
        allowed = SHORT_DISTANCE
    spelt = name.upper().replace("-", "_")
    letters = set(spelt)
    best, best_distance = "", allowed + 1
    for candidate in candidates:
        # One mistake adds at most one character to the set of letters, and removes at most one. Comparing lengths and letters takes a
        # microsecond and excludes nearly every candidate.
        is_far = abs(len(candidate) - len(spelt)) > allowed
        if is_far or len(letters.symmetric_difference(candidate.upper())) > 2 * allowed:
            continue
        distance = _distance(spelt, candidate.upper())
        if (distance, candidate) < (best_distance, best):
            best, best_distance = candidate, distance
    return best


def _unknown_names(given: Mapping[str, str], *, is_settings_file: bool) -> list[str]:
    """Return, sorted, the names in `given` that are not names of settings. An empty environment variable counts as not set."""
    names = ours() | {setting.name for setting in UPSTREAM} | set(OURS_BESIDE_FIELDS)
    return sorted(name for name in given if name not in names and (given[name] or is_settings_file))


def _may_be_misspelt(name: str, *, is_settings_file: bool) -> bool:
    """Whether a name may be a misspelt setting: it is not too long, and in the environment it is not a variable of a Service.

    A Service may be named `vpc-ipamd`, and then its variables begin with VPC_IPAMD_.
    """
    if len(name) > LENGTH_MAX:
        return False
    return is_settings_file or not OF_A_SERVICE.fullmatch(name)


@cache
def _meant() -> tuple[str, ...]:
    """Return the names that a misspelt name may stand for: the names of all settings that have a meaning in this program."""
    return tuple(sorted(ours() | {setting.name for setting in UPSTREAM if setting.fate is not Fate.WITHOUT_MEANING}))


@cache
def _known_names() -> tuple[str, ...]:
    """Return the names to suggest: first those in `_meant`, then all names of amazon-vpc-cni-k8s, even those without meaning here."""
    return (*_meant(), *(setting.name for setting in UPSTREAM))


def _family_of(name: str) -> str:
    """Return the prefix in FAMILIES with which a name begins; "" if it begins with none of them."""
    for family in FAMILIES:
        if name.upper().startswith(family):
            return family
    return ""


def _nearest_in_family(name: str, family: str) -> str:
    """Return a known name that begins with `name`; if there is none, the known name that is most like `name`.

    Only known names with the first 8 characters of `family` are considered. The result may be very unlike `name`.
    """
    relatives = [candidate for candidate in _known_names() if candidate.startswith(family[:8])]
    for relative in relatives:
        if relative.startswith(name.upper()):
            return relative
    return nearest(name, relatives, most=LENGTH_MAX)


def _advise(name: str, best: str) -> str:
    """Return one sentence about an unknown name. If the best suggestion has no meaning here, the sentence says why."""
    if FORMER_NAMES.get(name) == best:
        return f"{name}: this setting has another name now: set {best} instead"
    advice = f"did you mean {best}?"
    for setting in UPSTREAM:
        if setting.name == best and setting.fate is Fate.WITHOUT_MEANING:
            advice = f"{best} means nothing here: {setting.text}"
            break
    return f"{printable(name)}: there is no such setting; {advice}"


def _spelt_otherwise(name: str) -> str:
    """Return the known name that differs from `name` only in underscores, hyphens and case; "" if there is none."""
    letters = re.sub("[-_]", "", name).upper()
    for candidate in _known_names():
        if candidate.replace("_", "").upper() == letters:
            return candidate
    return ""


def _distance(first: str, second: str) -> int:
    """Return how many changes turn one name into the other, at least. A change inserts, deletes or replaces a character, or swaps two
    neighbours.
    """
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, first_letter in enumerate(first, start=1):
        two_before, before, row = before, row, [i]
        for j, second_letter in enumerate(second, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (first_letter != second_letter))
            if i > 1 and j > 1 and first_letter == second[j - 2] and first[i - 2] == second_letter:
                cost = min(cost, two_before[j - 2] + 1)
            row.append(cost)
    return row[-1]
