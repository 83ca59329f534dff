"""Read every setting from environment and file, and name all that is wrong at once, of whatever kind.

amazon-vpc-cni-k8s logs an invalid value and uses the default. Here the daemon does not start (exit 2), and a running one keeps the
settings that it has: what is silently ignored is discovered in production.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from ipamd.model.branch import STRICT_MARK, EnforcingMode
from ipamd.model.errors import SettingsError
from ipamd.model.family import IPV6
from ipamd.model.record import dataclass
from ipamd.model.redaction import without_secrets
from ipamd.model.words import counted, printable
from ipamd.settings import settings_file, upstream
from ipamd.settings.fields import FROM_ANNOTATIONS, REFUSE, Settings
from ipamd.settings.parsers import choice, parse_region, parse_url, parsed
from ipamd.settings.upstream import FORMER, UPSTREAM, Fate

FILE = "VPC_IPAMD_SETTINGS_FILE"

SHOWN_MAX = 200
"""Characters of a wrong value that are quoted. Ours."""

POLICY_VETH_PREFIX = "eni"
"""Source: aws-network-policy-agent pkg/ebpf/bpf_client.go, POD_VETH_PREFIX."""

EVERY_HOST = {"", "0.0.0.0"}  # noqa: S104  # compared, not listened on

IPV6_MTU_LEAST = 1280
"""Source: RFC 8200, 5; amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, validateMTU."""

OF_THE_SDK = {
    "AWS_REGION": parse_region,
    "AWS_DEFAULT_REGION": parse_region,
    "AWS_ENDPOINT_URL": parse_url,
    "AWS_ENDPOINT_URL_EC2": parse_url,
    "AWS_ENDPOINT_URL_STS": parse_url,
    "AWS_STS_REGIONAL_ENDPOINTS": choice("legacy", "regional"),
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": choice("ipv4", "ipv6"),
    "AWS_DEFAULTS_MODE": choice("legacy", "auto", "standard", "in-region", "cross-region", "mobile"),
}
"""Variables that botocore reads by itself, at the first call. Source: botocore/configprovider.py."""


@dataclass(frozen=True)
class ConfigLine:
    """One setting as shown to people; `is_live`: it needs no restart.

    `origin`: "environment", "file", "default"; "earlier file" if environment and file say something else now, which is wrong, waits
    for its delay, or for a restart.
    """

    env: str
    value: str
    default: str
    origin: str
    text: str
    is_live: bool


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read every setting from the environment and from the file that it names; the file's lines win. Empty counts as not set.

    Raises: SettingsError whose details name every problem at once.
    """
    problems: list[str] = []
    in_file = _from_file(environ, problems)
    given = {**environ, **in_file}
    problems += [*unknown(environ, is_ours=False), *unknown(in_file, is_ours=True)]
    problems += upstream.refused(given)
    for name, parse in OF_THE_SDK.items():
        _value(name, parse, environ, problems)
    settings = _parsed(given, problems)
    problems += contradictions(settings)
    if problems:
        raise SettingsError(f"{len(problems)} setting(s) are wrong", details="; ".join(problems))
    return settings


def load_what_is_right(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read what can be read; what is wrong keeps its default. For `ipamctl`, which must help while settings are wrong."""
    return _parsed({**environ, **_from_file(environ, [])}, [])


def contradictions(settings: Settings) -> list[str]:
    """Name settings that are right each by itself and wrong together."""
    problems = []
    if settings.pool.warm_target == "auto" and settings.pool.warm_ip_target:
        problems.append(
            f"WARM_TARGET=auto: must not be set with WARM_IP_TARGET ({settings.pool.warm_ip_target}), which it computes"
        )
    listeners = settings.daemon.metrics_address, settings.daemon.health_address
    if "off" not in listeners:
        (one, port), (other, other_port) = map(_host_and_port, listeners)
        if port == other_port and (one == other or EVERY_HOST & {one, other}):
            problems.append(f"VPC_IPAMD_HEALTH_ADDRESS={listeners[1]!r}: VPC_IPAMD_METRICS_ADDRESS has that port already")
    chained = {plugin["type"] for plugin in json.loads(settings.daemon.chained_plugins or "[]")}
    for name, is_on in (("portmap", settings.daemon.portmap), ("bandwidth", settings.daemon.bandwidth)):
        if is_on and name in chained:
            problems.append(
                f"ENABLE_{name.upper()}_PLUGIN=true: VPC_IPAMD_CHAINED_PLUGINS chains {name} too; it must not run twice"
            )
    problems += _without_policy(settings, is_bandwidth_chained="bandwidth" in chained or settings.daemon.bandwidth)
    problems += _without_branches(settings)
    ours = settings.daemon.conflist_path
    if os.path.normpath(ours) == os.path.normpath(settings.takeover.conflist_beside(ours)):
        problems.append(
            f"VPC_IPAMD_CONFLIST={str(ours)!r}: that is the conflist of amazon-vpc-cni-k8s, which is renamed: choose another"
        )
    if settings.network.ipv4 == settings.network.ipv6:
        problems.append(
            f"ENABLE_IPv4 and ENABLE_IPv6 are both {str(settings.network.ipv6).lower()}: pods have one family, set one"
        )
    if settings.network.ipv6 and settings.subnets.custom_networking:
        problems.append("AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG=true: pods of IPv6 have the primary ENI's subnet, remove it")
    if settings.network.sandbox_mtu < IPV6_MTU_LEAST and IPV6 in (settings.network.family, settings.network.egress):
        problems.append(f"POD_MTU or AWS_VPC_ENI_MTU={settings.network.sandbox_mtu}: IPv6 needs {IPV6_MTU_LEAST} bytes at least")
    if settings.network.sandbox_mtu > settings.network.eni_mtu:
        problems.append(f"POD_MTU={settings.network.pod_mtu}: must not exceed AWS_VPC_ENI_MTU ({settings.network.eni_mtu})")
    return problems


def _without_policy(settings: Settings, *, is_bandwidth_chained: bool) -> list[str]:
    """Why the policy agent could filter no pod of this node, or not each; one sentence for each cause."""
    if not settings.policy.is_on:
        return []
    problems, asked = [], f"NETWORK_POLICY_ENFORCING_MODE={settings.policy.mode}"
    if not settings.network.pod_veth_names:
        step = "set VPC_IPAMD_POD_VETH_NAMES=true, or remove it"
        problems.append(f"{asked}: the policy agent knows a pod's link by the name that amazon-vpc-cni-k8s gives: {step}")
    if settings.network.veth_prefix != POLICY_VETH_PREFIX:
        step = f"AWS_VPC_K8S_CNI_VETHPREFIX must be {POLICY_VETH_PREFIX}"
        problems.append(f"{asked}: the policy agent knows links by names that begin with {POLICY_VETH_PREFIX}: {step}")
    if is_bandwidth_chained:
        step = "remove ENABLE_BANDWIDTH_PLUGIN, or the plugin from VPC_IPAMD_CHAINED_PLUGINS"
        problems.append(
            f"{asked}: of a link's qdiscs the policy agent's (clsact) and the bandwidth plugin's exclude each other: {step}"
        )
    return problems


def _without_branches(settings: Settings) -> list[str]:
    """Why pods with security groups of their own could not be served as asked; one sentence for each cause."""
    facts, problems, asked = settings.pod_facts, [], "ENABLE_POD_ENI=true"
    if settings.network.branch_mode is None:
        return []
    if settings.takeover.cni_backend_socket:
        step = "remove VPC_IPAMD_CNI_BACKEND_SOCKET once the node's runtime calls vpc-cni, or this"
        problems.append(f"{asked}: the plugin of amazon-vpc-cni-k8s hands over nothing that tells which pods want them: {step}")
    if facts.unmarked_pods == REFUSE and facts.source != FROM_ANNOTATIONS:
        step = f"remove it, or set VPC_IPAMD_POD_FACTS={FROM_ANNOTATIONS}"
        problems.append(f"VPC_IPAMD_UNMARKED_PODS={REFUSE}: with VPC_IPAMD_POD_FACTS={facts.source} no mark is read: {step}")
    if settings.network.branch_mode is EnforcingMode.STRICT and settings.network.connmark & STRICT_MARK:
        step = "choose from 0xff, as 0x80"
        problems.append(
            f"AWS_VPC_K8S_CNI_CONNMARK has bit {STRICT_MARK:#x}, which {asked} in strict mode needs for itself: {step}"
        )
    return problems


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.replace("localhost", "127.0.0.1").rpartition(":")
    return host, int(port)


def without_meaning(environ: Mapping[str, str] = os.environ) -> str:
    """Name in one line the settings that are made and mean nothing here; "" if none is. Call after `load`."""
    found = upstream.without_meaning({**environ, **_from_file(environ, [])})
    told = f"settings of amazon-vpc-cni-k8s without meaning here: {', '.join(found)} (docs/settings.md says why)" if found else ""
    if of_ipv4 := load_what_is_right(environ).meaningless():
        told += f"{'; ' * bool(told)}settings without meaning with pods of IPv6: {', '.join(of_ipv4)}"
    return told


def describe(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[ConfigLine]:
    """List every setting with its value, default, origin and sentence, in the order of the classes."""
    in_file = _from_file(environ, [])
    lines = []
    for _, item, found in settings.each():
        env, meta = item.metadata["env"], item.metadata
        text, origin = (in_file[env], "file") if env in in_file else (environ.get(env, ""), "environment")
        if not _means(text, meta["parse"], found):
            origin = "default" if found == item.default else "earlier file"
        lines.append(ConfigLine(env, show(found), show(item.default), origin, meta["text"], meta["is_live"]))
    return lines


def _means(text: str, parse: Parser, value: object) -> bool:
    try:
        return bool(text) and parsed(text, parse) == value
    except ValueError:
        return False


def show(value: object) -> str:
    """Write a value as it could be given in the environment."""
    if isinstance(value, tuple):
        return ",".join("=".join(part) if isinstance(part, tuple) else str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    path = environ.get(FILE, "")
    if not path.startswith("/") or not path.isprintable():
        return {}  # a path that cannot be one is named as the setting that it is
    found, wrong = settings_file.read(path)
    problems += wrong
    return found


def _value(name: str, parse: Parser, given: Mapping[str, str], problems: list[str]) -> Any:
    """Read one value; None if it is not set, or wrong: then `problems` gets a sentence."""
    text = given.get(name, "")
    try:
        return parsed(text, parse) if text else None
    except ValueError as error:
        problems.append(wrong(name, text, error))
        return None


def _parsed(given: Mapping[str, str], problems: list[str]) -> Settings:
    settings = Settings()
    for topic, item, _ in settings.each():
        value = _value(item.metadata["env"], item.metadata["parse"], given, problems)
        if value is not None:
            settings = dataclasses.replace(
                settings, **{topic: dataclasses.replace(getattr(settings, topic), **{item.name: value})}
            )
    return settings


def wrong(name: str, text: str, error: ValueError) -> str:
    """Say what is wrong with a value, with the value as far as it is short and no secret: a URL may carry a password."""
    head = repr(without_secrets(text[:SHOWN_MAX]))
    shown = head if len(text) <= SHOWN_MAX else f"{head}... ({len(text)} characters)"
    return f"{name}={shown}: {printable(str(error), most=2 * SHOWN_MAX)}"


# Names that look like a setting and are none: refused, with the nearest that is one (I15).
#
# The environment of a pod holds far more than settings, so what does not look like ours or amazon-vpc-cni-k8s's is left alone:
# the variables of the AWS SDK, those that Kubernetes makes for each Service, those of images and webhooks.


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
    return frozenset(item.metadata["env"] for _, item, _ in Settings().each())


@cache
def _meant() -> tuple[str, ...]:
    """Every name that a misspelt one may have been meant for: those that change something."""
    return tuple(sorted(ours() | {row.name for row in UPSTREAM if row.fate is not Fate.WITHOUT_MEANING}))


def unknown(given: Mapping[str, str], *, is_ours: bool) -> list[str]:
    """Name each set variable that is no setting. Returns: one sentence for each, sorted by name.

    Args:
        is_ours: there is nothing but settings in it, so that a name need not look like one: the settings file.
    """
    known = ours() | {row.name for row in (*UPSTREAM, *FORMER)} | set(OTHERS_OF_OURS)
    found = []
    names = sorted(name for name in given if name not in known and (given[name] or is_ours))
    more = max(len(names) - UNKNOWN_MAX, 0) if is_ours else 0
    for name in names[: len(names) - more]:
        # A Service may be called like a setting, and `vpc-ipamd` is likely.
        if len(name) > LENGTH_MAX or (OF_A_SERVICE.fullmatch(name) and not is_ours):
            continue
        # What differs least, underscores aside, whatever becomes of it: a name that means nothing here says what does.
        near = _spelt_otherwise(name) or nearest(name, _meant())
        family = next((one for one in FAMILIES if name.upper().startswith(one)), "")
        if near or is_ours or family:
            # One that begins with it, or else the nearest, whatever becomes of that.
            like = [one for one in (*_meant(), *(row.name for row in UPSTREAM)) if one.startswith(family[:8])]
            best = near or next((one for one in like if one.startswith(name.upper())), "") or nearest(name, like, most=LENGTH_MAX)
            row = next((one for one in UPSTREAM if one.name == best and one.fate is Fate.WITHOUT_MEANING), None)
            advice = f"{best} means nothing here: {row.text}" if row else f"did you mean {best}?"
            found.append(f"{printable(name)}: there is no such setting; {advice}")
    return found + ([f"{counted(more, 'more name')} in the file: there are no such settings"] if more else [])


def _spelt_otherwise(name: str) -> str:
    """The known name that has the same letters and other underscores or hyphens; "" if none has."""
    letters = re.sub("[-_]", "", name).upper()
    return next((one for one in (*_meant(), *(row.name for row in UPSTREAM)) if one.replace("_", "").upper() == letters), "")


def nearest(name: str, known: Iterable[str], *, most: int | None = None) -> str:
    """The known name that differs least, "" if all differ in more than `most` characters; without it, by the name's length."""
    allowed = most if most is not None else (SHORT_DISTANCE if len(name) <= SHORT else LONG_DISTANCE)
    spelt = name.upper().replace("-", "_")
    letters = set(spelt)
    near = [
        one
        for one in known
        # One mistake brings in a character and takes one away at most: told in a microsecond, and true of nearly every pair.
        if abs(len(one) - len(spelt)) <= allowed and len(letters.symmetric_difference(one.upper())) <= 2 * allowed
    ]
    distance, best = min(((_distance(spelt, one.upper()), one) for one in near), default=(allowed + 1, ""))
    return best if distance <= allowed else ""


def _distance(one: str, other: str) -> int:
    """Count the insertions, deletions, changes and swaps of neighbours between two names."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, right in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]
