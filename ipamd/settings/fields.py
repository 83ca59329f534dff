"""Declare every setting. There is a frozen dataclass for each topic, and each field has an environment variable and a sentence.

The settings of the network are in `network_fields.py`, and the settings of a migration in `takeover_fields.py`.

A setting that amazon-vpc-cni-k8s has too keeps its name and meaning (its README.md, "CNI Configuration Variables"), so that the
environment of its DaemonSet can be kept. `upstream.py` lists all its settings, and how each is treated here. A field made with `live`
takes effect while the daemon runs (`ipamd/process/reload.py`), a field made with `setting` at the next start.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

from ipamd.model.pool_settings import PoolSettings
from ipamd.model.record import dataclass, fields
from ipamd.settings.field_kinds import live, setting
from ipamd.settings.json_parsers import parse_cluster_name, parse_plugins, parse_tags
from ipamd.settings.network_fields import NetworkConfig, SubnetsConfig
from ipamd.settings.parsers import (
    choice,
    integer,
    or_off,
    parse_bool,
    parse_conflist,
    parse_cri_socket,
    parse_file_text,
    parse_http_url,
    parse_listen_address,
    parse_path,
    parse_path_text,
    parse_run_dir,
    parse_socket,
    parse_url,
)
from ipamd.settings.takeover_fields import TakeoverConfig

POLICY_OFF = "none"

REQUIRED, ABSENT = "required", "absent"


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
        "VPC_IPAMD_POLICY_AGENT_SOCKET",
        parse_socket,
        "/var/run/aws-node/npa.sock",
        "Unix socket on which aws-network-policy-agent listens.",
    )

    agent: str = setting(
        "VPC_IPAMD_POLICY_AGENT",
        choice(REQUIRED, ABSENT),
        REQUIRED,
        "required: no pod starts before the agent has confirmed that it filters that pod; absent: no policy agent is on this node, "
        "and pods run unfiltered although NETWORK_POLICY_ENFORCING_MODE=standard asks for a filter.",
    )

    @property
    def is_on(self) -> bool:
        """Whether the daemon calls the agent at all."""
        return self.mode != POLICY_OFF and self.agent != ABSENT

    @property
    def is_unfiltered(self) -> bool:
        """Whether a mode is set, but pods are not filtered because no agent is on the node."""
        return self.mode != POLICY_OFF and self.agent == ABSENT


FROM_ANNOTATIONS, FROM_KUBELET = "annotations", "kubelet"

REFUSE, LEARN = "refuse", "learn"


@dataclass(frozen=True)
class PodFactsConfig:
    """How the daemon learns whether a pod has security groups of its own (docs/security-groups.md)."""

    source: str = setting(
        "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE",
        choice(FROM_ANNOTATIONS, FROM_KUBELET),
        FROM_ANNOTATIONS,
        "How the daemon learns whether a pod has security groups of its own. annotations: from the pod's annotations that the runtime "
        "passes on, one of which an admission policy sets; kubelet: from kubelet's pods service (1.37 or later).",
    )
    kubelet_socket: str = setting(
        "VPC_IPAMD_KUBELET_PODS_SOCKET",
        parse_socket,
        "/var/lib/kubelet/pods-api/pods-api.sock",
        "Unix socket of kubelet's pods service, which lists the node's pods.",
    )
    unmarked_pods: str = setting(
        "VPC_IPAMD_UNMARKED_PODS",
        choice(LEARN, REFUSE),
        LEARN,
        "Whether pods without the admission policy's mark get addresses of the pool. learn: they do until the first marked pod of "
        "this boot, and are refused then; refuse: never.",
    )

    @property
    def refuses_unmarked(self) -> bool:
        """Whether a pod without the mark is always refused, even if no pod of this boot has had the mark."""
        return self.unmarked_pods == REFUSE


RUN_DIR = Path("/run/vpc-ipamd")

CONFLIST_PATH = Path("/etc/cni/net.d/10-vpc-ipamd.conflist")

HISTORY_DIR = "/var/lib/vpc-ipamd/history"

HISTORY_OFF = "off"

CNI_BIN_DIR = Path("/opt/cni/bin")

REFERENCE_PLUGINS = Path("/opt/vpc-ipamd/plugins")

ENIS_MAX, ADDRESSES_MAX, PREFIXES_MAX = 1000, 65536, 4096
"""The largest values of settings that are numbers of ENIs, addresses and prefixes. Ours: above every instance type. The most on one
network card are 24 ENIs with 63 slots each, which are 1,512 prefixes (/28), or 24,192 addresses."""


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
        "Free addresses to keep. They are topped up when half of them are left, or after 5 s without an ADD; 0: not defined.",
    )
    minimum_ip_target: int = live("MINIMUM_IP_TARGET", integer(0, ADDRESSES_MAX), 0, "Least number of addresses in all; 0: none.")
    warm_target: str = live(
        "VPC_IPAMD_WARM_TARGET_MODE",
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
        "VPC_IPAMD_MAX_PODS", integer(0, ADDRESSES_MAX), 0, "Cap on the pool, in addresses; 0: what the instance type allows."
    )
    prefix_delegation: bool = live("ENABLE_PREFIX_DELEGATION", parse_bool, False, "Allocate /28 prefixes.")
    provisioning_disabled: bool = setting(
        "DISABLE_NETWORK_RESOURCE_PROVISIONING",
        parse_bool,
        False,
        "Create no ENI and allocate no address: the pool consists of what is attached to the instance. It stays frozen; EC2 is still "
        "read.",
    )
    release_hold_s: int = live(
        "VPC_IPAMD_RELEASE_HOLD_SECONDS",
        integer(1, 86400),
        3600,
        "Seconds for which addresses must be in excess before they are released. With WARM_ENI_TARGET this applies to one whole ENI; "
        "further ENIs, which a burst needed, are released a minute after the burst has ended, or after this time if it is shorter.",
    )
    spare_eni_delay_s: int = live(
        "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS",
        integer(0, 3600),
        30,
        "Seconds after the last ADD until an ENI or prefix is requested that only WARM_ENI_TARGET or WARM_PREFIX_TARGET needs; each "
        "node multiplies this time by a factor from 1 to 2; 0: no delay. Supply for waiting ADDs, and half of the target, is "
        "requested at once.",
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
        "Do not delete ENIs that this node made and that leaked. Otherwise they are deleted after a start.",
    )
    http_timeout_s: int = setting("HTTP_TIMEOUT", integer(1, 300), 10, "Seconds for the whole answer to an HTTP request to AWS.")


@dataclass(frozen=True)
class RuntimeConfig:
    """How the container runtime is reached."""

    cri_events: bool = setting(
        "VPC_IPAMD_CRI_EVENTS",
        parse_bool,
        True,
        "Follow the runtime's events; turn this off where kubelet uses EventedPLEG with containerd 1.x.",
    )
    cri_socket: str = setting(
        "VPC_IPAMD_CRI_SOCKET",
        parse_cri_socket,
        "",
        "Path of the CRI socket; empty: the usual paths are tried in turn; 'off': no CRI, so dead sandboxes are not reaped.",
    )


@dataclass(frozen=True)
class DaemonConfig:
    """Where the daemon keeps its files, what it writes and serves, and how many requests it handles."""

    run_dir: Path = setting("VPC_IPAMD_RUN_DIR", parse_run_dir, RUN_DIR, "Socket, datastore and spool; owned by root, 0700.")
    freeze_file: str = setting(
        "VPC_IPAMD_FREEZE_FILE",
        parse_file_text,
        "",
        "File that a drain hook makes: while it exists, no ENI is created and nothing is released; empty: hooks/freeze in the run "
        "directory.",
    )
    settings_file: str = setting(
        "VPC_IPAMD_SETTINGS_FILE",
        parse_file_text,
        "",
        "File of further settings, NAME=VALUE in each line. It overrides the environment, and is read again when it changes; empty: "
        "none.",
    )
    reload_spread_s: int = live(
        "VPC_IPAMD_RELOAD_JITTER_SECONDS",
        integer(0, 3600),
        60,
        "Seconds over which the nodes of a fleet spread the reading of a changed settings file; SIGHUP reads it at once.",
    )
    conflist_path: Path = setting(
        "VPC_IPAMD_CONFLIST_FILE",
        parse_conflist,
        CONFLIST_PATH,
        "File to which the conflist is written once the daemon is ready; it must end in .conflist.",
    )
    cni_bin_dir: Path = setting(
        "VPC_IPAMD_CNI_BIN_DIR", parse_path, CNI_BIN_DIR, "The node's directory of CNI plugins, where the runtime looks for them."
    )
    reference_plugins: Path = setting(
        "VPC_IPAMD_REFERENCE_PLUGINS_DIR",
        parse_path,
        REFERENCE_PLUGINS,
        "Directory of the plugins that come with the image (loopback, portmap, bandwidth, tuning). Each is copied into the node's "
        "plugin directory if it is missing there. If this directory does not exist, nothing is copied.",
    )
    portmap: bool = setting(
        "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN", parse_bool, False, "Chain the portmap plugin, for hostPort.", is_kept_by_pods=True
    )
    bandwidth: bool = setting("ENABLE_BANDWIDTH_PLUGIN", parse_bool, False, "Chain the bandwidth plugin.", is_kept_by_pods=True)
    pod_ipv6_disabled: bool = setting(
        "DISABLE_POD_V6",
        parse_bool,
        False,
        "Turn IPv6 off inside IPv4 pods: the tuning plugin is chained with net.ipv6.conf.{all,default,lo}.disable_ipv6=1.",
        is_kept_by_pods=True,
    )
    chained_plugins: str = setting(
        "VPC_IPAMD_CHAINED_PLUGINS",
        parse_plugins,
        "",
        'JSON list of plugin configurations to chain last, as [{"type": "tuning"}].',
        is_kept_by_pods=True,
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
    max_concurrent_rpcs: int = setting(
        "VPC_IPAMD_MAX_CONCURRENT_REQUESTS", integer(4, 1024), 256, "CNI requests handled at once."
    )
    history_dir: str = setting(
        "VPC_IPAMD_HISTORY_DIR",
        or_off(parse_path_text),
        HISTORY_DIR,
        "Directory on the node's disk for the history of `ipamctl history`, which survives reboots; 'off': no history is kept.",
    )
    history_days: int = setting("VPC_IPAMD_HISTORY_DAYS", integer(1, 365), 7, "Days for which the history is kept.")
    history_bytes: int = setting(
        "VPC_IPAMD_HISTORY_MAX_BYTES",
        integer(4 << 20, 1 << 40),
        32 << 20,
        "Largest size of the history in bytes. The oldest records are removed first; a quarter is reserved for refused ADDs.",
    )
    drain_s: int = live(
        "VPC_IPAMD_DRAIN_SECONDS",
        integer(0, 60),
        0,
        "Seconds for which DEL is still served after the first SIGTERM. Later DELs are spooled by the plugin.",
    )

    @property
    def freeze_path(self) -> Path:
        """VPC_IPAMD_FREEZE_FILE, or `hooks/freeze` in the run directory if that is not set."""
        if self.freeze_file:
            return Path(self.freeze_file)
        return self.run_dir / "hooks" / "freeze"


OF_IPV4 = frozenset(
    {
        *(field.metadata["env"] for field in fields(PoolConfig) if field.name not in ("cooldown_s", "provisioning_disabled")),
        "AWS_VPC_K8S_CNI_EXTERNALSNAT",
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        "AWS_EXTERNAL_SERVICE_CIDRS",
        "AWS_VPC_CNI_NODE_PORT_SUPPORT",
        "AWS_VPC_K8S_CNI_CONNMARK",
        "ENABLE_V6_EGRESS",
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
        "VPC_IPAMD_SNAT_EXEMPT_PODS",
        "VPC_IPAMD_SNAT_FORCED_PODS",
    }
)
"""Variables of settings that have no meaning on a node with IPv6 pods. Such a node has one /80 on the primary ENI, so its pool has no
targets. The node has no SNAT. Every reply leaves by the primary ENI, so no connection needs a mark. The pods have IPv6 addresses of
the VPC already, so they need no egress to IPv6. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, StartNodeIPPoolManager;
pkg/networkutils/network.go, SetupHostNetwork."""


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

    def declared(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """Yield every setting in the order of declaration: topic, field, value."""
        for topic in fields(self):
            config = getattr(self, topic.name)
            for field in fields(config):
                yield topic.name, field, getattr(config, field.name)

    def kept_by_pods(self, names: Container[str]) -> tuple[str, ...]:
        """Return those of these variables whose change does not reach pods that run, in the order of declaration."""
        metadata = [field.metadata for _, field, _ in self.declared()]
        return tuple(meta["env"] for meta in metadata if meta["is_kept_by_pods"] and meta["env"] in names)

    def meaningless(self) -> tuple[str, ...]:
        """Return the variables of settings that differ from their default, but have no meaning for the address family of this node."""
        if not self.network.family.is_sparse:
            return ()
        names = []
        for config in (self.pool, self.network):
            for field in fields(config):
                env = field.metadata["env"]
                if env in OF_IPV4 and getattr(config, field.name) != field.default:
                    names.append(env)
        return tuple(names)

    def pool_settings(self, *, max_pods: int, supports_prefixes: bool = True) -> PoolSettings:
        """Make the planner's settings.

        Args:
            max_pods: the limit of the instance type, used if VPC_IPAMD_MAX_PODS is not set. The limit counts single addresses, so it
                is not a cap in prefix mode, where a slot holds 16 addresses. Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt, ENIs x
                (addresses per ENI - 1) + 2.
            supports_prefixes: whether the instance type supports prefixes.
        """
        pool = self.pool
        if self.network.family.is_sparse:
            return PoolSettings(
                warm_eni_target=0,
                prefix_delegation=True,
                leaves_trunk_place=self.network.pod_eni,
                is_provisioning_disabled=pool.provisioning_disabled,
                family=self.network.family,
                meaningless=self.meaningless(),
            )
        type_max_pods = max_pods
        if pool.prefix_delegation and supports_prefixes:
            type_max_pods = 0
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
            is_provisioning_disabled=pool.provisioning_disabled,
        )
