"""Connect ports and adapters: the only module that knows which class implements which port."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from ipamd import failpoints
from ipamd.cloud.child import Ec2Child, Process
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.datastore.open import OpenedDatastore, current_boot_id, open_datastore, set_aside
from ipamd.datastore.spool import Spool
from ipamd.history import HistoryWriter, boot_of
from ipamd.kernel import ruleset
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.routing import HostLooker
from ipamd.kernel.wiring import KernelWiring
from ipamd.migration.aws_node import FileAwsNode
from ipamd.model.errors import DatastoreError, SettingsError
from ipamd.model.record import dataclass, field
from ipamd.model.subnets import CustomNetwork, parse
from ipamd.node_info import NodeInfo
from ipamd.ports import (
    AwsNode,
    Clock,
    Datastore,
    Ec2,
    Failpoint,
    History,
    HostNetwork,
    Metadata,
    NoHistory,
    PodFactsSource,
    PolicyAgent,
    Runtime,
    VlanLinks,
    Wiring,
    no_failpoint,
)
from ipamd.report.past import held
from ipamd.runtime.cri import CriRuntime
from ipamd.settings import CurrentSettings, Settings, SubnetsConfig
from ipamd.settings.fields import FROM_KUBELET, HISTORY_OFF
from ipamd.settings.settings_file import SIZE_MAX, content_of

STAGES = (
    "datastore",
    "rpc",
    "metadata",
    "ec2",
    "cri",
    "spool",
    "kernel",
    "host-routing",
    "serve",
    "first-address",
    "plugins",
    "conflist",
)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world behind its ports, and the datastore as it was found.

    `runtime` is None if CRI is off. `custom_network`: custom networking's file, None if it is off. `has_run_before`: a daemon has
    served this run directory since the machine booted. `boot_id`: of this boot, "" if it is not known. `history_writer` writes it,
    and logs who gets an address. `is_overtaken`: amazon-vpc-cni-k8s gave out addresses after our rows were written, so they were
    set aside. `policy_agent`, `pod_facts`: None if no setting asks for it.
    """

    clock: Clock
    health: Health
    opened: OpenedDatastore
    wiring: Wiring
    hostnet: HostNetwork
    metadata: Metadata
    node_info: NodeInfo
    ec2: Ec2
    runtime: Runtime | None
    spool: Spool
    aws_node: AwsNode
    custom_network: CustomNetwork | None = None
    has_run_before: bool = False
    failpoint: Failpoint = no_failpoint
    boot_id: str = ""
    is_overtaken: bool = False
    history: History = field(default_factory=NoHistory)
    history_writer: HistoryWriter | None = None
    policy_agent: PolicyAgent | None = None
    pod_facts: PodFactsSource | None = None

    @property
    def is_datastore_lost(self) -> bool:
        """Rows of this boot were lost: there was a daemon, and it left none that can be relied on. Or before an earlier start: a
        sandbox that EC2 did not show then has no row, and what it had may be released while no daemon runs (I8)."""
        return self.opened.datastore.snapshot().was_lost or (self.has_run_before and not self.opened.report.is_intact)


def connect(
    current: CurrentSettings, *, has_run_before: bool, ec2_process: Process | None = None, vlan_links: VlanLinks | None = None
) -> Adapters:
    """Open the datastore and make the adapters; none of them has asked anything yet.

    `has_run_before`: a daemon has served this run directory since the machine booted. `ec2_process`: one that is started already.
    `vlan_links`: who makes these; by default the kernel does.
    Raises: DatastoreError, SettingsError.
    """
    settings, family = current.now, current.now.network.family
    daemon, custom_network = settings.daemon, load_network(settings.subnets)
    clock, boot_id = SystemClock(), current_boot_id()
    failpoint, health = failpoints.from_environment(daemon.run_dir), Health(clock, STAGES)
    path, conflist = daemon.run_dir / "state.db", daemon.conflist_path
    aws_node = FileAwsNode(settings.takeover, run_dir=daemon.run_dir, conflist=conflist, clock=clock, boot_id=boot_id)
    with health.stage("datastore") as stage:
        if is_overtaken := _is_overtaken(path, aws_node):
            _set_aside_overtaken(path, clock)
        opened = open_datastore(path, boot_id=boot_id, clock=clock, family=family, failpoint=failpoint)
        stage.detail = opened.report.detail
    host = HostNetns()
    metadata = ImdsMetadata(settings.cloud, clock=clock, family=family)
    node_info = NodeInfo(metadata, datastore=opened.datastore, clock=clock)
    history = _history(settings, opened, boot_id=boot_id, clock=clock, node_info=node_info)
    client = Ec2Child(settings.cloud, region=node_info.region, process=ec2_process, report=partial(health.report, "ec2 process"))
    hostnet = _host_network(host, current, opened, node_info)
    return Adapters(
        clock=clock,
        health=health,
        opened=opened,
        wiring=_wiring(host, settings, failpoint, opened.datastore, looker=hostnet.looker, vlan_links=vlan_links),
        hostnet=hostnet,
        metadata=metadata,
        node_info=node_info,
        ec2=BotoEc2(settings.cloud, region=node_info.region, vpc_id=node_info.vpc_id, clock=clock, client=client, family=family),
        runtime=None if settings.runtime.cri_socket == "off" else CriRuntime(socket=settings.runtime.cri_socket),
        spool=Spool(daemon.run_dir, clock=clock),
        custom_network=custom_network,
        has_run_before=has_run_before or is_overtaken,
        failpoint=failpoint,
        boot_id=boot_id,
        aws_node=aws_node,
        is_overtaken=is_overtaken,
        history=history,
        history_writer=history,
        policy_agent=_policy_agent(settings),
        pod_facts=_pod_facts(settings, opened.datastore),
    )


def _is_overtaken(path: Path, aws_node: AwsNode) -> bool:
    """Nothing is given by the rows of an exported node; and while its daemon serves they tell what both gave."""
    is_kept = aws_node.is_exporting or (path.exists() and bool(aws_node.listener()))
    return aws_node.has_run_since() and not is_kept


def _policy_agent(settings: Settings) -> PolicyAgent | None:
    if not settings.policy.is_on:
        return None
    from ipamd.policy.agent import GrpcPolicyAgent

    return GrpcPolicyAgent(socket=settings.policy.agent_socket)


def _pod_facts(settings: Settings, datastore: Datastore) -> PodFactsSource | None:
    if settings.network.branch_mode is None:
        return None
    from ipamd.branch.facts import AnnotationFacts, KubeletFacts

    facts = settings.pod_facts
    if facts.source == FROM_KUBELET:
        return KubeletFacts(socket=facts.kubelet_socket)
    return AnnotationFacts(is_policy_known=lambda: facts.refuses_unmarked or datastore.are_pods_marked())


def load_network(config: SubnetsConfig) -> CustomNetwork | None:
    """Read the file of custom networking if that is on: `ipamd/model/subnets.py` says what is in it.

    Returns: None if it is off.

    Raises: SettingsError naming every problem; a node without its file would put pods into the wrong subnet.
    """
    if not config.custom_networking:
        return None
    path = config.network_file
    try:
        content = content_of(str(path))
        if len(content) > SIZE_MAX:  # what is cut may end within a character
            raise SettingsError(f"{path} is larger than {SIZE_MAX} bytes")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG is true, and {path} cannot be read: {error}",
            details="mount the file there or set VPC_IPAMD_NETWORK_FILE; `ipamctl convert-eniconfig` makes it of ENIConfig objects",
        ) from error
    return parse(text, source=str(path))


def _wiring(
    host: HostNetns,
    settings: Settings,
    failpoint: Failpoint,
    datastore: Datastore,
    *,
    looker: HostLooker,
    vlan_links: VlanLinks | None,
) -> KernelWiring:
    def kernel_failpoint(step: str) -> bool:
        failpoint("kernel." + "-".join(step.split()[:2]))
        return False

    return KernelWiring(
        host,
        veth_prefix=settings.network.veth_prefix,
        families=lambda: ruleset.families(settings.network, datastore.attachments()),
        failpoint=kernel_failpoint,
        is_strict=not settings.network.extra_sources,
        looker=looker,
        vlan_links=vlan_links,
    )


def _set_aside_overtaken(path: Path, clock: Clock) -> None:
    """Rows from before another software gave out the addresses would free or give what is no longer theirs (I1).

    Raises: DatastoreError.
    """
    try:
        kept = set_aside(path, why="overtaken", now=clock.now())
    except OSError as error:
        raise DatastoreError(f"{path} cannot be set aside: {error}", details="look at the run directory") from error
    former = f"the former ones are kept as {kept}" if kept is not None else "there were none"
    log.warning("amazon-vpc-cni-k8s has run here since our last change: the rows are made anew former=%s", former)


def _history(settings: Settings, opened: OpenedDatastore, *, boot_id: str, clock: Clock, node_info: NodeInfo) -> HistoryWriter:
    """The history that the settings ask for; it touches no disk yet."""
    daemon = settings.daemon
    return HistoryWriter(
        None if daemon.history_dir == HISTORY_OFF else Path(daemon.history_dir),
        days=daemon.history_days,
        bytes_max=daemon.history_bytes,
        boot=boot_of(boot_id, clock),
        clock=clock,
        held=lambda: held(opened.datastore, clock),
        ledger=opened.datastore.read_since,
        node=lambda: identity.instance_id if (identity := node_info.identity()) else "",
    )


def _host_network(host: HostNetns, current: CurrentSettings, opened: OpenedDatastore, node_info: NodeInfo) -> KernelHostNetwork:
    """The host's routing, which goes by the network's settings of the moment."""
    made = KernelHostNetwork(
        host,
        config=current.now.network,
        nft=Nftables(host),
        attachments=opened.datastore.attachments,
        prefixes=lambda: {
            row.prefix: row.eni_id
            for row in (opened.datastore.addresses() if current.now.network.family.is_sparse else ())
            if row.is_rest and row.prefix is not None
        },
    )
    current.follow(lambda now: now.network, lambda config: made.use(config, node_info.identity()))
    return made
