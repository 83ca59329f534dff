"""Request filters for pods from the network policy agent, and make the agent forget the names of pods that are gone.

The agent remembers names of pods. It attaches no filter for a name that it remembers, so a second sandbox of that name would run
without a filter. If the request to forget a name comes after a new sandbox got the name, the agent removes the filter of the new
sandbox. So a row records each name that the agent may remember (a *policy pod*). The row is written before a filter is requested, and
erased when the agent has confirmed that it forgot the name. While a sandbox has the name, maintenance does not ask the agent to forget
it. If a name already has a row when a filter is requested for it, the agent must forget the name first. Nothing else is decided by the
name of a pod (I21, docs/policy.md).
Rejected: a request to forget with each DEL, which would make a DEL wait for an agent that may be away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from ipamd.core.backoffs import NODE
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.failure_isolation import FailureIsolation
from ipamd.model.attachment import POD_IFNAME, Attachment, name_key, pod_veth_name
from ipamd.model.cni_request import AttachRequest
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import AGENT, PolicyAgentRefusedError, PolicyAgentSilentError, log_text
from ipamd.model.ids import AttachmentKey, PodName

if TYPE_CHECKING:
    from ipamd.ports.datastore import UnitOfWork
    from ipamd.ports.policy import PolicyAgent

WAIT_S = 2.0
"""Longest time for all calls to the agent in one ADD or in one turn of maintenance. Source: amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/cni.go, npAgentConnTimeout, which bounds only the connection there."""

CLEANUP = "policy cleanup"
"""Subject of the condition about names of pods that the agent refused to forget, and back-off key of the attempts."""

FAILPOINTS = ("policy.owed", "policy.forgotten-first", "policy.enforced", "policy.due", "policy.forgotten")


class PolicyHook(Service):
    """Calls the agent. `enforce` and `record_pod` may be called from any thread, `clean_up` only from maintenance."""

    def __init__(self, context: ServiceContext, *, agent: PolicyAgent, mode: str, prefix: str, is_unsure: bool) -> None:
        """`is_unsure`: rows of this boot were lost, so the agent may remember names that have no row."""
        super().__init__(context)
        self.mode = mode
        self._agent = agent
        self._prefix = prefix
        self._is_unsure = is_unsure
        self._failures = FailureIsolation(context.health, work=CLEANUP)

    def enforce(self, request: AttachRequest, deadline: Deadline, *, interface_count: int = 1) -> None:
        """Make the agent filter a sandbox that is wired and not recorded yet. The caller holds the lock of the pod's name.

        The agent finds a sandbox only by its pod's name and its first interface. So nothing is requested for a sandbox without a pod,
        or for another interface. If the caller wires the sandbox after our reply (`is_wired_by_caller`), the caller requests the
        filter itself, and we only make the agent forget the name.
        Raises: PolicyAgentSilentError and PolicyAgentRefusedError, after which ADD must fail; DatastoreError.
        """
        pod = _pod(request.key, request.names.pod_namespace, request.names.pod_name)
        if pod is None:
            return
        is_recorded = pod in self._datastore.policy_pods()
        may_be_remembered = is_recorded or self._is_unsure or pod in _pods_of(self._datastore.attachments())
        if not is_recorded:
            with self._datastore.transaction() as uow:
                uow.record_policy_pod(pod)
            self._failpoint("policy.owed")
        until = Deadline.after(self._clock, min(WAIT_S, deadline.remaining_s()))
        with self._watching_agent():
            if may_be_remembered:
                self._agent.forget(pod, timeout_s=until.remaining_s(), is_patient=True)
                self._failpoint("policy.forgotten-first")
            if not request.is_wired_by_caller:
                self._agent.enforce(pod, mode=self.mode, timeout_s=until.remaining_s(), interface_count=interface_count)
        self._failpoint("policy.enforced")

    def record_pod(self, uow: UnitOfWork, attachment: Attachment) -> None:
        """Record that the agent may remember the pod of an attachment. `uow`: the transaction that ends the attachment."""
        pod = _pod_of(attachment)
        if pod is not None:
            uow.record_policy_pod(pod)

    def pending_cleanups(self) -> Mapping[PodName, datetime]:
        """Return the recorded names that no sandbox has any more, each with the time at which it was recorded."""
        policy_pods = self._datastore.policy_pods()
        if not policy_pods:
            return {}
        attached_pods = _pods_of(self._datastore.attachments())
        return {pod: since for pod, since in policy_pods.items() if pod not in attached_pods}

    def clean_up(self) -> None:
        """Make the agent forget the pending names. This takes at most `WAIT_S`, and no time if no agent listens.

        Raises: DatastoreError.
        """
        pending_cleanups = self.pending_cleanups()
        self._failures.retain(map(str, pending_cleanups))
        self._backoffs.retain(CLEANUP, pending_cleanups)
        until = Deadline.after(self._clock, WAIT_S)
        for pod in pending_cleanups:
            if not self._backoffs.is_due((AGENT,)) or not until.remaining_s():
                return
            if self._backoffs.is_due((CLEANUP, pod)):
                with self._failures.isolate(str(pod)):
                    self._forget(pod, until)

    def _forget(self, pod: PodName, until: Deadline) -> None:
        """Make the agent forget one name, if no sandbox has got it meanwhile. If the agent does not answer, all cleanups back off.

        Raises: PolicyAgentRefusedError; BusyError if an ADD of that name is in progress.
        """
        name = pod_veth_name(pod.namespace, pod.pod, prefix=self._prefix)
        with self._locks.hold(name_key(name), "FORGET", Deadline.after(self._clock, 0.0)):
            if pod not in self.pending_cleanups():
                return
            self._failpoint("policy.due")
            try:
                with self._watching_agent():
                    self._agent.forget(pod, timeout_s=until.remaining_s(), is_patient=False)
            except PolicyAgentSilentError:
                self._backoffs.back_off((AGENT,), NODE)
                return
            except PolicyAgentRefusedError:
                self._backoffs.back_off((CLEANUP, pod), NODE)
                raise
            self._failpoint("policy.forgotten")
            with self._datastore.transaction() as uow:
                uow.erase_policy_pod(pod)

    @contextmanager
    def _watching_agent(self) -> Iterator[None]:
        """Report a condition while the agent does not answer. A refusal counts as an answer."""
        try:
            yield
        except PolicyAgentSilentError as error:
            self._health.report(AGENT, problem(ConditionCode.AGENT_SILENT, cause=log_text(error)), error=error)
            raise
        except PolicyAgentRefusedError:
            self._answered()
            raise
        self._answered()

    def _answered(self) -> None:
        if AGENT in self._health.conditions_by_subject():
            self._backoffs.clear((AGENT,))
            self._health.report(AGENT, None)


def _pod(key: AttachmentKey, namespace: str, pod: str) -> PodName | None:
    if namespace and pod and key.ifname == POD_IFNAME:
        return PodName(namespace, pod)
    return None


def _pod_of(attachment: Attachment) -> PodName | None:
    return _pod(attachment.key, attachment.pod_namespace, attachment.pod_name)


def _pods_of(attachments: Iterable[Attachment]) -> frozenset[PodName]:
    return frozenset(pod for pod in map(_pod_of, attachments) if pod)
