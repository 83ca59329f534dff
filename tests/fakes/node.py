"""A whole node of fakes around a real datastore: what service tests and stories are told on."""

from __future__ import annotations

import shutil
from ipaddress import IPv4Address
from pathlib import Path

from ipamd.datastore.open import open_datastore
from ipamd.datastore.spool import FileSpool
from ipamd.model.attachment import Attachment
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.plan import PoolSettings
from ipamd.model.request import AttachRequest, SandboxNames
from ipamd.service.cooldown import Cooldown
from ipamd.service.demand import Demand
from ipamd.service.health import Health, Phase
from ipamd.service.locks import KeyLocks
from ipamd.service.pool.enis import EniService
from ipamd.service.pool.maintainer import PoolMaintainer
from ipamd.service.pool.provisioner import EniProvisioner
from ipamd.service.reconcile.host_network import HostNetworkReconciler
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.reconcile.runtime import LIST_INTERVAL_S, RuntimeReconciler
from ipamd.service.reconcile.startup import StartupReconciler
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox.attach import AttachPolicy, AttachService
from ipamd.service.sandbox.check import CheckService
from ipamd.service.sandbox.detach import DetachService
from ipamd.service.sandbox.gc import GcService
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import IDENTITY, FakeEc2, FakeMetadata
from tests.fakes.kernel import FakeHostNetwork, FakeWiring
from tests.fakes.runtime import FakeRuntime

BOOT_ID = "11111111-2222-3333-4444-555555555555"
COOLDOWN_S = 30.0


class FakeNode:
    """Kernel, EC2 and runtime outlive `restart`, the process does not."""

    def __init__(self, run_dir: Path, *, settings: PoolSettings | None = None, ec2: FakeEc2 | None = None) -> None:
        self.run_dir = run_dir
        self.settings = settings or PoolSettings()
        self.clock = FakeClock()
        self.wiring = FakeWiring()
        self.hostnet = FakeHostNetwork()
        self.ec2 = ec2 or FakeEc2()
        self.runtime = FakeRuntime()
        self.has_run_before = False
        self.start()

    def start(self) -> None:
        """Make the process's part anew over what is on disk, in the kernel and at EC2."""
        self.opened = open_datastore(self.run_dir / "state.db", boot_id=BOOT_ID, clock=self.clock)
        self.datastore = self.opened.datastore
        self.spool = FileSpool(self.run_dir, clock=self.clock)
        clock, datastore, wiring = self.clock, self.datastore, self.wiring
        self.health = Health(clock, ("datastore",))
        self.demand, self.locks = Demand(), KeyLocks(clock)
        self.cooldown = Cooldown(
            datastore=datastore,
            wiring=wiring,
            demand=self.demand,
            health=self.health,
            clock=clock,
            period_s=COOLDOWN_S,
        )
        self.detacher = DetachService(
            datastore=datastore, wiring=wiring, cooldown=self.cooldown, locks=self.locks, clock=clock, veth_prefix="eni"
        )
        self.attacher = AttachService(
            datastore=datastore,
            wiring=wiring,
            cooldown=self.cooldown,
            demand=self.demand,
            health=self.health,
            locks=self.locks,
            clock=clock,
            policy=AttachPolicy(veth_prefix="eni", mtu=9001, waiting_limit=48),
        )
        self.quarantine = QuarantineService(
            datastore=datastore,
            wiring=wiring,
            cooldown=self.cooldown,
            locks=self.locks,
            clock=clock,
            mtu=9001,
            list_interval_s=LIST_INTERVAL_S,
        )
        self.checker = CheckService(datastore=datastore, wiring=wiring, locks=self.locks)
        self.collector = GcService(datastore=datastore, runtime=self.runtime, detach=self.detacher, clock=clock)
        self.enis = EniService(
            datastore=datastore,
            ec2=self.ec2,
            hostnet=self.hostnet,
            wiring=wiring,
            cooldown=self.cooldown,
            is_datastore_lost=self.has_run_before and not self.opened.report.is_intact,
            demand=self.demand,
            health=self.health,
            clock=clock,
        )
        self.provisioner = EniProvisioner(
            datastore=datastore, ec2=self.ec2, enis=self.enis, clock=clock, cluster_name="test", additional_tags=()
        )
        self.pool = PoolMaintainer(
            datastore=datastore,
            provisioner=self.provisioner,
            demand=self.demand,
            health=self.health,
            clock=clock,
            settings=self.settings,
        )
        self.restore = StartupReconciler(
            datastore=datastore,
            wiring=wiring,
            cooldown=self.cooldown,
            spool=self.spool,
            runtime=self.runtime,
            detach=self.detacher,
            quarantine=self.quarantine,
            clock=clock,
            is_datastore_intact=self.opened.report.is_intact,
        )
        self.runtime_reconciler = RuntimeReconciler(
            runtime=self.runtime,
            datastore=datastore,
            wiring=wiring,
            detach=self.detacher,
            quarantine=self.quarantine,
            health=self.health,
            clock=clock,
        )
        self.host_reconciler = HostNetworkReconciler(
            datastore=datastore,
            hostnet=self.hostnet,
            metadata=FakeMetadata(),
            wiring=wiring,
            quarantine=self.quarantine,
            enis=self.enis,
            locks=self.locks,
            health=self.health,
            clock=clock,
        )

    def bring_up(self) -> None:
        """What start-up does, in its order, in one thread."""
        self.provisioner.set_identity(IDENTITY)
        self.enis.sync_with_ec2(IDENTITY)
        listed = self.restore.listed_sandboxes()
        self.restore.reconcile_kernel(self.wiring.survey(), listed)
        assert self.enis.set_up_eni_routings() == []
        self.host_reconciler.set_identity(IDENTITY)
        self.pool.set_limits(self.ec2.limits, settings=self.settings)
        self.health.enter(Phase.SERVING)
        self.pool.cycle()

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

    def request(self, name: str, *, netns: str = "", config: str = "conf") -> AttachRequest:
        """An ADD for sandbox `name`, whose namespace is made if it is not there."""
        path = netns or f"/run/netns/{name}"
        if path not in self.wiring.netns:
            self.wiring.make_netns(path)
        return AttachRequest(self.key(name), path, "vpc-ipamd", "1.0.0", config, SandboxNames("default", name, "uid"))

    def add(self, name: str, *, deadline_s: float = 60.0, netns: str = "", config: str = "conf") -> Attachment:
        """ADD."""
        return self.attacher.attach_sandbox(
            self.request(name, netns=netns, config=config),
            deadline=Deadline.after(self.clock, deadline_s),
            steps=Steps(self.clock),
        )

    def delete(self, name: str) -> bool:
        """DEL."""
        return self.detacher.detach_sandbox(
            self.key(name), deadline=Deadline.after(self.clock, 30.0), steps=Steps(self.clock), reason="DEL"
        )

    def cool(self) -> None:
        """Let every link be swept and every address cool."""
        self.cooldown.sweep()
        self.clock.advance(COOLDOWN_S + 1)
        self.cooldown.release_cooled()

    def assert_sound(self) -> None:
        """I1-I6 as far as one node's values can show: datastore, kernel and EC2 agree."""
        assert self.datastore.audit() == []
        attachments = self.datastore.attachments()
        addresses: list[IPv4Address] = [attachment.address for attachment in attachments]
        assert len(set(addresses)) == len(addresses), "I1: one address, one attachment"
        on_enis = {a: e.eni_id for e in self.ec2.enis.values() for a in e.secondary_addresses}
        on_enis |= {a: e.eni_id for e in self.ec2.enis.values() for p in e.prefixes for a in p}
        for attachment in attachments:
            assert on_enis.get(attachment.address) == attachment.eni_id, "I7: assigned addresses are on their ENI at EC2"
        primaries = {eni.primary_address for eni in self.ec2.enis.values()}
        assert not primaries & {row.address for row in self.datastore.addresses()}, "I6: primary addresses are not ours to give"
