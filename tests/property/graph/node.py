"""The whole daemon over fakes: `bootstrap.App` and `Lifecycle`, its threads in simulated time, one life after another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Health, Phase
from ipamd.model.attachment import Attachment, WiringSpec, pod_veth_name
from ipamd.model.aws_node import Allocation
from ipamd.model.cni_request import SandboxNames
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, IpamError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import LinkEvent, LinkEventKind
from ipamd.model.sandbox import RuntimeInfo
from ipamd.pb import introspection_pb2 as pb
from ipamd.process.adapters import STAGES, Adapters
from ipamd.process.lifecycle import Lifecycle
from ipamd.report.sources import CutOff
from ipamd.sandbox.legs import branch as _branch  # noqa: F401  # loaded late by the daemon, and only what is loaded waits in a run's time
from ipamd.settings import CloudConfig, DaemonConfig, NetworkConfig, PoolConfig, Settings, TakeoverConfig
from ipamd.settings.fields import POLICY_OFF
from tests.fakes.aws_node import OURS, THEIRS
from tests.fakes.node import FakeNode
from tests.fakes.runtime import FakeRuntime
from tests.property.graph.branches import Controller, RoughAgent, RoughPodFacts
from tests.property.graph.ec2 import RoughEc2
from tests.property.graph.world import Gate, Killed, World

YIELD_SHARE = 0.05
"""Of the points between two effects: so often another thread runs there."""

PLUGIN = """#!/bin/sh
echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}'
"""


IN_MEMORY = frozenset({"choose_source_tree", "has_source_tree"})
"""Methods of the host network that neither look at the node nor change it, so no death of the daemon lies at them."""


class CrioRuntime(FakeRuntime):
    """A runtime that needs no `loopback` plugin: two are there to be asked."""

    def info(self) -> RuntimeInfo:
        return replace(super().info(), name="cri-o")


class GraphNode(FakeNode):
    """`live` starts the first life; `crash_now` ends one, and the next begins by itself."""

    cooldown_s = 30
    looks_for_leaks = True

    def __init__(
        self,
        directory: Path,
        world: World,
        *,
        limits: InstanceLimits,
        pool: PoolConfig,
        seed: int,
        address_count: int,
        family: Family = IPV4,
        branch_mode: str = "",
    ) -> None:
        """`branch_mode`: pods may have branch ENIs, and a policy agent filters; "" without both."""
        self.world, self.directory = world, directory
        self.random = Random(f"node/{seed}")
        self.kill_in: int | None = None
        self.kill_at = ""
        self.kill_count = 0
        self.loses_datastore = False
        self.is_up = False
        self.is_metadata_silent = False
        self.trace: Callable[[str], None] = lambda text: None
        self.failpoints_seen: set[str] = set()
        first = directory / "run" / "life-0"
        for path in (directory / "bin", directory / "net.d", directory / "aws-node", first):
            path.mkdir(parents=True)
        for name in ("vpc-cni", "portmap"):  # without which no start ends
            (directory / "bin" / name).write_text(PLUGIN, encoding="ascii")
            (directory / "bin" / name).chmod(0o755)
        self.rough = RoughEc2(world, limits=limits, seed=seed, address_count=address_count, family=family)
        network = NetworkConfig(ipv4=not family.is_sparse, ipv6=family.is_sparse)
        mode = POLICY_OFF
        self.agent: RoughAgent | None = None
        if branch_mode:
            network = replace(network, pod_eni=True, pod_groups_mode=branch_mode, pod_veth_names=True)
            mode = "strict"
            self.controller = Controller(world, self.rough, seed=seed, family=family)
            self.told = RoughPodFacts(world, is_kubelet=self.random.random() < 0.5)
        super().__init__(
            first, ec2=self.rough, clock=world, network=network, shipped=self._settings(first, pool), policy_mode=mode
        )
        self.hostnet.egress_family = (IPV4 if family is IPV6 else IPV6) if seed % 2 else None

    def _settings(self, run_dir: Path, pool: PoolConfig) -> Settings:
        return Settings(
            pool=replace(pool, cooldown_s=self.cooldown_s),
            cloud=CloudConfig(cluster_name="test", leaked_eni_cleanup_disabled=not self.looks_for_leaks),
            daemon=DaemonConfig(
                run_dir=run_dir,
                conflist_path=self.directory / "net.d" / "10-vpc-ipamd.conflist",
                cni_bin_dir=self.directory / "bin",
                reference_plugins=self.directory / "none",
                max_concurrent_rpcs=64,
            ),
            takeover=TakeoverConfig(
                checkpoint=self.directory / "aws-node" / "ipam.json",
                daemon_socket=str(self.directory / "aws-node" / "ipamd.sock"),
            ),
        )

    def start(self) -> None:
        """Compose the graph; `live` runs it."""
        if not isinstance(self.runtime, CrioRuntime):
            self.runtime = CrioRuntime(has_events=True)
        self.shipped = replace(self.shipped, daemon=replace(self.shipped.daemon, run_dir=self.run_dir))
        super().start()
        self.failpoint = self._between_effects

    def connected(self, adapters: Adapters) -> Adapters:
        life = self.world.life
        if self.network.enforcing_mode:
            self.agent = self.agent or RoughAgent(self.world, self.wiring)
            adapters = replace(
                adapters,
                policy_agent=Gate(self.agent, life, lambda name: self._between_effects(f"agent.{name}")),
                pod_facts=Gate(self.told, life),
            )
        return replace(
            adapters,
            health=Health(self.world, STAGES),
            wiring=Gate(adapters.wiring, life, lambda name: self._between_effects(f"kernel.{name}")),
            adoption=Gate(adapters.adoption, life, lambda name: self._between_effects(f"kernel.{name}")),
            hostnet=Gate(adapters.hostnet, life, self._at_host_call),
            metadata=Gate(adapters.metadata, life, lambda _: self._metadata_answers()),
            ec2=Gate(adapters.ec2, life),
            runtime=Gate(adapters.runtime, life),
            aws_node=Gate(adapters.aws_node, life),
            is_overtaken=self._is_overtaken,
            history_writer=self.history,
        )

    def _at_host_call(self, name: str) -> None:
        if name not in IN_MEMORY:
            self._between_effects(f"host.{name}")

    def live(self) -> None:
        """Begin the life that was composed."""
        self.is_up = True
        lifecycle = Lifecycle(self.app, end=self._end)
        self.world.spawn(lifecycle.run, name="start-up")

    def revive(self) -> None:
        """Compose the next life and begin it."""
        self._is_overtaken = self._was_overtaken()
        self.has_run_before = True
        if self._is_overtaken:
            for path in self.run_dir.glob("state.db*"):
                path.unlink()
        self.start()
        self.live()

    _is_overtaken = False

    def _was_overtaken(self) -> bool:
        theirs = self.aws_node
        is_kept = theirs.is_exporting or bool(theirs.listener())
        return theirs.has_run_since() and not is_kept

    def crash_now(self, why: str) -> None:
        """kill -9: the disk of this instant is what the next life finds. The caller's thread ends if it is of this life."""
        self.kill_count += 1
        self.kill_in = None
        self.is_up = False
        self.trace(f"KILLED: {why}" + (", and the datastore is lost" if self.loses_datastore else ""))
        after = self.directory / "run" / f"life-{self.kill_count}"
        after.mkdir()
        for path in self.run_dir.glob("*"):
            if path.is_file() and not (self.loses_datastore and path.name.startswith("state.db")):
                shutil.copy2(path, after / path.name)
        if (self.run_dir / "spool").is_dir():
            shutil.copytree(self.run_dir / "spool", after / "spool")
        self.loses_datastore = False
        self.world.life.is_over = True
        former, former_dir, self.run_dir = self.datastore, self.run_dir, after
        self.world.at(self.world.monotonic(), lambda: self._bury(former, former_dir))
        self.world.at(self.world.monotonic() + self.random.uniform(0.2, 20.0), self.revive)

    def _bury(self, datastore: Any, former_dir: Path) -> None:
        self.world.kill()
        datastore.close()
        shutil.rmtree(former_dir, ignore_errors=True)

    def _end(self, reason: str) -> None:
        """The process exits on purpose."""
        self.crash_now(f"exit: {reason}")
        raise Killed

    def _between_effects(self, name: str) -> None:
        """A point between two effects: others may run here, and the process may die here."""
        if self.world.is_in_hub or name == "host.extra_family":  # from memory
            return
        if self.world.is_dead:
            raise Killed
        if not name.startswith(("kernel.survey", "host.links", "kernel.identify", "kernel.veth", "host.d", "host.is")):
            self.failpoints_seen.add(name)
            if self.kill_in is not None and name.startswith(self.kill_at):
                self.kill_in -= 1
                if self.kill_in <= 0:
                    self.crash_now(f"at {name}")
                    raise Killed
        if name != "host.host_events" and self.random.random() < YIELD_SHARE:
            self.world.sleep(self.random.choice((0.0, 0.0, 0.05, 1.0)))

    def _metadata_answers(self) -> None:
        if self.is_metadata_silent:
            raise CloudError("instance metadata does not answer")

    @property
    def is_serving(self) -> bool:
        """Whether ADD is served."""
        return self.is_up and self.app.context.health.phase is Phase.SERVING

    def forget_links(self) -> None:
        """The kernel tells of every link that went."""
        attached = {eni.mac for eni in self.ec2.attached()}
        for eni in self.ec2.enis.values():
            if eni.mac not in attached:
                self.hostnet.events.put(LinkEvent(LinkEventKind.GONE, eni.mac))

    def wire_theirs(self, name: str) -> IpAddress | None:
        """A pod of amazon-vpc-cni-k8s, before our first life: wired, listed, and in its file."""
        (primary,) = self.ec2.enis.values()
        used = {one.address for one in self.aws_node.told or ()}
        free = sorted(primary.secondary_addresses - used)
        for prefix in sorted(primary.prefixes)[:1] if self.network.ipv6 else ():  # as it gives them: from the first one up
            free = [prefix[place] for place in range(16) if prefix[place] not in used]
        if not free:
            return None
        veth = pod_veth_name("default", f"pod-{name}", prefix="eni")
        path = self.wiring.make_netns(f"/run/netns/{name}")
        self.wiring.foreign[veth] = WiringSpec(self.key(name), free[0], 254, veth, path, 9001, MacAddress("0a:58:00:00:00:01"))
        self.wiring.routes[free[0]] = veth
        self.wiring.rules[free[0]] = 254
        self.aws_node.told = [*(self.aws_node.told or ()), Allocation(self.key(name), free[0], "default", f"pod-{name}")]
        self.aws_node.conflists = {THEIRS, OURS}
        self.runtime.run(name)
        return free[0]

    def add_of(self, name: str, pod: str, *, deadline_s: float) -> Attachment:
        """ADD of a sandbox of a pod that has a name of its own."""
        request = replace(self.request(name), names=SandboxNames("default", pod, f"uid-{pod}"))
        deadline = Deadline.after(self.clock, deadline_s)
        return self.attacher.attach_sandbox(request, deadline=deadline, steps=StepTimer(self.clock))

    def audit(self) -> list[str]:
        """What the audit calls a violation, in the thread of a request, but for `without_network`."""
        reply = self.app.introspection.Audit(pb.AuditRequest())
        rows = [str(one) for one in self.datastore.audit()]
        return rows + [
            f"{one.severity} {one.subject}: {one.text}"
            for one in reply.findings
            if "violation" in str(one.severity).lower() and one.subject != "network"
        ]

    def without_network(self) -> list[CutOff]:
        """The living sandboxes of which the daemon says that they have none."""
        return self.app.introspection.sources.without_network()

    def offer(self, pool: PoolConfig) -> None:
        """Change the pool's settings while the daemon runs; the next life has them too."""
        pool = replace(pool, cooldown_s=self.cooldown_s)
        self.shipped = replace(self.shipped, pool=pool)
        if self.is_up:
            try:
                self.current.offer(replace(self.current.now, pool=pool))
            except IpamError as error:
                self.trace(f"settings refused: {error}")

    def finish(self) -> None:
        """End the last life and remove what it left."""
        if self.is_up:
            self.is_up = False
            self.world.kill()
            self.datastore.close()
