"""The loop that asks instance metadata and EC2: first for the node's identity and ENIs, then for external changes.

The loop repeats the first questions until they are answered. `ipamctl status` shows a stage of the start for metadata, and one for
EC2. A start waits for the answers only if it must: with an intact datastore the daemon serves ADD before EC2 has answered. Afterwards
the loop calls `eni/external_changes.py` when that is due, and applies changed settings to the pool.
"""

from __future__ import annotations

import logging

from ipamd.core.backoffs import EC2, NODE, soonest_s
from ipamd.core.health import Phase
from ipamd.core.loop import Loop
from ipamd.eni.differences import CloudDifference, Contradiction
from ipamd.eni.resync import EniSyncResult, ResyncReason
from ipamd.host.triggers import PassScope
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import METADATA, CloudError, IpamError, cause_of_error, log_text
from ipamd.model.source_rules import is_worthwhile
from ipamd.process.bootstrap import App
from ipamd.settings import Settings

LIMITS_RETRY_S = 300.0
"""Pause in seconds between two questions about an instance type whose limits are unknown. Ours: the adapter remembers a failure for
the same time (`ipamd/cloud/ec2.py`), so an earlier question would get no new answer."""

FIRST, LIMITS = ("first questions",), ("limits",)
"""Keys in `Backoffs` of the pauses after a failure of the first questions, and of the question about limits."""

UNKNOWN = "default"
"""Value of `InstanceLimits.source` if neither EC2 nor the built-in table has the instance type."""

log = logging.getLogger(__name__)


class CloudLoop:
    """Asks metadata and EC2.

    `is_node_set_up`: whether metadata has answered, and the node's own routing and SNAT are set up as the present settings demand.
    `is_answered`: whether EC2 has returned this node's ENIs once.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._health, self._backoffs = app.context.health, app.context.backoffs
        self._metadata_condition = self._health.claim(METADATA)
        self._ec2_condition = self._health.claim("ec2", part="first questions")
        self._refusal = ""
        self._limits: InstanceLimits | None = None
        self._planned_by: Settings | None = None
        self.is_node_set_up = False
        self.is_answered = False
        self.loop = Loop("cloud", self.turn, health=self._health, clock=app.context.clock, changed=app.pool.resyncs.changed)
        app.current.follow(lambda now: now.pool, lambda _: self.loop.wake())

    def turn(self) -> float | None:
        """Ask the questions and apply the settings that are due.

        Returns: seconds until the next turn is due by the clock; None if the next turn comes only after a wake-up.
        """
        if self._limits is None:
            self._ask_if_due()
        elif self._limits.source == UNKNOWN and self._backoffs.is_due(LIMITS):
            self._set_limits(self._app.adapters.ec2.instance_limits(self._limits.instance_type))
        elif self._planned_by is not self._app.settings:
            self._set_limits(self._limits)  # the settings have changed
        pauses_s = [self._backoffs.next_s(*LIMITS)]
        if self._health.phase is Phase.SERVING:  # before SERVING the rows are not reconciled
            self._app.cloud.run_once()
            pauses_s.append(self._app.cloud.pause_s())
        if self._limits is None:
            pauses_s.append(self._backoffs.left_s(FIRST))
        return soonest_s(pauses_s)

    def _ask_if_due(self) -> None:
        """Ask the first questions, unless the pause after a failed try is running."""
        if not self._backoffs.is_due(FIRST):
            return
        condition, code = self._metadata_condition, ConditionCode.METADATA_UNANSWERED
        try:
            identity = self._ask_metadata()
            condition.report(None)
            condition, code = self._ec2_condition, ConditionCode.EC2_UNANSWERED
            self._ask_ec2(identity)
        except Exception as error:  # noqa: BLE001  # any failure: the turn goes on to external changes
            pause_s = max(round(self._backoffs.back_off(FIRST, NODE)), 1)
            self._refusal = log_text(error)
            cause = cause_of_error(error, is_advised=True)
            condition.report(problem(code, cause=cause, pause_s=pause_s), error=error)
            self._publish(f"{self._refusal}; asked again within {NODE.longest_s:.0f} s")

    def _ask_metadata(self) -> InstanceIdentity:
        """Ask instance metadata who this node is. Raises: any error; all first questions are repeated later then."""
        app = self._app
        with self._health.stage("metadata") as stage:
            stage.detail = self._publish_question("instance metadata is being asked who this node is")
            identity = app.adapters.node_info.learn_identity()
            stage.detail = f"{identity.instance_id} ({identity.instance_type}) in {identity.availability_zone}"
            problem = app.cloud.follow_notices()  # before the pool may grow; later turns ask metadata again
            if problem:
                log.info("cannot read whether EC2 announces the end of the instance error=%s", problem)
        return identity

    def _ask_ec2(self, identity: InstanceIdentity) -> None:
        """Set up the node's own routing, then ask EC2 for the node's ENIs and the limits of its type.

        Raises: any error; all first questions are repeated later then.
        """
        app, health = self._app, self._health
        app.host_network.set_up_node(identity)  # before EC2 is asked, because a start may go on without EC2's answer
        self.is_node_set_up = True
        with health.stage("ec2") as stage:
            stage.detail = self._publish_question("EC2 is being asked for this node's ENIs")
            result = self._compare(identity)
            self.is_answered = True
            limits = app.adapters.ec2.instance_limits(identity.instance_type)
            stage.detail = f"{result}; limits from {limits.source}: {limits.eni_count} x {limits.ipv4_per_eni}"
        app.adapters.node_info.cloud = True, str(result)
        self._ec2_condition.report(None)
        if health.phase is Phase.SERVING:  # EC2 was late, and the start has continued without its answer
            for failure in app.pool.enis.routing.set_up_all():
                log.warning("host routing is not in place error=%s", failure)
        self._set_limits(limits)

    def _compare(self, identity: InstanceIdentity) -> EniSyncResult:
        """Compare the records with EC2 once.

        If EC2's answer cannot be recorded, the pool may still grow as long as the primary ENI is recorded.
        Raises: CloudError if EC2 does not answer, or if the primary ENI is not recorded afterwards. An answer without the primary ENI
            is incomplete, and a pool without any ENI would create one. Another IpamError if the answer could not be recorded and the
            primary ENI is not recorded.
        """
        try:
            result = self._app.pool.enis.sync_with_ec2(identity)
        except CloudError:
            raise
        except IpamError as error:
            if not self._is_primary_recorded():
                raise
            # EC2 answered, but its answer could not be recorded. The pool uses the recorded ENIs, and its thread compares again.
            self._app.pool.resyncs.request(ResyncReason.OTHER, "the comparison at start failed")
            result = EniSyncResult()
            text = f"everything, because the answer could not be recorded: {log_text(error)}"
            result.add_contradiction(CloudDifference(Contradiction.NOT_RECORDED, identity.primary_eni_id, text))
            return result
        if not self._is_primary_recorded():
            raise CloudError(
                f"EC2's answer about {identity.instance_id} does not contain its primary ENI {identity.primary_eni_id}",
                details=f"{result.implausible or result}; nothing is concluded from it; if this lasts, compare with the EC2 console",
            )
        return result

    def _is_primary_recorded(self) -> bool:
        return any(eni.is_primary for eni in self._app.context.datastore.enis())

    def _set_limits(self, limits: InstanceLimits) -> None:
        """Apply the instance limits and the settings in force to the pool. If the type is unknown, EC2 is asked again later."""
        self._limits, self._planned_by = limits, self._app.settings
        custom = self._app.adapters.network_file.custom
        max_pods = limits.max_pods_without_primary
        if custom is None or custom.primary_carries_pods:
            max_pods = limits.max_pods
        settings = self._planned_by.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
        self._app.pool.maintainer.set_limits(limits, settings=settings)
        has_prefixes = settings.prefix_delegation and limits.supports_prefixes
        if self._app.adapters.hostnet.choose_source_tree(is_worthwhile(limits, has_prefixes=has_prefixes)):
            self._app.host_network.mark(PassScope.EVERYTHING)
        self._backoffs.clear(FIRST, LIMITS)
        unknown = None
        if limits.source == UNKNOWN:
            self._backoffs.put(LIMITS, in_s=LIMITS_RETRY_S, schedule=EC2)
            unknown = problem(ConditionCode.LIMITS_UNKNOWN, instance_type=limits.instance_type)
        self._health.report("limits", unknown)

    def _publish_question(self, question: str) -> str:
        """Show in `ipamctl status` that a question is being asked, with the last failure. Returns: the question."""
        if self._refusal:
            self._publish(f"{question}; the last answer was: {self._refusal}")
        else:
            self._publish(question)
        return question

    def _publish(self, detail: str) -> None:
        """Show in `ipamctl status` that EC2 has not answered, and why."""
        self._app.adapters.node_info.cloud = False, detail
