"""Every setting: frozen dataclasses, one per topic, each field with its environment variable and a sentence.

Settings of the network are in `fields.py`.

Names and meanings are those of amazon-vpc-cni-k8s where it has the setting (its README.md, "CNI Configuration Variables"), so
that a DaemonSet's environment carries over; the rest of its settings are in `upstream.py`. A field made with `live` takes effect
while the daemon runs (`ipamd/reload.py`), one made with `setting` at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from ipamd.model.branch import EnforcingMode
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.pool import PoolSettings
from ipamd.model.record import dataclass, field, fields
from ipamd.settings.parsers import (
    choice,
    integer,
    or_off,
    parse_bool,
    parse_cidrs,
    parse_cluster_name,
    parse_conflist,
    parse_cri_socket,
    parse_file,
    parse_file_text,
    parse_http_url,
    parse_listen_address,
    parse_mark,
    parse_path,
    parse_path_text,
    parse_plugins,
    parse_run_dir,
    parse_service_cidrs,
    parse_socket,
    parse_tags,
    parse_url,
    parse_veth_prefix,
)

# The two kinds of settings: one takes effect at the next start, the other while the daemon runs.


def setting(env: str, parse: Callable[[str], Any], default: Any, text: str, *, is_live: bool = False) -> Any:
    """Make a field that variable `env` sets at a start; `parse` raises ValueError, `text` is a sentence for people."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": is_live})


live = partial(setting, is_live=True)
"""Make a field as `setting` does, which `ipamd/reload.py` changes while the daemon runs."""


# The settings of a node that changes hands between amazon-vpc-cni-k8s and us; a restart is needed for each.


CONFLIST_NAME = "10-aws.conflist"
"""Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go."""

AWS_NODE_SOCKET = "/var/run/aws-node/ipamd.sock"
"""Source: amazon-vpc-cni-k8s pull request 3739."""


@dataclass(frozen=True)
class TakeoverConfig:
    """What amazon-vpc-cni-k8s has on the node: read when we come, written when it comes back."""

    checkpoint: Path = setting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        parse_file,
        Path("/var/run/aws-node/ipam.json"),
        "Its file of allocations: read at the start, written by `ipamctl export`.",
    )
    daemon_socket: str = setting(
        "VPC_IPAMD_AWS_NODE_SOCKET",
        or_off(parse_socket),
        AWS_NODE_SOCKET,
        "Its daemon's socket: while that or 127.0.0.1:50051 accepts connections we give no address; 'off': not looked at.",
    )
    conflist: str = setting(
        "VPC_IPAMD_AWS_NODE_CONFLIST",
        parse_file_text,
        "",
        "Its conflist, renamed while we are ready; empty: 10-aws.conflist beside ours.",
    )
    egress_state: Path = setting(
        "VPC_IPAMD_AWS_NODE_EGRESS",
        parse_path,
        Path("/run/cni"),
        "Where its plugin for egress keeps which addresses it gave: written by `ipamctl export`.",
    )
    cni_backend_socket: str = setting(
        "VPC_IPAMD_CNI_BACKEND_SOCKET",
        parse_socket,
        "",
        "Serve its plugin on this Unix socket, as its daemon did; empty: not served (docs/migration.md).",
    )

    @property
    def questions_socket(self) -> str:
        """Where its policy agent asks its daemon: where the plugin is served, or else where that daemon listens."""
        return self.cni_backend_socket or (AWS_NODE_SOCKET if self.daemon_socket == "off" else self.daemon_socket)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where its daemon makes its socket and writes its file: a change there may be its coming."""
        paths = [self.checkpoint, *([] if self.daemon_socket == "off" else [Path(self.daemon_socket)])]
        return tuple({path.parent: None for path in paths})

    def conflist_beside(self, ours: Path) -> Path:
        """Where its conflist is, by the setting or beside ours."""
        return Path(self.conflist) if self.conflist else ours.with_name(CONFLIST_NAME)


# Settings of the network: how sandboxes and the node are wired, and in which subnets ENIs are made. The rest is in `fields.py`.


NETWORK_FILE = Path("/etc/vpc-ipamd/network.json")


@dataclass(frozen=True)
class NetworkConfig:
    """How sandboxes and the node are wired."""

    ipv4: bool = setting(
        "ENABLE_IPv4", parse_bool, True, "Pods have IPv4 addresses; one of the two families, for the life of the node."
    )
    ipv6: bool = setting("ENABLE_IPv6", parse_bool, False, "Pods have IPv6 addresses, of one /80 on the primary ENI.")
    v4_egress: bool = setting(
        "ENABLE_V4_EGRESS", parse_bool, True, "Let pods of IPv6 reach IPv4 by the node's own address; means nothing for others."
    )
    v6_egress: bool = setting(
        "ENABLE_V6_EGRESS", parse_bool, False, "Let pods of IPv4 reach IPv6 by the node's own address; means nothing for others."
    )
    eni_mtu: int = live("AWS_VPC_ENI_MTU", integer(576, 9001), 9001, "MTU of ENIs, bytes.")
    pod_mtu: int = live("POD_MTU", integer(576, 9001), 0, "MTU of sandboxes, bytes; default: that of the ENIs.")
    veth_prefix: str = setting("AWS_VPC_K8S_CNI_VETHPREFIX", parse_veth_prefix, "eni", "Beginning of host veth names.")
    pod_veth_names: bool = setting(
        "VPC_IPAMD_POD_VETH_NAMES",
        parse_bool,
        False,
        "Name host veths by pod as amazon-vpc-cni-k8s does, for policy agents that compute the name.",
    )
    external_snat: bool = live("AWS_VPC_K8S_CNI_EXTERNALSNAT", parse_bool, False, "Leave SNAT to something outside the node.")
    exclude_snat_cidrs: tuple[IPv4Network, ...] = live(
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, to which traffic is sent without SNAT.",
    )
    external_service_cidrs: tuple[IPv4Network, ...] = live(
        "AWS_EXTERNAL_SERVICE_CIDRS",
        parse_service_cidrs,
        (),
        "IPv4 CIDRs, comma separated, that every sandbox reaches through table main, whatever its ENI (rule 1535).",
    )
    randomize_snat: str = live(
        "AWS_VPC_K8S_CNI_RANDOMIZESNAT", choice("prng", "hashrandom", "none"), "prng", "How SNAT chooses ports."
    )
    node_port_support: bool = live("AWS_VPC_CNI_NODE_PORT_SUPPORT", parse_bool, True, "Mark NodePort connections.")
    connmark: int = live(
        "AWS_VPC_K8S_CNI_CONNMARK", parse_mark, 0x80, "Bit of the packet mark that the node's rules use: one of 0x10ff."
    )
    extra_source_cidrs: tuple[IPv4Network, ...] = setting(
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, from which any sandbox may send besides its own address: for those that route for others.",
    )
    foreign_links: str = live(
        "VPC_IPAMD_FOREIGN_LINKS",
        choice("confine", "drop"),
        "confine",
        "By links of others into a sandbox (Multus), drop packets whose source is routed elsewhere, or all.",
    )
    pod_eni: bool = setting(
        "ENABLE_POD_ENI",
        parse_bool,
        False,
        "Serve pods that have security groups of their own, by branch ENIs (docs/security-groups.md).",
    )
    pod_groups_mode: str = setting(
        "POD_SECURITY_GROUP_ENFORCING_MODE",
        choice(*EnforcingMode),
        str(EnforcingMode.STRICT),
        "strict: all packets of such a pod pass its branch ENI; standard: those of its own node do not.",
    )
    early_demux_disabled: bool = setting(
        "DISABLE_TCP_EARLY_DEMUX",
        parse_bool,
        False,
        "Turn off early demultiplexing of TCP on the node: kubelet's TCP probes reach pods in strict mode only without it.",
    )

    @property
    def family(self) -> Family:
        """That of the pool, and of what sandboxes are reached by."""
        return IPV6 if self.ipv6 else IPV4

    @property
    def extra_sources(self) -> tuple[IPv4Network, ...]:
        """Those of pods of IPv4."""
        return () if self.ipv6 else self.extra_source_cidrs

    @property
    def egress(self) -> Family | None:
        """The other family, if sandboxes may reach it by the node's own address."""
        if self.ipv6:
            return IPV4 if self.v4_egress else None
        return IPV6 if self.v6_egress else None

    @property
    def branch_mode(self) -> EnforcingMode | None:
        """How pods with security groups of their own are wired; None: none are served."""
        return EnforcingMode(self.pod_groups_mode) if self.pod_eni else None

    @property
    def sandbox_mtu(self) -> int:
        """POD_MTU, or the ENIs' MTU when it is not set."""
        return self.pod_mtu or self.eni_mtu


POLICY_OFF = "none"


@dataclass(frozen=True)
class PolicyConfig:
    """Network policy (docs/policy.md)."""

    mode: str = setting(
        "NETWORK_POLICY_ENFORCING_MODE",
        choice("standard", "strict", POLICY_OFF),
        POLICY_OFF,
        "Have aws-network-policy-agent filter each new pod: standard, strict or none.",
    )
    agent_socket: str = setting(
        "VPC_IPAMD_POLICY_AGENT_SOCKET", parse_socket, "/var/run/aws-node/npa.sock", "Where that agent listens."
    )

    @property
    def is_on(self) -> bool:
        """Whether the agent is asked at all."""
        return self.mode != POLICY_OFF


FROM_ANNOTATIONS, FROM_KUBELET = "annotations", "kubelet"

REFUSE, LEARN = "refuse", "learn"


@dataclass(frozen=True)
class PodFactsConfig:
    """Who tells whether a pod has security groups of its own (docs/security-groups.md)."""

    source: str = setting(
        "VPC_IPAMD_POD_FACTS",
        choice(FROM_ANNOTATIONS, FROM_KUBELET),
        FROM_ANNOTATIONS,
        "annotations: those that the runtime hands over, with the mark of an admission policy; kubelet: its pods service (from 1.37).",
    )
    kubelet_socket: str = setting(
        "VPC_IPAMD_KUBELET_PODS_SOCKET",
        parse_socket,
        "/var/lib/kubelet/pods-api/pods-api.sock",
        "Where kubelet serves its pods to root.",
    )
    unmarked_pods: str = setting(
        "VPC_IPAMD_UNMARKED_PODS",
        choice(LEARN, REFUSE),
        LEARN,
        "Pods without the admission policy's mark get addresses of the pool, learn: until the boot's first marked pod; refuse: never.",
    )

    @property
    def refuses_unmarked(self) -> bool:
        """Whether a pod without mark is refused whatever was seen on others."""
        return self.unmarked_pods == REFUSE


@dataclass(frozen=True)
class SubnetsConfig:
    """In which subnets new ENIs are made."""

    discovery: bool = setting(
        "ENABLE_SUBNET_DISCOVERY",
        parse_bool,
        True,
        "Make ENIs in every subnet of the zone that is tagged for it, not only in the node's.",
    )
    custom_networking: bool = setting(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        parse_bool,
        False,
        "Take subnet and security groups of new ENIs from a file, by availability zone; the primary ENI carries no pods.",
    )
    network_file: Path = setting(
        "VPC_IPAMD_NETWORK_FILE", parse_file, NETWORK_FILE, "That file: JSON, read at the start (docs/subnets.md)."
    )


RUN_DIR = Path("/run/vpc-ipamd")
CONFLIST_PATH = Path("/etc/cni/net.d/10-vpc-ipamd.conflist")
HISTORY_DIR = "/var/lib/vpc-ipamd/history"
HISTORY_OFF = "off"
CNI_BIN_DIR = Path("/opt/cni/bin")
REFERENCE_PLUGINS = Path("/opt/vpc-ipamd/plugins")

ENIS_MAX, ADDRESSES_MAX, PREFIXES_MAX = 1000, 65536, 4096
"""Bounds of targets. Ours: far above every instance type (15 ENIs of 50 slots, each a /28, are 12,000 addresses)."""


@dataclass(frozen=True)
class PoolConfig:
    """How many addresses to keep in reserve."""

    warm_eni_target: int = live(
        "WARM_ENI_TARGET",
        integer(0, ENIS_MAX),
        1,
        "Whole ENIs' worth of free addresses to keep; ignored once an IP target is set.",
    )
    warm_ip_target: int = live(
        "WARM_IP_TARGET",
        integer(0, ADDRESSES_MAX),
        0,
        "Free addresses to keep, topped up at half of it or after 5 s without an ADD; 0: not defined.",
    )
    minimum_ip_target: int = live("MINIMUM_IP_TARGET", integer(0, ADDRESSES_MAX), 0, "Floor for all addresses; 0: not defined.")
    warm_target: str = live(
        "WARM_TARGET",
        choice("fixed", "auto"),
        "fixed",
        "auto: the free addresses to keep follow measured demand, instead of WARM_IP_TARGET, which must not be set then; "
        "MINIMUM_IP_TARGET still holds, WARM_ENI_TARGET and WARM_PREFIX_TARGET are ignored.",
    )
    warm_prefix_target: int = live(
        "WARM_PREFIX_TARGET", integer(0, PREFIXES_MAX), 0, "Free /28 prefixes to keep, in prefix mode."
    )
    max_eni: int = live("MAX_ENI", integer(0, ENIS_MAX), 0, "Cap on ENIs below the instance's own limit; 0: none.")
    max_pods: int = live(
        "MAX_PODS", integer(0, ADDRESSES_MAX), 0, "Cap on the pool, in addresses; 0: what the instance type allows."
    )
    prefix_delegation: bool = live("ENABLE_PREFIX_DELEGATION", parse_bool, False, "Allocate /28 prefixes.")
    release_hold_s: int = live(
        "VPC_IPAMD_RELEASE_HOLD",
        integer(1, 86400),
        3600,
        "Seconds for which addresses are in excess before they are released. With WARM_ENI_TARGET one whole ENI is held so "
        "long; what a burst needed beyond it goes a minute after the burst has ended, or after this time if it is shorter.",
    )
    spare_eni_delay_s: int = live(
        "VPC_IPAMD_SPARE_ENI_DELAY",
        integer(0, 3600),
        30,
        "Seconds, once to twice by node, after the last ADD until an ENI is asked for that only WARM_ENI_TARGET or WARM_PREFIX_TARGET "
        "wants; 0: at once. What ADDs wait for, and half of the target, is asked for at once in any case.",
    )
    cooldown_s: int = live(
        "IP_COOLDOWN_PERIOD", integer(0, 86400), 30, "Seconds before a released address may be assigned again."
    )


@dataclass(frozen=True)
class CloudConfig:
    """How EC2 and instance metadata are reached, and how ENIs are tagged."""

    ec2_endpoint: str = setting("AWS_EC2_ENDPOINT", parse_url, "", "URL of the EC2 API; empty: the region's own.")
    imds_endpoint: str = setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT", parse_http_url, "http://169.254.169.254", "URL of the instance metadata service."
    )
    cluster_name: str = setting("CLUSTER_NAME", parse_cluster_name, "", "Name of the EKS cluster, for tags.")
    additional_tags: tuple[tuple[str, str], ...] = live(
        "ADDITIONAL_ENI_TAGS", parse_tags, (), "JSON object of further tags for ENIs that we create."
    )
    leaked_eni_cleanup_disabled: bool = setting(
        "DISABLE_LEAKED_ENI_CLEANUP",
        parse_bool,
        False,
        "Leave alone the ENIs that this node made and that leaked; else deleted after a start.",
    )
    http_timeout_s: int = setting("HTTP_TIMEOUT", integer(1, 300), 10, "Seconds for the whole answer to an HTTP request to AWS.")


@dataclass(frozen=True)
class RuntimeConfig:
    """How the container runtime is reached."""

    cri_events: bool = setting(
        "CRI_EVENTS", parse_bool, True, "Follow the runtime's events; turn off where kubelet's EventedPLEG uses containerd 1.x."
    )
    cri_socket: str = setting(
        "CRI_SOCKET", parse_cri_socket, "", "Path of the CRI socket; empty: the usual ones in turn; 'off': no CRI, no reaping."
    )


@dataclass(frozen=True)
class DaemonConfig:
    """Where the daemon keeps its files, what it writes and serves, and how many requests it handles."""

    run_dir: Path = setting("VPC_IPAMD_RUN_DIR", parse_run_dir, RUN_DIR, "Socket, datastore and spool; owned by root, 0700.")
    freeze_file: str = setting(
        "VPC_IPAMD_FREEZE_FILE",
        parse_file_text,
        "",
        "A drain hook's file: while it exists no ENI is made and nothing released; empty: hooks/freeze in the run directory.",
    )
    settings_file: str = setting(
        "VPC_IPAMD_SETTINGS_FILE",
        parse_file_text,
        "",
        "A file of further settings, NAME=VALUE in each line, over the environment and read again when it changes; empty: none.",
    )
    reload_spread_s: int = live(
        "VPC_IPAMD_RELOAD_SPREAD",
        integer(0, 3600),
        60,
        "Seconds over which the nodes of a fleet spread the reading of a changed settings file; SIGHUP reads it at once.",
    )
    conflist_path: Path = setting(
        "VPC_IPAMD_CONFLIST", parse_conflist, CONFLIST_PATH, "Where the conflist is written once ready; ends in .conflist."
    )
    cni_bin_dir: Path = setting(
        "VPC_IPAMD_CNI_BIN_DIR", parse_path, CNI_BIN_DIR, "The node's directory of CNI plugins, where the runtime looks for them."
    )
    reference_plugins: Path = setting(
        "VPC_IPAMD_REFERENCE_PLUGINS",
        parse_path,
        REFERENCE_PLUGINS,
        "Directory of the plugins that come with the image (loopback, portmap, bandwidth, tuning); each is put into the node's where "
        "it is missing. Nothing is, if this directory does not exist.",
    )
    portmap: bool = setting("ENABLE_PORTMAP_PLUGIN", parse_bool, False, "Chain the portmap plugin, for hostPort.")
    bandwidth: bool = setting("ENABLE_BANDWIDTH_PLUGIN", parse_bool, False, "Chain the bandwidth plugin.")
    chained_plugins: str = setting(
        "VPC_IPAMD_CHAINED_PLUGINS",
        parse_plugins,
        "",
        'JSON list of plugin configurations to chain last, as [{"type": "tuning"}].',
    )
    log_level: str = live(
        "VPC_IPAMD_LOG_LEVEL", choice("debug", "info", "warning", "error"), "info", "Lowest level that is logged."
    )
    metrics_address: str = setting(
        "VPC_IPAMD_METRICS_ADDRESS", parse_listen_address, ":61678", "host:port of the Prometheus endpoint; 'off': none."
    )
    health_address: str = setting(
        "VPC_IPAMD_HEALTH_ADDRESS",
        parse_listen_address,
        "127.0.0.1:61677",
        "host:port of /healthz and /readyz for kubelet's probes; 'off': none.",
    )
    max_concurrent_rpcs: int = setting("VPC_IPAMD_MAX_RPCS", integer(4, 1024), 256, "CNI requests handled at once.")
    history_dir: str = setting(
        "VPC_IPAMD_HISTORY_DIR",
        or_off(parse_path_text),
        HISTORY_DIR,
        "Directory on the node's disk for what `ipamctl history` tells, which outlives reboots; 'off': none is kept.",
    )
    history_days: int = setting("VPC_IPAMD_HISTORY_DAYS", integer(1, 365), 7, "Days for which the history is kept.")
    history_bytes: int = setting(
        "VPC_IPAMD_HISTORY_BYTES",
        integer(4 << 20, 1 << 40),
        32 << 20,
        "Bytes that the history may have; the oldest goes first, and a quarter is for refused ADDs.",
    )
    drain_s: int = live(
        "VPC_IPAMD_DRAIN", integer(0, 60), 0, "Seconds of serving DEL after the first SIGTERM; the plugin spools it anyway."
    )

    @property
    def freeze_path(self) -> Path:
        """VPC_IPAMD_FREEZE_FILE, or its place in the run directory when it is not set."""
        return Path(self.freeze_file) if self.freeze_file else self.run_dir / "hooks" / "freeze"


OF_IPV4 = frozenset(
    {
        *(item.metadata["env"] for item in fields(PoolConfig) if item.name != "cooldown_s"),
        "AWS_VPC_K8S_CNI_EXTERNALSNAT",
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        "AWS_EXTERNAL_SERVICE_CIDRS",
        "AWS_VPC_CNI_NODE_PORT_SUPPORT",
        "AWS_VPC_K8S_CNI_CONNMARK",
        "ENABLE_V6_EGRESS",
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
    }
)
"""What means nothing with pods of IPv6: there is one /80, on the primary ENI, without SNAT, and no reply leaves by another ENI; IPv6
they have from the VPC.
Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, StartNodeIPPoolManager; pkg/networkutils/network.go, SetupHostNetwork."""


@dataclass(frozen=True)
class Settings:
    """Every setting, by topic."""

    pool: PoolConfig = PoolConfig()
    network: NetworkConfig = NetworkConfig()
    policy: PolicyConfig = PolicyConfig()
    pod_facts: PodFactsConfig = PodFactsConfig()
    subnets: SubnetsConfig = SubnetsConfig()
    cloud: CloudConfig = CloudConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    daemon: DaemonConfig = DaemonConfig()
    takeover: TakeoverConfig = TakeoverConfig()

    def each(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """Every setting in the order of the code: its topic, its field, its value."""
        for topic in fields(self):
            config = getattr(self, topic.name)
            for item in fields(config):
                yield topic.name, item, getattr(config, item.name)

    def meaningless(self) -> tuple[str, ...]:
        """The settings that were made and mean nothing for a pool of this family, by the names of their variables."""
        if not self.network.family.is_sparse:
            return ()
        topics = fields(self.pool), fields(self.network)
        made = [
            item.metadata["env"]
            for config, items in zip((self.pool, self.network), topics, strict=True)
            for item in items
            if getattr(config, item.name) != item.default
        ]
        return tuple(name for name in made if name in OF_IPV4)

    def pool_settings(self, *, max_pods: int, supports_prefixes: bool = True) -> PoolSettings:
        """Make the planner's settings; `max_pods` is the instance type's, used when MAX_PODS is not set.

        It counts single addresses, so it is no cap with prefixes, of which a slot holds 16; on a type that cannot have any it is.
        Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt, ENIs x (addresses per ENI - 1) + 2.
        """
        pool = self.pool
        if self.network.family.is_sparse:
            return PoolSettings(
                warm_eni_target=0,
                prefix_delegation=True,
                leaves_trunk_place=self.network.pod_eni,
                family=self.network.family,
                meaningless=self.meaningless(),
            )
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
            spare_eni_delay_s=float(pool.spare_eni_delay_s),
            leaves_trunk_place=self.network.pod_eni,
        )
