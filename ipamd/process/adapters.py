"""Connect ports and adapters.

Only this module names the class that implements each port, except for the two of `early_question.py`.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from ipamd import failpoints
from ipamd.cloud.child import Ec2Child
from ipamd.cloud.ec2 import BotoEc2
from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.datastore.open import OpenedDatastore, current_boot_id, open_datastore
from ipamd.datastore.set_aside import set_aside
from ipamd.datastore.spool import SpoolDirectory
from ipamd.history.writer import HistoryWriter, boot_of
from ipamd.kernel import ruleset
from ipamd.kernel.conntrack import KernelConnectionTracking
from ipamd.kernel.host_state import HostStateReader
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_record import CONFINEMENT_RECORD, TRANSLATION_RECORD, TableRecord
from ipamd.kernel.packet_path import KernelPacketPaths
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.kernel.traces import find_traces, survey_both_families
from ipamd.kernel.wiring import KernelWiring
from ipamd.migration.aws_node import FileAwsNode
from ipamd.model.conditions import ConditionCode, problem_of
from ipamd.model.errors import DatastoreError, IpamError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.network_file import NetworkFile
from ipamd.model.record import dataclass, field
from ipamd.node_info import NodeInfo
from ipamd.ports.aws_node import AwsNode
from ipamd.ports.cloud import Ec2, Metadata
from ipamd.ports.datastore import Datastore, Spool
from ipamd.ports.history import History, NoHistory
from ipamd.ports.kernel import HostNetwork, VlanLinks, Wiring
from ipamd.ports.leg_adoption import LegAdoption
from ipamd.ports.packet_path import PacketPaths
from ipamd.ports.pod_facts import PodFactsSource
from ipamd.ports.policy import PolicyAgent
from ipamd.ports.process import Clock, ConnectionTracking, Failpoint, NoConnections, no_failpoint
from ipamd.ports.runtime import Runtime
from ipamd.process.early_question import CloudAdapters, cloud_adapters
from ipamd.report.past import present_holders
from ipamd.runtime.cri import CriRuntime
from ipamd.settings import CurrentSettings, Settings, SubnetsConfig
from ipamd.settings.fields import FROM_KUBELET, HISTORY_OFF
from ipamd.settings.network_file import read_network_file

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
    """The adapters behind the ports, and the opened datastore.

    `runtime`, `policy_agent` and `pod_facts` are None if the settings do not need them.
    `network_file` is empty if the settings do not need it.
    `has_run_before`: whether a daemon has served this node since the node booted.
    `boot_id`: the ID of this boot, "" if it is not known.
    `history_writer`: the object that writes `history` to the disk.
    `is_overtaken`: whether amazon-vpc-cni-k8s assigned addresses after our rows were written, so that the rows were set aside.
    """

    clock: Clock
    health: Health
    opened: OpenedDatastore
    wiring: Wiring
    adoption: LegAdoption
    hostnet: HostNetwork
    paths: PacketPaths
    metadata: Metadata
    node_info: NodeInfo
    ec2: Ec2
    runtime: Runtime | None
    spool: Spool
    aws_node: AwsNode
    connections: ConnectionTracking = field(default_factory=NoConnections)
    network_file: NetworkFile = field(default_factory=NetworkFile)
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
        """Whether rows of this boot were lost: a daemon has run in this boot, and left no reliable rows.

        The result stays True for the rest of the boot. A running sandbox may have no row, because EC2 did not show its address at the
        start after the loss. If that sandbox ends, no row shows that its address was used, so every address that EC2 shows later must
        cool first (I8).
        """
        if self.opened.datastore.snapshot().was_lost:
            return True
        return not self.opened.report.is_intact and (self.has_run_before or self._has_wired_before)

    @property
    def _has_wired_before(self) -> bool:
        """Whether links of ours exist. They show that a daemon has run, and that its run directory was removed.

        True also if the kernel cannot be read, because then a daemon may have run.
        """
        try:
            return bool(self.wiring.survey().trace)
        except IpamError:
            return True


def connect(
    current: CurrentSettings, *, has_run_before: bool, cloud: CloudAdapters | None = None, vlan_links: VlanLinks | None = None
) -> Adapters:
    """Open the datastore and make the adapters. EC2, instance metadata and the runtime are not called yet.

    Args:
        has_run_before: whether the run directory shows that a daemon served this node in this boot. If it does not, traces in the
            kernel may still show it.
        cloud: the adapters that the caller has asked already, if it has.
        vlan_links: makes VLAN links if the kernel cannot make them (in the lab).
    Raises: DatastoreError, SettingsError.
    """
    settings, family = current.now, current.now.network.family
    daemon, clock, boot_id = settings.daemon, SystemClock(), current_boot_id()
    failpoint, health = failpoints.from_environment(daemon.run_dir), Health(clock, STAGES)
    aws_node = FileAwsNode(settings.takeover, run_dir=daemon.run_dir, conflist=daemon.conflist_path, clock=clock, boot_id=boot_id)
    opened, is_overtaken = _open(settings, aws_node, boot_id=boot_id, clock=clock, failpoint=failpoint, health=health)
    has_run_before = has_run_before or is_overtaken or _has_left_traces(settings.network.veth_prefix)
    host = HostNetns()
    cloud = cloud or cloud_adapters(settings)
    node_info = NodeInfo(cloud.metadata, datastore=opened.datastore, clock=clock)
    history = _history(settings, opened, boot_id=boot_id, clock=clock, node_info=node_info)
    client = _ec2_client(cloud.ec2_client, node_info, health)
    hostnet, wiring = _kernel(host, current, opened, node_info, failpoint=failpoint, vlan_links=vlan_links, boot_id=boot_id)
    return Adapters(
        clock=clock,
        health=health,
        opened=opened,
        wiring=wiring,
        adoption=wiring.adoption,
        hostnet=hostnet,
        paths=KernelPacketPaths(host, hostnet),
        connections=KernelConnectionTracking(host),
        metadata=cloud.metadata,
        node_info=node_info,
        ec2=BotoEc2(settings.cloud, region=node_info.region, vpc_id=node_info.vpc_id, clock=clock, client=client, family=family),
        runtime=_runtime(settings),
        spool=SpoolDirectory(daemon.run_dir, clock=clock),
        network_file=load_network(settings.subnets),
        has_run_before=has_run_before,
        failpoint=failpoint,
        boot_id=boot_id,
        aws_node=aws_node,
        is_overtaken=is_overtaken,
        history=history,
        history_writer=history,
        policy_agent=_policy_agent(settings),
        pod_facts=_pod_facts(settings, opened.datastore),
    )


def _kernel(
    host: HostNetns,
    current: CurrentSettings,
    opened: OpenedDatastore,
    node_info: NodeInfo,
    *,
    failpoint: Failpoint,
    vlan_links: VlanLinks | None,
    boot_id: str,
) -> tuple[KernelHostNetwork, KernelWiring]:
    """Make the adapters of the host's network and of the wiring.

    Both use the same `PodSnatSets`, which has the choices of SNAT by pod.
    """
    nft, settings = Nftables(host), current.now

    def table_record(name: str) -> TableRecord:
        return TableRecord(settings.daemon.run_dir / name, boot_id=boot_id)

    pod_snat = PodSnatSets(
        host,
        nft,
        is_on=settings.network.has_pod_snat,
        recorded=opened.datastore.attachments,
        record=table_record(TRANSLATION_RECORD),
    )
    hostnet = _host_network(
        host,
        current,
        opened,
        node_info,
        nft=nft,
        pod_snat=pod_snat,
        vlan_links=vlan_links,
        record=table_record(CONFINEMENT_RECORD),
    )
    wiring = _wiring(
        host,
        settings,
        failpoint,
        opened.datastore,
        state_reader=hostnet.state_reader,
        pod_snat=pod_snat,
        vlan_links=vlan_links,
    )
    return hostnet, wiring


def _runtime(settings: Settings) -> CriRuntime | None:
    if settings.runtime.cri_socket == "off":
        return None
    return CriRuntime(socket=settings.runtime.cri_socket)


def _ec2_client(client: Ec2Child, node_info: NodeInfo, health: Health) -> Ec2Child:
    """Let the client know the node's region, and report problems of its process."""

    def report(cause: str) -> None:
        health.report("ec2 process", problem_of(ConditionCode.EC2_PROCESS_LOST, cause))

    client.region, client.report = node_info.region, report
    return client


def _open(
    settings: Settings, aws_node: AwsNode, *, boot_id: str, clock: Clock, failpoint: Failpoint, health: Health
) -> tuple[OpenedDatastore, bool]:
    """Open the datastore.

    Returns: the datastore; and whether it is new because amazon-vpc-cni-k8s assigned addresses after our rows were written.
    """
    path = settings.daemon.run_dir / "state.db"
    with health.stage("datastore") as stage:
        is_overtaken = _is_overtaken(path, aws_node)
        if is_overtaken:
            _set_aside_overtaken(path, clock)
        opened = open_datastore(
            path,
            boot_id=boot_id,
            clock=clock,
            family=settings.network.family,
            failpoint=failpoint,
            survey_kernel=partial(survey_both_families, veth_prefix=settings.network.veth_prefix),
        )
        stage.detail = opened.report.detail
    return opened, is_overtaken


def _has_left_traces(veth_prefix: str) -> bool:
    """Whether the kernel has objects of ours. They show that a daemon has run in this boot, also if the run directory is new."""
    trace = find_traces(veth_prefix=veth_prefix)
    if trace:
        log.warning("new run directory, but a daemon has run in this boot trace=%s", trace)
    return bool(trace)


def _is_overtaken(path: Path, aws_node: AwsNode) -> bool:
    """Whether our rows must be set aside, because amazon-vpc-cni-k8s assigned addresses after they were written.

    The rows stay in use during an export, because our daemon assigns no address then. They also stay in use while the
    daemon of amazon-vpc-cni-k8s serves, because they show which addresses both daemons assigned.
    """
    if aws_node.is_exporting or (path.exists() and aws_node.listener()):
        return False
    return aws_node.has_run_since()


def _policy_agent(settings: Settings) -> PolicyAgent | None:
    if not settings.policy.is_on:
        return None
    from ipamd.policy.agent import GrpcPolicyAgent

    return GrpcPolicyAgent(socket=settings.policy.agent_socket)


def _pod_facts(settings: Settings, datastore: Datastore) -> PodFactsSource | None:
    if settings.network.enforcing_mode is None:
        return None
    from ipamd.sandbox.legs.pod_facts import AnnotationFacts, KubeletFacts

    facts = settings.pod_facts
    if facts.source == FROM_KUBELET:
        return KubeletFacts(socket=facts.kubelet_socket)
    return AnnotationFacts(is_policy_known=lambda: facts.refuses_unmarked or datastore.are_pods_marked())


def load_network(config: SubnetsConfig) -> NetworkFile:
    """Read the network file (`ipamd/model/network_file.py`), if a setting that is on needs it. Otherwise the result is empty.

    Raises: SettingsError with every problem. The error ends the start, because a node without the file would put pods into the wrong
        subnet.
    """
    if not config.reads_network_file:
        return NetworkFile()
    return read_network_file(config)


def _wiring(
    host: HostNetns,
    settings: Settings,
    failpoint: Failpoint,
    datastore: Datastore,
    *,
    state_reader: HostStateReader,
    pod_snat: PodSnatSets,
    vlan_links: VlanLinks | None,
) -> KernelWiring:
    def kernel_failpoint(step: str) -> bool:
        failpoint("kernel." + "-".join(step.split()[:2]))
        return False

    return KernelWiring(
        host,
        veth_prefix=settings.network.veth_prefix,
        families=lambda: ruleset.families(settings.network, datastore.attachments()),
        # None saves a call for every netlink message of every ADD.
        failpoint=None if failpoint is no_failpoint else kernel_failpoint,
        is_strict=not settings.network.extra_sources,
        state_reader=state_reader,
        vlan_links=vlan_links,
        pod_snat=pod_snat,
    )


def _set_aside_overtaken(path: Path, clock: Clock) -> None:
    """Rename the datastore, because amazon-vpc-cni-k8s has assigned addresses since our rows were written. With these rows our daemon
    would free or assign addresses that pods of amazon-vpc-cni-k8s use (I1).

    Raises: DatastoreError.
    """
    try:
        new_path = set_aside(path, reason="overtaken", now=clock.now())
    except OSError as error:
        raise failure(DatastoreError, FailureCode.FILE_NOT_SET_ASIDE, path=path, cause=error) from error
    log.warning("amazon-vpc-cni-k8s has run since our last change, starting without rows former_rows=%s", new_path or "none")


def _history(settings: Settings, opened: OpenedDatastore, *, boot_id: str, clock: Clock, node_info: NodeInfo) -> HistoryWriter:
    """Make the writer of the history, as the settings require. It does not access the disk yet."""
    daemon = settings.daemon
    directory = None
    if daemon.history_dir != HISTORY_OFF:
        directory = Path(daemon.history_dir)

    def instance_id() -> str:
        identity = node_info.identity()
        if identity is None:
            return ""
        return identity.instance_id

    return HistoryWriter(
        directory,
        days=daemon.history_days,
        bytes_max=daemon.history_bytes,
        boot=boot_of(boot_id, clock),
        clock=clock,
        current_tenures=lambda: present_holders(opened.datastore, clock),
        ledger=opened.datastore.read_since,
        node=instance_id,
    )


def _host_network(
    host: HostNetns,
    current: CurrentSettings,
    opened: OpenedDatastore,
    node_info: NodeInfo,
    *,
    nft: Nftables,
    pod_snat: PodSnatSets,
    vlan_links: VlanLinks | None,
    record: TableRecord,
) -> KernelHostNetwork:
    """Make the adapter of the host's network. It follows changes of the network settings."""

    def sparse_prefixes() -> dict[IpNetwork, EniId]:
        if not current.now.network.family.is_sparse:
            return {}
        return {row.prefix: row.eni_id for row in opened.datastore.addresses() if row.is_rest and row.prefix is not None}

    hostnet = KernelHostNetwork(
        host,
        config=current.now.network,
        nft=nft,
        attachments=opened.datastore.attachments,
        prefixes=sparse_prefixes,
        vlan_links=vlan_links,
        pod_snat=pod_snat,
        record=record,
    )
    identity = opened.datastore.identity()
    if identity is not None:
        hostnet.recall_primary_mac(identity.primary_mac)
    current.follow(lambda now: now.network, lambda config: hostnet.apply_settings(config, node_info.identity()))
    return hostnet
