"""A whole node of fakes around a real datastore, for service tests and stories."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Health, Phase
from ipamd.datastore.open import open_datastore
from ipamd.datastore.spool import SpoolDirectory
from ipamd.eni.resync import EniSyncResult
from ipamd.history.writer import Boot, HistoryWriter
from ipamd.model.attachment import Attachment
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import RuntimeUnreachableError
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.network_file import NetworkFile
from ipamd.model.pinned_address import PinnedList
from ipamd.model.pod_facts import GroupRequirement
from ipamd.model.pod_pools import NO_POOLS, PodPools
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.sandbox import Sandbox
from ipamd.model.subnets import CustomNetwork
from ipamd.node_info import NodeInfo
from ipamd.ports.process import Failpoint, no_failpoint
from ipamd.process.adapters import Adapters
from ipamd.process.bootstrap import App
from ipamd.report.past import present_holders
from ipamd.sandbox.gc import GcOutcome
from ipamd.settings import CloudConfig, CurrentSettings, DaemonConfig, NetworkConfig, Settings, SubnetsConfig
from ipamd.settings.fields import POLICY_OFF
from tests.fakes.aws_node import FakeAwsNode
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import IDENTITY, INSTANCE, FakeEc2
from tests.fakes.connections import FakeConnectionTracking
from tests.fakes.host_network import FakeHostNetwork
from tests.fakes.kernel import FakeWiring
from tests.fakes.metadata import FakeMetadata
from tests.fakes.packet_path import FakePacketPaths
from tests.fakes.pod_facts import FakePodFacts
from tests.fakes.policy_agent import FakePolicyAgent
from tests.fakes.runtime import FakeRuntime

BOOT_ID = "11111111-2222-3333-4444-555555555555"
COOLDOWN_S = 30.0
SETTINGS = Settings(cloud=CloudConfig(cluster_name="test"), daemon=DaemonConfig(max_concurrent_rpcs=64))
"""Defaults, but 48 ADDs at once; the pool's targets come with `FakeNode.settings`."""


class FakeNode:
    """Kernel, EC2, metadata, runtime and the other's daemon outlive `crash`, the process does not. `App` composes it, as it ships."""

    def __init__(
        self,
        run_dir: Path,
        *,
        settings: PoolSettings | None = None,
        ec2: FakeEc2 | None = None,
        network: NetworkConfig | None = None,
        subnets: SubnetsConfig | None = None,
        custom_network: CustomNetwork | None = None,
        pinned_list: PinnedList | None = None,
        pod_pools: PodPools = NO_POOLS,
        clock: FakeClock | None = None,
        shipped: Settings = SETTINGS,
        policy_mode: str = POLICY_OFF,
    ) -> None:
        self.run_dir, self.shipped, self.policy_mode = run_dir, shipped, policy_mode
        self.history_dir = run_dir / "history"
        """On the host's disk: it outlives `crash` and `reboot`. Nothing is written before `history.write()`."""
        self.network = network or NetworkConfig()
        self.subnets_config, self.custom_network = subnets or SubnetsConfig(), custom_network
        self.pinned_list: PinnedList = pinned_list or {}
        self.pod_pools = pod_pools
        self.settings = settings or (
            Settings(network=self.network).pool_settings(max_pods=0) if self.network.ipv6 else PoolSettings()
        )
        self.clock = clock or FakeClock()
        self.wiring = FakeWiring()
        self.ec2 = ec2 or FakeEc2(family=self.network.family)
        self.hostnet = FakeHostNetwork(lambda: {eni.mac for eni in self.ec2.attached()})
        self.paths = FakePacketPaths()
        self.connections = FakeConnectionTracking()
        self.metadata = FakeMetadata(self.ec2.attached)
        self.runtime = FakeRuntime()
        self.aws_node = FakeAwsNode(self.clock)
        self.policy_agent = FakePolicyAgent(self.clock)
        self.pod_facts = FakePodFacts(self.clock)
        self.has_run_before = False
        self.failpoint: Failpoint = no_failpoint
        self.start()

    def start(self) -> None:
        """Make the process's part anew over what is on disk, in the kernel and at EC2."""
        self.failpoint = no_failpoint
        self.opened = open_datastore(
            self.run_dir / "state.db",
            boot_id=BOOT_ID,
            clock=self.clock,
            family=self.network.family,
            failpoint=self._reached,
        )
        self.spool = SpoolDirectory(self.run_dir, clock=self.clock)
        self.history = HistoryWriter(
            self.history_dir,
            days=7,
            bytes_max=8 << 20,
            boot=Boot(BOOT_ID, self.clock.now()),
            clock=self.clock,
            current_tenures=lambda: present_holders(self.opened.datastore, self.clock),
            node=lambda: INSTANCE,
            ledger=lambda since: self.opened.datastore.read_since(since),
        )
        self.node_info = NodeInfo(self.metadata, datastore=self.opened.datastore, clock=self.clock)
        policy = replace(self.shipped.policy, mode=self.policy_mode)
        adapters = Adapters(
            clock=self.clock,
            health=Health(self.clock, ("datastore",)),
            opened=self.opened,
            wiring=self.wiring,
            adoption=self.wiring.adoption,
            hostnet=self.hostnet,
            paths=self.paths,
            connections=self.connections,
            metadata=self.metadata,
            node_info=self.node_info,
            ec2=self.ec2,
            runtime=self.runtime,
            spool=self.spool,
            network_file=NetworkFile(self.custom_network, self.pod_pools, self.pinned_list),
            has_run_before=self.has_run_before,
            failpoint=self._reached,
            history=self.history,
            aws_node=self.aws_node,
            policy_agent=self.policy_agent if policy.is_on else None,
            pod_facts=self.pod_facts if self.network.enforcing_mode else None,
        )
        self.current = CurrentSettings(replace(self.shipped, network=self.network, subnets=self.subnets_config, policy=policy))
        self.app = App(self.connected(adapters), self.current)
        self._name_parts()

    def connected(self, adapters: Adapters) -> Adapters:
        """What the graph gets; a test may put something in between."""
        return adapters

    def _reached(self, name: str) -> None:
        """Call the failpoint of the moment: tests set it while the process runs."""
        self.failpoint(name)

    def _name_parts(self) -> None:
        """Short names for the parts that tests handle."""
        app = self.app
        self.datastore, self.health = app.context.datastore, app.context.health
        self.demand, self.locks = app.context.demand, app.context.locks
        self.demand.coalesce = lambda timeout_s: None  # type: ignore[method-assign]  # no pause of real seconds
        self.cooldown = app.cooldown
        self.attacher, self.detacher = app.sandbox.attach, app.sandbox.detach
        self.checker, self.collector = app.sandbox.check, app.sandbox.gc
        self.enis, self.provisioner, self.pool = app.pool.enis, app.pool.provisioner, app.pool.maintainer
        self.startup, self.quarantine = app.startup, app.quarantine
        self.host_reconciler, self.cloud_reconciler = app.host_network, app.cloud
        assert app.runtime is not None
        self.runtime_reconciler = app.runtime
        self.judge = self.runtime_reconciler._judge

    def listed(self) -> dict[str, Sandbox] | None:
        """Sandboxes by ID as the runtime lists them, None while it is silent."""
        try:
            return {sandbox.container_id: sandbox for sandbox in self.runtime.sandboxes()}
        except RuntimeUnreachableError:
            return None

    def bring_up(self) -> None:
        """What start-up does, in its order, in one thread."""
        identity = self.node_info.learn_identity()
        self.enis.sync_with_ec2(identity)
        self.startup.reconcile_kernel(self.wiring.survey(), self.listed())
        assert self.enis.routing.set_up_all() == []
        self.hostnet.setup_node(identity)
        self.app.pool.subnets.mark_exclusions()
        self.pool.set_limits(self.ec2.limits, settings=self.settings)
        self.health.enter(Phase.SERVING)
        self.pool.cycle()

    def look_twice(self) -> EniSyncResult:
        """Another hand changed something at EC2: compare, as the loop that watches EC2 does, until nothing is in doubt.

        Long after our own calls. Returns: the result of the look that settled it.
        """
        self.clock.advance(RECENT_S)
        result = self.enis.sync_with_ec2(IDENTITY)
        for _ in range(20):
            if result.again_s is None:
                return result
            self.clock.advance(result.again_s)
            result = self.enis.sync_with_ec2(IDENTITY)
        raise AssertionError(f"EC2 stays in doubt: {result}")

    def crash(self, *, keep_datastore: bool = True) -> None:
        """kill -9: what is on disk at this instant is what the next process finds, memory is gone."""
        before, self.run_dir = self.run_dir, self.run_dir / "after-crash"
        self.run_dir.mkdir()
        for path in before.glob("*"):
            if path.is_file() and (keep_datastore or not path.name.startswith("state.db")):
                shutil.copy2(path, self.run_dir / path.name)
        if (before / "spool").is_dir():
            shutil.copytree(before / "spool", self.run_dir / "spool")
        self.datastore.close()
        self.has_run_before = True
        self.start()

    def key(self, name: str) -> AttachmentKey:
        """The key of sandbox `name`, interface eth0."""
        return parse_key(name, "eth0")

    def request(self, name: str, *, netns: str = "", config: str = "conf", pod: str | None = None) -> AttachRequest:
        """An ADD for sandbox `name`, whose namespace is made if it is not there. `pod`: its name; that of the sandbox for None."""
        path = netns or f"/run/netns/{name}"
        if path not in self.wiring.netns:
            self.wiring.make_netns(path)
        return AttachRequest(self.key(name), path, "vpc-ipamd", "1.0.0", config, self._names(name if pod is None else pod))

    @staticmethod
    def _names(pod: str) -> SandboxNames:
        return SandboxNames("default", pod, "uid") if pod else SandboxNames()

    def add(
        self, name: str, *, deadline_s: float = 60.0, netns: str = "", config: str = "conf", pod: str | None = None
    ) -> Attachment:
        """ADD."""
        return self.attacher.attach_sandbox(
            self.request(name, netns=netns, config=config, pod=pod),
            deadline=Deadline.after(self.clock, deadline_s),
            steps=StepTimer(self.clock),
        )

    def delete(self, name: str) -> bool:
        """DEL."""
        return self.detacher.detach_sandbox(
            self.key(name), deadline=Deadline.after(self.clock, 30.0), steps=StepTimer(self.clock), reason="DEL"
        )

    def collect(self, *valid: str) -> GcOutcome:
        """GC with a list of valid sandboxes."""
        return self.collector.collect(
            frozenset(map(self.key, valid)),
            network_name="vpc-ipamd",
            deadline=Deadline.after(self.clock, 30.0),
            steps=StepTimer(self.clock),
        )

    def vanish(self, attachment: Attachment) -> None:
        """A sandbox ends without a DEL: the runtime does not list it any more, and its namespace and its veth are gone."""
        self.runtime.listed.pop(attachment.key.container_id, None)
        del self.wiring.netns[attachment.netns]
        del self.wiring.wired[attachment.host_veth]

    def was_triggered(self) -> bool:
        """Whether the pool's loop was woken since this was asked last."""
        was = self.demand.triggered.is_set()
        self.demand.triggered.clear()
        return was

    def cool(self) -> None:
        """Let every link be swept and every address cool."""
        self.cooldown.sweep()
        self.clock.advance(COOLDOWN_S + 1)
        self.cooldown.free_cooled()

    def assert_sound(self) -> None:
        """I1-I6 as far as one node's values can show: datastore, kernel and EC2 agree."""
        assert self.datastore.audit() == []
        attachments = self.datastore.attachments()
        addresses: list[IpAddress] = [attachment.address for attachment in attachments]
        assert len(set(addresses)) == len(addresses), "I1: one address, one attachment"
        assert self.wiring.cut == [], "I2: what a live sandbox has is untouchable"
        for attachment in attachments:
            facts = self.pod_facts.of.get(attachment.key.container_id)
            if (branch := attachment.uplink) is not None:
                link = self.wiring.vlans[branch.vlan]
                assert (link.address, link.eni_id, link.is_dying) == (attachment.address, attachment.eni_id, False)
                continue
            assert facts is None or facts.requirement is not GroupRequirement.YES, (
                "I19: who must have a branch ENI has no address of the pool"
            )
            eni, one = self.ec2.enis.get(attachment.eni_id), attachment.address
            is_on = eni is not None and (one in eni.secondary_addresses or any(one in prefix for prefix in eni.prefixes))
            assert is_on, "I7: assigned addresses are on their ENI at EC2"
        primaries = {eni.primary_address for eni in self.ec2.enis.values()}
        assert not primaries & {row.address for row in self.datastore.addresses()}, "I6: primary addresses are not ours to give"
