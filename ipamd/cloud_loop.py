"""The loop that asks metadata and EC2: first who this node is and what its ENIs are, then what others have changed.

The first questions are repeated until they are answered; `ipamctl status` shows a stage for each. A start waits for them only if it
must: with an intact datastore ADD is served without EC2, and the answer is used when it comes. From then on the loop keeps the time
of `eni/external_changes.py`, and has the pool planned by the settings in force.
"""

from __future__ import annotations

import logging

from ipamd.bootstrap import App
from ipamd.core.agenda import EC2, NODE, soonest_s
from ipamd.core.health import Phase
from ipamd.core.loop import Loop
from ipamd.eni.resync import EniSyncResult, ResyncReason
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, IpamError, log_text
from ipamd.settings import Settings

LIMITS_RETRY_S = 300.0
"""Between two questions about an unknown instance type. Ours: as the adapter remembers a failure (`ipamd/cloud/ec2.py`)."""

FIRST, LIMITS = ("first questions",), ("limits",)
"""Keys of the agenda."""

UNKNOWN = "default"
"""Source of limits that neither EC2 nor the table knows."""

log = logging.getLogger(__name__)


class CloudLoop:
    """Asks metadata and EC2. `is_answered`: EC2 has told this node's ENIs once."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._health, self._agenda = app.context.health, app.context.agenda
        self._refusal = ""
        self._limits: InstanceLimits | None = None
        self._planned_by: Settings | None = None
        self.is_answered = False
        self.loop = Loop("cloud", self.turn, health=self._health, clock=app.context.clock, changed=app.pool.resyncs.changed)

    def turn(self) -> float | None:
        """Do what is due. Returns: seconds until something is due by the clock."""
        if self._limits is None and self._agenda.is_due(FIRST):
            try:
                self._ask()
            except Exception as error:  # noqa: BLE001  # whatever it is, others' changes are looked for all the same
                self._agenda.put_off(FIRST, NODE)
                self._refusal = log_text(error)
                self._health.report("ec2", f"EC2: {self._refusal}; the pool cannot grow", error=error)
                self._tell(f"{self._refusal}; asked again within {NODE.longest_s:.0f} s")
        elif self._limits and self._limits.source == UNKNOWN and self._agenda.is_due(LIMITS):
            self._set_limits(self._app.adapters.ec2.instance_limits(self._limits.instance_type))
        elif self._limits and self._planned_by is not self._app.settings:
            self._set_limits(self._limits)  # plan by settings that have changed
        is_serving = self._health.phase is Phase.SERVING  # before, the start has not said yet who has which address
        if is_serving:
            self._app.cloud.run_once()
        first_s = None if self._limits else self._agenda.left_s(FIRST)
        return soonest_s([self._app.cloud.pause_s() if is_serving else None, first_s, self._agenda.next_s(*LIMITS)])

    def _ask(self) -> None:
        app, health = self._app, self._health
        with health.stage("metadata") as stage:
            stage.detail = self._tell_asking("instance metadata is being asked who this node is")
            identity = app.adapters.node_info.learn_identity()
            stage.detail = f"{identity.instance_id} ({identity.instance_type}) in {identity.availability_zone}"
            if problem := app.cloud.follow_notices():  # before the pool may grow; metadata's turns ask again
                log.info("whether EC2 announces an end is not known yet error=%s", problem)
        try:  # before EC2 is asked: a start goes on without its answer. Sandboxes get addresses without it; the next pass tries again
            app.adapters.hostnet.setup_node(identity)
        except IpamError as error:
            health.report("node routing", f"node routing: {log_text(error)}", error=error)
        with health.stage("ec2") as stage:
            stage.detail = self._tell_asking("EC2 is being asked for this node's ENIs")
            result = self._compare(identity)
            self.is_answered = True
            limits = app.adapters.ec2.instance_limits(identity.instance_type)
            stage.detail = f"{result}; limits from {limits.source}: {limits.eni_count} x {limits.ipv4_per_eni}"
        app.adapters.node_info.cloud = True, f"last compared at start: {result}"
        health.report("ec2", "")
        if health.phase is Phase.SERVING:  # EC2 was late: the start has continued without it
            for problem in app.pool.enis.routing.set_up_all():
                log.warning("host routing is not in place error=%s", problem)
        self._set_limits(limits)

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
            self._app.pool.resyncs.request(ResyncReason.OTHER, "the comparison at start failed")
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

    def _set_limits(self, limits: InstanceLimits) -> None:
        """Have the pool plan by these limits and the settings in force; those of an unknown type are asked for again."""
        self._limits, self._planned_by = limits, self._app.settings
        custom = self._app.adapters.custom_network
        is_primary_used = custom is None or custom.primary_carries_pods
        max_pods = limits.max_pods if is_primary_used else limits.max_pods_without_primary
        settings = self._planned_by.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
        self._app.pool.maintainer.set_limits(limits, settings=settings)
        self._agenda.clear(FIRST, LIMITS)
        unknown = ""
        if limits.source == UNKNOWN:
            self._agenda.put(LIMITS, in_s=LIMITS_RETRY_S, schedule=EC2)
            unknown = f"limits: those of {limits.instance_type} are not known, a safe default is used"
        self._health.report("limits", unknown)

    def _tell_asking(self, what: str) -> str:
        self._tell(f"{what}; the last answer was: {self._refusal}" if self._refusal else what)
        return what

    def _tell(self, detail: str) -> None:
        self._app.adapters.node_info.cloud = False, detail
