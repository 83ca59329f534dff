"""Connect ports and adapters: the only module that knows which class implements which port."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ipamd import failpoints, network_file
from ipamd.aws_node.node import FileAwsNode
from ipamd.clock import SystemClock
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.config import Settings
from ipamd.datastore.open import OpenedDatastore, current_boot_id, open_datastore
from ipamd.datastore.set_aside import set_aside
from ipamd.datastore.spool import FileSpool
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.custom_network import CustomNetwork
from ipamd.model.errors import DatastoreError
from ipamd.node_info import NodeInfo
from ipamd.ports import AwsNode, Clock, Ec2, Failpoint, HostNetwork, Metadata, Runtime, Spool, Wiring, no_failpoint
from ipamd.runtime.cri import CriRuntime
from ipamd.service.health import Health

STAGES = ("datastore", "rpc", "metadata", "ec2", "cri", "spool", "kernel", "host-routing", "serve", "first-address", "conflist")


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world behind its ports, and the datastore as it was found.

    `runtime` is None if CRI is off. `custom_network`: custom networking's file, None if it is off. `has_run_before`: a daemon has
    served this run directory since the machine booted. `boot_id`: of this boot, "" if it is not known. `is_overtaken`:
    amazon-vpc-cni-k8s gave out addresses after our rows were written, so they were set aside.
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
    custom_network: CustomNetwork | None = None
    has_run_before: bool = False
    failpoint: Failpoint = no_failpoint
    boot_id: str = ""
    aws_node: AwsNode | None = None
    is_overtaken: bool = False


def connect(settings: Settings, *, has_run_before: bool) -> Adapters:
    """Open the datastore and make the adapters; none of them has asked anything yet.

    Args:
        has_run_before: a daemon has served this run directory since the machine booted.

    Raises: DatastoreError, SettingsError.
    """
    custom_network = network_file.load(settings.subnets)
    clock = SystemClock()
    failpoint = failpoints.from_environment(settings.daemon.run_dir)
    health = Health(clock, STAGES)
    boot_id = current_boot_id()
    aws_node = FileAwsNode(settings.takeover, run_dir=settings.daemon.run_dir, conflist=settings.daemon.conflist_path)
    is_overtaken = aws_node.has_run_since()
    path = settings.daemon.run_dir / "state.db"
    with health.stage("datastore") as stage:
        if is_overtaken:
            _set_aside_overtaken(path, aws_node, clock)
        opened = open_datastore(path, boot_id=boot_id, clock=clock, failpoint=failpoint)
        stage.detail = opened.report.detail
    host = HostNetns()
    metadata = ImdsMetadata(settings.cloud, clock=clock)
    node_info = NodeInfo(metadata, clock=clock)

    return Adapters(
        clock=clock,
        health=health,
        opened=opened,
        wiring=_wiring(host, settings, failpoint),
        hostnet=KernelHostNetwork(
            host,
            config=settings.network,
            nft=Nftables(host),
            veth_names=lambda: [attachment.host_veth for attachment in opened.datastore.attachments()],
        ),
        metadata=metadata,
        node_info=node_info,
        ec2=BotoEc2(settings.cloud, region=node_info.region, vpc_id=node_info.vpc_id, clock=clock),
        runtime=None if settings.runtime.cri_socket == "off" else CriRuntime(socket=settings.runtime.cri_socket),
        spool=FileSpool(settings.daemon.run_dir, clock=clock),
        custom_network=custom_network,
        has_run_before=has_run_before or is_overtaken,
        failpoint=failpoint,
        boot_id=boot_id,
        aws_node=aws_node,
        is_overtaken=is_overtaken,
    )


def _wiring(host: HostNetns, settings: Settings, failpoint: Failpoint) -> KernelWiring:
    def kernel_failpoint(step: str) -> bool:
        failpoint("kernel." + "-".join(step.split()[:2]))
        return False

    is_strict = not settings.network.extra_source_cidrs
    return KernelWiring(host, veth_prefix=settings.network.veth_prefix, failpoint=kernel_failpoint, is_strict=is_strict)


def _set_aside_overtaken(path: Path, aws_node: FileAwsNode, clock: Clock) -> None:
    """Rows from before another software gave out the addresses would free or give what is no longer theirs (I1).

    Raises: DatastoreError, TakeoverError.
    """
    try:
        kept = set_aside(path, why="overtaken", now=clock.now())
    except OSError as error:
        raise DatastoreError(f"{path} cannot be set aside: {error}", details="look at the run directory") from error
    aws_node.end_export()
    former = f"the former ones are kept as {kept}" if kept is not None else "there were none"
    log.warning("amazon-vpc-cni-k8s has run here since our last change, if any: the rows are made anew; %s", former)
