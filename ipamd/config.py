"""Settings: frozen dataclasses, one per topic, each field with its environment variable and a sentence.

Names and meanings are those of amazon-vpc-cni-k8s where it has the setting (its README.md, "CNI Configuration Variables"), so
that a DaemonSet's environment carries over. One difference on purpose: amazon-vpc-cni-k8s logs an invalid value and uses the
default. Here all problems are reported at once and the daemon does not start (exit 2): silently ignored settings are discovered
in production.
Over 300 lines because all settings are read as one list, each beside its parser and its sentence.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from ipamd.model.errors import SettingsError
from ipamd.model.pool_settings import PoolSettings

RUN_DIR = Path("/run/vpc-ipamd")
CONFLIST_PATH = Path("/etc/cni/net.d/10-vpc-ipamd.conflist")
NETWORK_FILE = Path("/etc/vpc-ipamd/network.json")


def _setting(env: str, parse: Callable[[str], Any], default: Any, text: str) -> Any:
    return field(default=default, metadata={"env": env, "parse": parse, "text": text})


def parse_bool(text: str) -> bool:
    """Accept what Go's strconv.ParseBool accepts, as the variables of amazon-vpc-cni-k8s do. Raises: ValueError."""
    if text in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if text in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise ValueError("must be true or false")


def integer(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Make a parser of whole numbers in a closed range; the parser raises ValueError."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", text, re.ASCII):
            raise ValueError("must be a whole number")
        value = int(text, 0) if text.lower().startswith("0x") else int(text)
        if value < lowest or (highest is not None and value > highest):
            raise ValueError(f"must be {lowest} or more" if highest is None else f"must be {lowest} to {highest}")
        return value

    return parse


LINK_NAMES = ("eth", "eno", "enp", "ens", "enx", "lo", "vlan", "docker", "br", "wg")
"""How names of other links begin. Source: systemd.net-naming-scheme(7) for ENIs; amazon-vpc-cni-k8s for vlan."""


def parse_veth_prefix(text: str) -> str:
    """Accept a host veth prefix. Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, validateEnvVars. Raises: ValueError."""
    if not re.fullmatch(r"[a-zA-Z0-9]{1,4}", text) or text in {"eth", "lo", "vlan"}:
        raise ValueError("must be 1 to 4 ASCII letters or digits, and not eth, lo or vlan")
    taken = next((name for name in LINK_NAMES if name.startswith(text)), None)
    if taken is not None:
        raise ValueError(f"must not begin the names of other links ({taken}...): rules for sandboxes would take them too")
    return text


def parse_cidrs(text: str) -> tuple[IPv4Network, ...]:
    """Accept a comma-separated list of IPv4 CIDRs. Raises: ValueError naming the bad one."""
    return tuple(IPv4Network(part.strip(), strict=False) for part in text.split(",") if part.strip())


def parse_service_cidrs(text: str) -> tuple[IPv4Network, ...]:
    """Accept CIDRs but 0.0.0.0/0: with a rule to it no sandbox would use its own ENI. Raises: ValueError."""
    cidrs = parse_cidrs(text)
    if any(not cidr.prefixlen for cidr in cidrs):
        raise ValueError("0.0.0.0/0 would send all traffic of every sandbox through the primary ENI")
    return cidrs


def parse_plugins(text: str) -> str:
    """Accept a JSON list of plugin configurations, each with a type other than ours. Returns: compact JSON. Raises: ValueError."""
    plugins = json.loads(text)
    if not isinstance(plugins, list) or not all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in plugins):
        raise ValueError("must be a JSON list of objects, each with a type")
    types = [one["type"] for one in plugins]
    if not all(re.fullmatch(r"[a-zA-Z0-9_-]+", one) and one != "vpc-cni" for one in types):
        raise ValueError("a type is the file name of a plugin, and not vpc-cni")
    return json.dumps(plugins, separators=(",", ":"))


def parse_tags(text: str) -> tuple[tuple[str, str], ...]:
    """Accept a JSON object of strings; keys that contain k8s.amazonaws.com are reserved and refused. Raises: ValueError."""
    tags = json.loads(text) if text.strip() else {}
    if not isinstance(tags, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):
        raise ValueError("must be a JSON object of strings")
    reserved = sorted(key for key in tags if "k8s.amazonaws.com" in key)
    if reserved:
        raise ValueError(f"keys with k8s.amazonaws.com are reserved: {', '.join(reserved)}")
    return tuple(sorted(tags.items()))


def choice(*allowed: str) -> Callable[[str], str]:
    """Make a parser of a closed set of lower-case words; the parser raises ValueError."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.lower()

    return parse


@dataclass(frozen=True)
class PoolConfig:
    """How many addresses to keep in reserve."""

    warm_eni_target: int = _setting(
        "WARM_ENI_TARGET", integer(0), 1, "Whole ENIs' worth of free addresses to keep; ignored once an IP target is set."
    )
    warm_ip_target: int = _setting(
        "WARM_IP_TARGET",
        integer(0),
        0,
        "Free addresses to keep, topped up at half of it or after 5 s without an ADD; 0: not defined.",
    )
    minimum_ip_target: int = _setting("MINIMUM_IP_TARGET", integer(0), 0, "Floor for all addresses; 0: not defined.")
    warm_target: str = _setting(
        "WARM_TARGET",
        choice("fixed", "auto"),
        "fixed",
        "auto: the free addresses to keep follow measured demand, instead of WARM_IP_TARGET, which must not be set then; "
        "MINIMUM_IP_TARGET still holds, WARM_ENI_TARGET and WARM_PREFIX_TARGET are ignored.",
    )
    warm_prefix_target: int = _setting("WARM_PREFIX_TARGET", integer(0), 0, "Free /28 prefixes to keep, in prefix mode.")
    max_eni: int = _setting("MAX_ENI", integer(0), 0, "Cap on ENIs below the instance's own limit; 0: none.")
    max_pods: int = _setting("MAX_PODS", integer(0), 0, "Cap on the pool, in addresses; 0: what the instance type allows.")
    prefix_delegation: bool = _setting("ENABLE_PREFIX_DELEGATION", parse_bool, False, "Allocate /28 prefixes.")
    release_hold_s: int = _setting(
        "VPC_IPAMD_RELEASE_HOLD",
        integer(1, 86400),
        3600,
        "Seconds for which addresses are in excess before they are given back to EC2; whole ENIs of WARM_ENI_TARGET go at once.",
    )
    cooldown_s: int = _setting(
        "IP_COOLDOWN_PERIOD", integer(0, 86400), 30, "Seconds before a released address may be assigned again."
    )


@dataclass(frozen=True)
class NetworkConfig:
    """How sandboxes and the node are wired."""

    eni_mtu: int = _setting("AWS_VPC_ENI_MTU", integer(576, 9001), 9001, "MTU of ENIs, bytes.")
    pod_mtu: int = _setting("POD_MTU", integer(576, 9001), 0, "MTU of sandboxes, bytes; default: that of the ENIs.")
    veth_prefix: str = _setting("AWS_VPC_K8S_CNI_VETHPREFIX", parse_veth_prefix, "eni", "Beginning of host veth names.")
    pod_veth_names: bool = _setting(
        "VPC_IPAMD_POD_VETH_NAMES",
        parse_bool,
        False,
        "Name host veths by pod as amazon-vpc-cni-k8s does, for policy agents that compute the name.",
    )
    external_snat: bool = _setting("AWS_VPC_K8S_CNI_EXTERNALSNAT", parse_bool, False, "Leave SNAT to something outside the node.")
    exclude_snat_cidrs: tuple[IPv4Network, ...] = _setting(
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, to which traffic is sent without SNAT.",
    )
    external_service_cidrs: tuple[IPv4Network, ...] = _setting(
        "AWS_EXTERNAL_SERVICE_CIDRS",
        parse_service_cidrs,
        (),
        "IPv4 CIDRs, comma separated, that every sandbox reaches through table main, whatever its ENI (rule 1535).",
    )
    randomize_snat: str = _setting(
        "AWS_VPC_K8S_CNI_RANDOMIZESNAT", choice("prng", "hashrandom", "none"), "prng", "How SNAT chooses ports."
    )
    node_port_support: bool = _setting("AWS_VPC_CNI_NODE_PORT_SUPPORT", parse_bool, True, "Mark NodePort connections.")
    connmark: int = _setting(
        "AWS_VPC_K8S_CNI_CONNMARK", integer(1, 0xFFFFFFFF), 0x80, "Bit of the packet mark that the node's rules use."
    )
    extra_source_cidrs: tuple[IPv4Network, ...] = _setting(
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, from which any sandbox may send besides its own address: for those that route for others.",
    )

    @property
    def sandbox_mtu(self) -> int:
        """POD_MTU, or the ENIs' MTU when it is not set."""
        return self.pod_mtu or self.eni_mtu


@dataclass(frozen=True)
class SubnetsConfig:
    """In which subnets new ENIs are made."""

    discovery: bool = _setting(
        "ENABLE_SUBNET_DISCOVERY",
        parse_bool,
        True,
        "Make ENIs in every subnet of the zone that is tagged for it, not only in the node's.",
    )
    custom_networking: bool = _setting(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        parse_bool,
        False,
        "Take subnet and security groups of new ENIs from a file, by availability zone; the primary ENI carries no pods.",
    )
    network_file: Path = _setting(
        "VPC_IPAMD_NETWORK_FILE", Path, NETWORK_FILE, "That file: JSON, read at the start (docs/subnets.md)."
    )


@dataclass(frozen=True)
class CloudConfig:
    """How EC2 and instance metadata are reached, and how ENIs are tagged."""

    ec2_endpoint: str = _setting("AWS_EC2_ENDPOINT", str, "", "URL of the EC2 API; empty: the region's own.")
    imds_endpoint: str = _setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT", str, "http://169.254.169.254", "URL of the instance metadata service."
    )
    cluster_name: str = _setting("CLUSTER_NAME", str, "", "Name of the EKS cluster, for tags.")
    additional_tags: tuple[tuple[str, str], ...] = _setting(
        "ADDITIONAL_ENI_TAGS", parse_tags, (), "JSON object of further tags for ENIs that we create."
    )
    leaked_eni_cleanup_disabled: bool = _setting(
        "DISABLE_LEAKED_ENI_CLEANUP",
        parse_bool,
        False,
        "Leave alone the ENIs that this node made and that leaked; else deleted after a start.",
    )
    http_timeout_s: int = _setting("HTTP_TIMEOUT", integer(1, 300), 10, "Seconds for the whole answer to an HTTP request to AWS.")


@dataclass(frozen=True)
class RuntimeConfig:
    """How the container runtime is reached."""

    cri_events: bool = _setting(
        "CRI_EVENTS", parse_bool, True, "Follow the runtime's events; turn off where kubelet's EventedPLEG uses containerd 1.x."
    )
    cri_socket: str = _setting(
        "CRI_SOCKET", str, "", "Path of the CRI socket; empty: the usual ones in turn; 'off': no CRI, no reaping."
    )


@dataclass(frozen=True)
class DaemonConfig:
    """Where the daemon keeps its files, what it writes and serves, and how many requests it handles."""

    run_dir: Path = _setting("VPC_IPAMD_RUN_DIR", Path, RUN_DIR, "Socket, datastore and spool; owned by root, 0700.")
    freeze_file: str = _setting(
        "VPC_IPAMD_FREEZE_FILE",
        str,
        "",
        "A drain hook's file: while it exists no ENI is made and nothing given back; empty: hooks/freeze in the run directory.",
    )
    conflist_path: Path = _setting("VPC_IPAMD_CONFLIST", Path, CONFLIST_PATH, "Where the conflist is written once ready.")
    portmap: bool = _setting("ENABLE_PORTMAP_PLUGIN", parse_bool, False, "Chain the portmap plugin, for hostPort.")
    bandwidth: bool = _setting("ENABLE_BANDWIDTH_PLUGIN", parse_bool, False, "Chain the bandwidth plugin.")
    chained_plugins: str = _setting(
        "VPC_IPAMD_CHAINED_PLUGINS",
        parse_plugins,
        "",
        'JSON list of plugin configurations to chain last, as [{"type": "tuning"}].',
    )
    log_level: str = _setting(
        "VPC_IPAMD_LOG_LEVEL", choice("debug", "info", "warning", "error"), "info", "Lowest level that is logged."
    )
    metrics_address: str = _setting(
        "VPC_IPAMD_METRICS_ADDRESS", str, ":61678", "host:port of the Prometheus endpoint; 'off': none."
    )
    health_address: str = _setting(
        "VPC_IPAMD_HEALTH_ADDRESS", str, "127.0.0.1:61677", "host:port of /healthz and /readyz for kubelet's probes; 'off': none."
    )
    max_concurrent_rpcs: int = _setting("VPC_IPAMD_MAX_RPCS", integer(4, 1024), 256, "CNI requests handled at once.")
    drain_s: int = _setting(
        "VPC_IPAMD_DRAIN", integer(0, 60), 0, "Seconds of serving DEL after the first SIGTERM; the plugin spools it anyway."
    )

    @property
    def freeze_path(self) -> Path:
        """VPC_IPAMD_FREEZE_FILE, or its place in the run directory when it is not set."""
        return Path(self.freeze_file) if self.freeze_file else self.run_dir / "hooks" / "freeze"


@dataclass(frozen=True)
class TakeoverConfig:
    """What amazon-vpc-cni-k8s has on the node: read when we come, written when it comes back."""

    checkpoint: Path = _setting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        Path,
        Path("/var/run/aws-node/ipam.json"),
        "Its file of allocations: read at the start, written by `ipamctl export`.",
    )
    daemon_socket: str = _setting(
        "VPC_IPAMD_AWS_NODE_SOCKET",
        str,
        "/var/run/aws-node/ipamd.sock",
        "Its daemon's socket: while that or 127.0.0.1:50051 accepts connections we give no address; 'off': not looked at.",
    )
    conflist: str = _setting(
        "VPC_IPAMD_AWS_NODE_CONFLIST",
        str,
        "",
        "Its conflist, renamed while we are ready; empty: 10-aws.conflist beside ours.",
    )
    cni_backend_socket: str = _setting(
        "VPC_IPAMD_CNI_BACKEND_SOCKET",
        str,
        "",
        "Serve its plugin on this Unix socket, as its daemon did; empty: not served (docs/migration.md).",
    )


@dataclass(frozen=True)
class Settings:
    """Every setting, by topic."""

    pool: PoolConfig = PoolConfig()
    network: NetworkConfig = NetworkConfig()
    subnets: SubnetsConfig = SubnetsConfig()
    cloud: CloudConfig = CloudConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    daemon: DaemonConfig = DaemonConfig()
    takeover: TakeoverConfig = TakeoverConfig()

    def pool_settings(self, *, max_pods: int, supports_prefixes: bool = True) -> PoolSettings:
        """Make the planner's settings; `max_pods` is the instance type's, used when MAX_PODS is not set.

        It counts single addresses, so it is no cap with prefixes, of which a slot holds 16; on a type that cannot have any it is.
        Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt, ENIs x (addresses per ENI - 1) + 2.
        """
        pool = self.pool
        type_max_pods = 0 if pool.prefix_delegation and supports_prefixes else max_pods
        return PoolSettings(
            warm_eni_target=pool.warm_eni_target,
            warm_ip_target=pool.warm_ip_target,
            minimum_ip_target=pool.minimum_ip_target,
            warm_prefix_target=pool.warm_prefix_target,
            max_eni=pool.max_eni,
            max_pods=pool.max_pods or type_max_pods,
            prefix_delegation=pool.prefix_delegation,
            warm_target_auto=pool.warm_target == "auto",
            release_hold_s=float(pool.release_hold_s),
        )


@dataclass(frozen=True)
class ConfigLine:
    """One setting as shown to people; `origin` is "environment" or "default"."""

    env: str
    value: str
    default: str
    origin: str
    text: str


T = TypeVar("T")


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every setting from the environment. An empty value counts as not set.

    Raises: SettingsError whose details name every problem at once.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    settings = Settings(
        pool=_topic(PoolConfig, environ, problems),
        network=_topic(NetworkConfig, environ, problems),
        subnets=_topic(SubnetsConfig, environ, problems),
        cloud=_topic(CloudConfig, environ, problems),
        runtime=_topic(RuntimeConfig, environ, problems),
        daemon=_topic(DaemonConfig, environ, problems),
        takeover=_topic(TakeoverConfig, environ, problems),
    )
    problems += contradictions(settings)
    if problems:
        raise SettingsError(f"{len(problems)} setting(s) are wrong", details="; ".join(problems))
    return settings


def contradictions(settings: Settings) -> list[str]:
    """Name settings that are right each by itself and wrong together."""
    problems = []
    if settings.pool.warm_target == "auto" and settings.pool.warm_ip_target:
        problems.append(
            f"WARM_TARGET=auto: must not be set with WARM_IP_TARGET ({settings.pool.warm_ip_target}), which it computes"
        )
    if settings.network.sandbox_mtu > settings.network.eni_mtu:
        problems.append(f"POD_MTU={settings.network.pod_mtu}: must not exceed AWS_VPC_ENI_MTU ({settings.network.eni_mtu})")
    return problems


def describe(settings: Settings, environ: Mapping[str, str] | None = None) -> list[ConfigLine]:
    """List every setting with its value, default, origin and sentence, in the order of the classes above."""
    environ = os.environ if environ is None else environ
    lines = []
    for topic in dataclasses.fields(settings):
        value = getattr(settings, topic.name)
        for item in dataclasses.fields(value):
            env = item.metadata["env"]
            origin = "environment" if environ.get(env, "") else "default"
            lines.append(ConfigLine(env, _show(getattr(value, item.name)), _show(item.default), origin, item.metadata["text"]))
    return lines


def _topic(kind: type[T], environ: Mapping[str, str], problems: list[str]) -> T:
    values = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # every topic is a dataclass; the bound is private to typeshed
        text = environ.get(item.metadata["env"], "")
        if text:
            try:
                values[item.name] = item.metadata["parse"](text)
            except ValueError as error:
                problems.append(f"{item.metadata['env']}={text!r}: {error}")
    return kind(**values)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("=".join(part) if isinstance(part, tuple) else str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
