"""Which pods' names the network policy agent may remember, and when it is told to forget one.

The agent remembers names: for one that it remembers it attaches nothing, so that a second sandbox of that name would run without a
filter; and told late to forget one it takes the filter of the sandbox that has the name now. So a row says which names it may know
(*owed*): written before it is asked for a filter, erased once it has answered that it forgot. While a sandbox has the name nothing is
sent; before a filter is asked for a name that is owed, it is told to forget that first. Only here does the name of a pod decide
anything (I21, docs/policy.md). Rejected: to send it with each DEL, which would make a DEL wait for somebody who may be away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from ipamd.core.agenda import NODE
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.loop import OddObjects
from ipamd.model.attachment import POD_IFNAME, Attachment, AttachRequest, name_key, pod_veth_name
from ipamd.model.errors import AGENT, PolicyAgentRefusedError, PolicyAgentSilentError, log_text
from ipamd.model.ids import AttachmentKey, PodName

if TYPE_CHECKING:
    from ipamd.ports import PolicyAgent, UnitOfWork

WAIT_S = 2.0
"""For the agent, in one ADD or one turn of maintenance. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/cni.go,
npAgentConnTimeout; there for the connection alone."""

OWED = "owed policy"
"""Subject of the condition of names that the agent refused to forget, and of their pauses."""

FAILPOINTS = ("policy.owed", "policy.forgotten-first", "policy.enforced", "policy.due", "policy.forgotten")


class PolicyHook(Service):
    """Asks the agent; `enforce` and `owe` from any thread, `settle` from maintenance."""

    def __init__(self, context: ServiceContext, *, agent: PolicyAgent, mode: str, prefix: str, is_unsure: bool) -> None:
        """`is_unsure`: rows of this boot were lost, so that the agent may know names that no row tells."""
        super().__init__(context)
        self.mode = mode
        self._agent = agent
        self._prefix = prefix
        self._is_unsure = is_unsure
        self._odd = OddObjects(context.health, work=OWED)

    def enforce(self, request: AttachRequest, deadline: Deadline) -> None:
        """Have the agent filter a sandbox that is wired and not recorded yet; the lock of its name is held.

        A sandbox without a pod's name, and a further interface of one, is none that the agent could find: nothing is asked. One that
        its caller wires after the reply has the caller ask; the name is prepared for that.
        Raises: PolicyAgentSilentError, PolicyAgentRefusedError: then the sandbox must not be promised; DatastoreError.
        """
        pod = _pod(request.key, request.names.pod_namespace, request.names.pod_name)
        if pod is None:
            return
        is_owed = pod in self._datastore.owed()
        is_known = is_owed or self._is_unsure or pod in _living(self._datastore.attachments())
        if not is_owed:
            with self._datastore.transaction() as uow:
                uow.owe(pod)
            self._failpoint("policy.owed")
        until = Deadline.after(self._clock, min(WAIT_S, deadline.remaining_s()))
        with self._asking():
            if is_known:
                self._agent.forget(pod, timeout_s=until.remaining_s(), is_patient=True)
                self._failpoint("policy.forgotten-first")
            if not request.is_wired_by_caller:
                self._agent.enforce(pod, mode=self.mode, timeout_s=until.remaining_s())
        self._failpoint("policy.enforced")

    def owe(self, uow: UnitOfWork, attachment: Attachment) -> None:
        """In the transaction that ends an attachment: the agent may know its name, whoever made it known. Costs a look at memory."""
        pod = _pod_of(attachment)
        if pod is not None:
            uow.owe(pod)

    def due(self) -> Mapping[PodName, datetime]:
        """The names that no sandbox has and that the agent has not confirmed to have forgotten, with since when it may know them."""
        owed = self._datastore.owed()
        living = _living(self._datastore.attachments()) if owed else frozenset()
        return {pod: since for pod, since in owed.items() if pod not in living}

    def settle(self) -> None:
        """Have the agent forget what is due, for at most `WAIT_S`; one that is away is not waited for. Raises: DatastoreError."""
        due = self.due()
        self._odd.keep_only(map(str, due))
        self._agenda.keep_only(OWED, due)
        until = Deadline.after(self._clock, WAIT_S)
        for pod in due:
            if not self._agenda.is_due((AGENT,)) or not until.remaining_s():
                return
            if self._agenda.is_due((OWED, pod)):
                with self._odd.skip(str(pod)):
                    self._forget(pod, until)

    def _forget(self, pod: PodName, until: Deadline) -> None:
        """Have one name forgotten, unless an ADD has it: that tells the agent itself. Raises: PolicyAgentRefusedError, BusyError."""
        name = pod_veth_name(pod.namespace, pod.pod, prefix=self._prefix)
        with self._locks.hold(name_key(name), "FORGET", Deadline.after(self._clock, 0.0)):
            if pod not in self.due():
                return
            self._failpoint("policy.due")
            try:
                with self._asking():
                    self._agent.forget(pod, timeout_s=until.remaining_s(), is_patient=False)
            except PolicyAgentSilentError:
                self._agenda.put_off((AGENT,), NODE)
                return
            except PolicyAgentRefusedError:
                self._agenda.put_off((OWED, pod), NODE)
                raise
            self._failpoint("policy.forgotten")
            with self._datastore.transaction() as uow:
                uow.forget_owed(pod)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Whether the agent answers is a condition; what it answers is none."""
        try:
            yield
        except PolicyAgentSilentError as error:
            self._health.report(AGENT, f"{AGENT}: {log_text(error)}", error=error)
            raise
        except PolicyAgentRefusedError:
            self._answered()
            raise
        self._answered()

    def _answered(self) -> None:
        if AGENT in self._health.conditions_by_subject():
            self._agenda.clear((AGENT,))
            self._health.report(AGENT, "")


def _pod(key: AttachmentKey, namespace: str, pod: str) -> PodName | None:
    return PodName(namespace, pod) if namespace and pod and key.ifname == POD_IFNAME else None


def _pod_of(attachment: Attachment) -> PodName | None:
    return _pod(attachment.key, attachment.pod_namespace, attachment.pod_name)


def _living(attachments: Iterable[Attachment]) -> frozenset[PodName]:
    return frozenset(pod for pod in map(_pod_of, attachments) if pod)
