"""Read every setting from environment and file, and name all that is wrong at once, of whatever kind.

amazon-vpc-cni-k8s logs an invalid value and uses the default. Here the daemon does not start (exit 2), and a running one keeps the
settings that it has: what is silently ignored is discovered in production.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from ipamd.model.errors import SettingsError
from ipamd.model.loopback import is_loopback
from ipamd.model.redaction import without_secrets
from ipamd.model.words import printable
from ipamd.settings import names, settings_file, upstream
from ipamd.settings.fields import (
    CloudConfig,
    DaemonConfig,
    PoolConfig,
    RuntimeConfig,
    Settings,
)
from ipamd.settings.network_fields import NetworkConfig, SubnetsConfig
from ipamd.settings.parsers import choice, parse_region, parse_url, parsed
from ipamd.settings.takeover_fields import TakeoverConfig

FILE = "VPC_IPAMD_SETTINGS_FILE"

SHOWN_MAX = 200
"""Characters of a wrong value that are quoted. Ours."""

EVERY_HOST = {"", "0.0.0.0"}  # noqa: S104  # compared, not listened on

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

T = TypeVar("T")


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


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every setting from the environment and from the file that it names; the file's lines win. Empty counts as not set.

    Raises: SettingsError whose details name every problem at once.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    in_file = _from_file(environ, problems)
    given = {**environ, **in_file}
    problems += [*names.unknown(environ, is_ours=False), *names.unknown(in_file, is_ours=True)]
    problems += [*upstream.refused(given), *_of_the_sdk(environ)]
    settings = _parsed(given, problems)
    problems += contradictions(settings)
    if problems:
        raise SettingsError(f"{len(problems)} setting(s) are wrong", details="; ".join(problems))
    return settings


def load_what_is_right(environ: Mapping[str, str] | None = None) -> Settings:
    """Read what can be read; what is wrong keeps its default. For `ipamctl`, which must help while settings are wrong."""
    environ = os.environ if environ is None else environ
    return _parsed({**environ, **_from_file(environ, [])}, [])


def contradictions(settings: Settings) -> list[str]:
    """Name settings that are right each by itself and wrong together."""
    problems = []
    if settings.pool.warm_target == "auto" and settings.pool.warm_ip_target:
        problems.append(
            f"WARM_TARGET=auto: must not be set with WARM_IP_TARGET ({settings.pool.warm_ip_target}), which it computes"
        )
    page, has_token = settings.daemon.page_address, bool(settings.daemon.page_token_file)
    if page != "off" and not has_token and not is_loopback(page.rpartition(":")[0]):
        problems.append(f"VPC_IPAMD_PAGE_ADDRESS={page!r}: outside loopback it needs VPC_IPAMD_PAGE_TOKEN_FILE")
    problems += _clashes(settings.daemon)
    chained = {plugin["type"] for plugin in json.loads(settings.daemon.chained_plugins or "[]")}
    for name, is_on in (("portmap", settings.daemon.portmap), ("bandwidth", settings.daemon.bandwidth)):
        if is_on and name in chained:
            problems.append(
                f"ENABLE_{name.upper()}_PLUGIN=true: VPC_IPAMD_CHAINED_PLUGINS chains {name} too; it must not run twice"
            )
    ours = settings.daemon.conflist_path
    if os.path.normpath(ours) == os.path.normpath(settings.takeover.conflist_beside(ours)):
        problems.append(
            f"VPC_IPAMD_CONFLIST={str(ours)!r}: that is the conflist of amazon-vpc-cni-k8s, which is renamed: choose another"
        )
    if settings.network.sandbox_mtu > settings.network.eni_mtu:
        problems.append(f"POD_MTU={settings.network.pod_mtu}: must not exceed AWS_VPC_ENI_MTU ({settings.network.eni_mtu})")
    return problems


def _clashes(daemon: DaemonConfig) -> Iterator[str]:
    """Listeners of which the second would find its port taken by the first."""
    addresses = {
        "VPC_IPAMD_METRICS_ADDRESS": daemon.metrics_address,
        "VPC_IPAMD_HEALTH_ADDRESS": daemon.health_address,
        "VPC_IPAMD_PAGE_ADDRESS": daemon.page_address,
    }
    listeners = [(name, text, *_host_and_port(text)) for name, text in addresses.items() if text != "off"]
    for (one, _, host, port), (other, text, other_host, other_port) in combinations(listeners, 2):
        if port == other_port and (host == other_host or EVERY_HOST & {host, other_host}):
            yield f"{other}={text!r}: {one} has that port already"


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.replace("localhost", "127.0.0.1"), int(port)


def without_meaning(environ: Mapping[str, str] | None = None) -> str:
    """Name in one line the settings of amazon-vpc-cni-k8s that are set and mean nothing here; "" if none is. Call after `load`."""
    environ = os.environ if environ is None else environ
    found = upstream.without_meaning({**environ, **_from_file(environ, [])})
    if not found:
        return ""
    return f"settings of amazon-vpc-cni-k8s without meaning here: {', '.join(found)} (docs/settings.md says why)"


def describe(settings: Settings, environ: Mapping[str, str] | None = None) -> list[ConfigLine]:
    """List every setting with its value, default, origin and sentence, in the order of the classes."""
    environ = os.environ if environ is None else environ
    in_file = _from_file(environ, [])
    lines = []
    for topic in dataclasses.fields(settings):
        value = getattr(settings, topic.name)
        for item in dataclasses.fields(value):
            env, meta, found = item.metadata["env"], item.metadata, getattr(value, item.name)
            text, origin = (in_file[env], "file") if env in in_file else (environ.get(env, ""), "environment")
            if not _means(text, meta["parse"], found):
                origin = "default" if found == item.default else "earlier file"
            lines.append(ConfigLine(env, show(found), show(item.default), origin, meta["text"], meta["is_live"]))
    return lines


def _means(text: str, parse: names.Parser, value: object) -> bool:
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


def _of_the_sdk(environ: Mapping[str, str]) -> list[str]:
    return [problem for name, parse in OF_THE_SDK.items() for problem in _problem(name, environ.get(name, ""), parse)]


def _problem(name: str, text: str, parse: names.Parser) -> list[str]:
    try:
        if text:
            parsed(text, parse)
    except ValueError as error:
        return [wrong(name, text, error)]
    return []


def _parsed(given: Mapping[str, str], problems: list[str]) -> Settings:
    return Settings(
        pool=_topic(PoolConfig, given, problems),
        network=_topic(NetworkConfig, given, problems),
        subnets=_topic(SubnetsConfig, given, problems),
        cloud=_topic(CloudConfig, given, problems),
        runtime=_topic(RuntimeConfig, given, problems),
        daemon=_topic(DaemonConfig, given, problems),
        takeover=_topic(TakeoverConfig, given, problems),
    )


def _topic(kind: type[T], given: Mapping[str, str], problems: list[str]) -> T:
    values = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # every topic is a dataclass; the bound is private to typeshed
        text = given.get(item.metadata["env"], "")
        if text:
            try:
                values[item.name] = parsed(text, item.metadata["parse"])
            except ValueError as error:
                problems.append(wrong(item.metadata["env"], text, error))
    return kind(**values)


def wrong(name: str, text: str, error: ValueError) -> str:
    """Say what is wrong with a value, with the value as far as it is short and no secret: a URL may carry a password."""
    head = repr(without_secrets(text[:SHOWN_MAX]))
    shown = head if len(text) <= SHOWN_MAX else f"{head}... ({len(text)} characters)"
    return f"{name}={shown}: {printable(str(error), most=2 * SHOWN_MAX)}"
