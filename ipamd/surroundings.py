"""Ask the daemon's surroundings once at start: metadata and then EC2 in one thread, the container runtime in another.

Each thread repeats its questions until they are answered; `ipamctl status` shows a stage for each source. A start waits only for
what it needs: with an intact datastore ADD is served without EC2 and runtime, and their answers are used when they come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.bootstrap import App
from ipamd.core.backoff import Backoff
from ipamd.core.health import Phase
from ipamd.eni.resync import LookReason
from ipamd.eni.sync_result import EniSyncResult
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, IpamError, NotServingError, RuntimeUnreachableError, log_text
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports import Runtime

CLOUD_PATIENCE_S = 0.5
"""How long a start with confirmed addresses waits for EC2. Ours, measured: with 3 s and EC2 hanging the first ADD came after 3.4 s,
over the budget of 2 s (docs/performance.md)."""

RUNTIME_PATIENCE_S = 1.0
"""How long a start with an intact datastore waits for CRI. Ours: a list takes milliseconds; a runtime that hangs must not make
every pod wait, and its answer only adds reasons to keep."""

RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
"""Pauses after an unanswered question, and after a start-up step that failed. Ours."""

LIMITS_RETRY_S = 300.0
"""Between two questions about an unknown instance type. Ours: as the adapter remembers a failure (`ipamd/cloud/ec2.py`)."""

log = logging.getLogger(__name__)


class Surroundings:
    """Asks cloud and runtime. `spawn` starts a named thread; the waits end with NotServingError when `stopped` is set."""

    def __init__(self, app: App, *, spawn: Callable[[str, Callable[[], None]], None], stopped: threading.Event) -> None:
        self._app = app
        self._health = app.context.health
        self._spawn = spawn
        self._stopped = stopped
        self._cloud_done = threading.Event()
        self._runtime_done = threading.Event()
        self._listed: dict[str, Sandbox] | None = None
        self._refusal = ""
        self._targets_lock = threading.RLock()

    def begin_cloud(self) -> None:
        """Start to ask metadata and EC2."""
        self._spawn("cloud", self._look_at_cloud)

    def await_cloud(self) -> None:
        """Wait for EC2's first answer: briefly if the datastore has addresses that EC2 confirmed, else as long as it takes."""
        has_addresses = any(eni.host_ready and eni.managed for eni in self._app.context.datastore.enis())
        self._wait_for(self._cloud_done, CLOUD_PATIENCE_S if has_addresses else None)

    def await_runtime(self) -> dict[str, Sandbox] | None:
        """Ask the runtime for its sandboxes and wait for the first complete list.

        Returns: sandboxes by ID; None if CRI is off, or if it does not answer and the datastore is intact. A datastore that is
            not intact cannot be rebuilt without the list: then the wait has no limit.
        """
        runtime = self._app.adapters.runtime
        if runtime is None:
            self._health.set_condition("cri", "CRI is off: nothing is reaped")
            return None
        self._spawn("runtime-look", lambda: self._look_at_runtime(runtime))
        self._wait_for(self._runtime_done, RUNTIME_PATIENCE_S if self._app.adapters.opened.report.is_intact else None)
        return self._listed

    def _look_at_cloud(self) -> None:
        """Thread body: metadata, then EC2, until both have answered once."""
        backoff = Backoff(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while not self._stopped.is_set():
            try:
                self._ask_cloud()
                return
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                pause_s, level = backoff.next_s(), logging.WARNING if log_text(error) != self._refusal else logging.DEBUG
                self._refusal = log_text(error)
                self._health.record_error("cloud", error)
                self._health.set_condition("ec2", f"EC2: {self._refusal}; the pool cannot grow")
                self._tell(f"{self._refusal}; asked again within {RETRY_MAX_S:.0f} s")
                log.log(level, "cloud is asked again in %.1f s: %s", pause_s, self._refusal)
            self._stopped.wait(pause_s)

    def _ask_cloud(self) -> None:
        app, health = self._app, self._health
        with health.stage("metadata") as stage:
            stage.detail = self._tell_asking("instance metadata is being asked who this node is")
            identity = app.adapters.node_info.learn_identity()
            stage.detail = f"{identity.instance_id} ({identity.instance_type}) in {identity.availability_zone}"
            self._learn_notices()  # before the pool may grow
        with health.stage("ec2") as stage:
            stage.detail = self._tell_asking("EC2 is being asked for this node's ENIs")
            result = self._compare(identity)
            self._cloud_done.set()
            limits = app.adapters.ec2.instance_limits(identity.instance_type)
            stage.detail = f"{result}; limits from {limits.source}: {limits.eni_count} x {limits.ipv4_per_eni}"
        app.adapters.node_info.set_cloud(reachable=True, detail=f"last compared at start: {result}")
        health.clear_condition("ec2")
        self._set_up_node(identity)
        if health.phase is Phase.SERVING:  # EC2 was late: the start has continued without it
            for problem in app.pool.enis.routing.set_up_all():
                log.warning("host routing: %s", problem)
        self._set_limits(limits)
        if limits.source == "default":
            self._spawn("limits", lambda: self._learn_limits(identity))

    def _learn_notices(self) -> None:
        """Ask once whether EC2 is about to end this node; metadata's turns ask again."""
        try:
            self._app.context.freeze.follow_notices(self._app.adapters.metadata.notices())
        except CloudError as error:
            log.info("whether EC2 announces an end is not known yet: %s", log_text(error))

    def _compare(self, identity: InstanceIdentity) -> EniSyncResult:
        """Compare with EC2 once.

        A failure that is not EC2's does not keep the pool from growing if its ENIs are known.
        Raises: CloudError also if nothing is known of the primary ENI afterwards: an answer without it is none, and a pool that
            knows no ENI would create one.
        """
        try:
            result = self._app.pool.enis.sync_with_ec2(identity)
        except CloudError:
            raise
        except IpamError as error:
            if not self._knows_primary():
                raise
            # EC2 answered, and recording it failed: the pool goes on with the ENIs it knows, and its thread looks again.
            self._app.pool.look.request(LookReason.OTHER, "the comparison at start failed")
            result = EniSyncResult()
            result.keep(f"everything, because the answer could not be recorded: {log_text(error)}")
            return result
        if not self._knows_primary():
            raise CloudError(
                f"EC2's answer about {identity.instance_id} does not tell its primary ENI {identity.primary_eni_id}",
                details=f"{result.implausible or result}; nothing is concluded from it; if this lasts, compare with the EC2 console",
            )
        return result

    def _knows_primary(self) -> bool:
        return any(eni.is_primary for eni in self._app.context.datastore.enis())

    def renew_targets(self) -> None:
        """The pool's settings have changed: plan by them from now on."""
        with self._targets_lock:
            limits = self._app.pool.maintainer.limits
            if limits is not None:
                self._set_limits(limits)

    def _set_limits(self, limits: InstanceLimits) -> None:
        """Have the pool plan by these limits and the settings in force; whoever reads them last sets them last."""
        custom = self._app.adapters.custom_network
        is_primary_used = custom is None or custom.primary_carries_pods
        max_pods = limits.max_pods if is_primary_used else limits.max_pods_without_primary
        with self._targets_lock:
            settings = self._app.settings.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
            self._app.pool.maintainer.set_limits(limits, settings=settings)

    def _tell_asking(self, what: str) -> str:
        self._tell(f"{what}; the last answer was: {self._refusal}" if self._refusal else what)
        return what

    def _tell(self, detail: str) -> None:
        self._app.adapters.node_info.set_cloud(reachable=False, detail=detail)

    def _learn_limits(self, identity: InstanceIdentity) -> None:
        """Thread body: ask EC2 for the limits of an unknown instance type; the safe default is used until it answers."""
        app, health = self._app, self._health
        health.set_condition("limits", f"limits: those of {identity.instance_type} are not known, a safe default is used")
        while not self._stopped.wait(LIMITS_RETRY_S):
            limits = app.adapters.ec2.instance_limits(identity.instance_type)
            if limits.source != "default":
                self._set_limits(limits)
                health.clear_condition("limits")
                return

    def _set_up_node(self, identity: InstanceIdentity) -> None:
        """Set up SNAT and marks; sandboxes get addresses without them, and the host network reconciler tries again."""
        try:
            self._app.reconcile.host_network.set_up_node(identity)
        except IpamError as error:
            self._health.record_error("node routing", error)
            self._health.set_condition("node routing", f"node routing: {log_text(error)}")
            log.error("the node's own routing is not complete and is tried again: %s", log_text(error))

    def _look_at_runtime(self, runtime: Runtime) -> None:
        """Thread body: ask for the runtime's version and a complete list, until both were answered once."""
        backoff = Backoff(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while not self._stopped.is_set():
            with self._health.stage("cri") as stage:
                try:
                    self._app.adapters.node_info.set_runtime(runtime.info())
                    self._listed = {sandbox.container_id: sandbox for sandbox in runtime.sandboxes()}
                    stage.detail = counted(len(self._listed), "sandbox")
                    self._runtime_done.set()
                    return
                except RuntimeUnreachableError as error:
                    stage.degrade(log_text(error))
                    self._health.set_condition("cri", f"CRI: {log_text(error)}; nothing is reaped")
            self._stopped.wait(backoff.next_s())

    def _wait_for(self, done: threading.Event, patience_s: float | None) -> None:
        """Wait for the answer to a thread's questions; `patience_s` None: without limit. Raises: NotServingError."""
        if patience_s is not None:
            done.wait(patience_s)
            return
        while not done.wait(0.2):
            if self._stopped.is_set():
                raise NotServingError("vpc-ipamd is shutting down")
