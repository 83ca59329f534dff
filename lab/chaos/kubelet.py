"""Plays the kubelet of one node: runs pods until they run, and removes them until they are gone.

Like the real one, it retries a failed sandbox with a new attempt (a new ID) after a pause, stops and removes what the failed attempt
left, and repeats a removal until the runtime reports success.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from lab.branches.pods import Pod
from lab.chaos.control import ChaosControl
from lab.chaos.expected_state import ExpectedState, PodRecord, Violation
from lab.chaos.history import History
from lab.chaos.node import ChaosNode
from lab.chaos.observation import look_inside
from lab.chaos.pair import Pair
from lab.chaos.plan import COOLDOWN_S
from lab.chaos.tolerances import COOLDOWN_MARGIN_S
from lab.chaos.wishes import GUARDED, Wish, wish_of
from lab.fabric.errors import FabricError
from lab.node.errors import SandboxError
from lab.node.kernel_view import read_kernel
from lab.vpc.family import family_of

RUNS_AT_ONCE = 10
"""Ours: kubelets start as many pods as there are; two cores run so many sandboxes at a time without drowning."""

WORKERS = 64
"""Ours: above the pods of a plan, so that a removal never waits for pods that wait for addresses, as with the real one."""

RUN_TIMEOUT_S = 90.0  # ours: above the plugin's 60 s, whose words we want
PAUSE_S = 1.0
REMOVAL_LATE_S = 90.0
"""Removal must succeed, spooled or not (I3), as soon as the runtime serves; the plugin's own deadline for DEL is below."""


class Kubelet:
    """Runs and removes pods of one node. Concurrency: any thread; one operation at a time per pod."""

    def __init__(
        self,
        node: ChaosNode,
        *,
        expected: ExpectedState,
        history: History,
        control: ChaosControl | None = None,
        pair: Pair | None = None,
    ) -> None:
        """`control`: where the node's pods are known, if some of them must have security groups. `pair`: if some of them ask for
        addresses or pools.
        """
        self._pair = pair
        self._node = node
        self._control = control
        self._expected = expected
        self._history = history
        self._wanted: set[str] = set()
        self._records: dict[str, PodRecord] = {}
        self._known: dict[str, Pod] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()  # around the three above
        self._ended = threading.Event()
        self._places = threading.BoundedSemaphore(RUNS_AT_ONCE)
        self._workers = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix=f"kubelet-{node.name}")

    def run_pod(self, pod: str) -> None:
        """Start to run a pod; returns at once."""
        with self._lock:
            self._wanted.add(pod)
        self._workers.submit(self._guarded, self._run, pod)

    def remove_pod(self, pod: str) -> None:
        """Start to remove a pod; returns at once."""
        with self._lock:
            self._wanted.discard(pod)
        self._workers.submit(self._guarded, self._remove, pod)

    def condemn(self, pod: str) -> None:
        """Note that a pod may be made again elsewhere from now on: nobody demands that it lives here. `remove_pod` removes it."""
        with self._lock:
            self._wanted.discard(pod)
            record = self._records.get(pod)
        address = wish_of(pod).address
        if address:
            self._expected.on_left(self._node.name, address)
        if record is not None:
            self._expected.on_fenced(record.sandbox_id)

    def is_busy(self, pod: str) -> bool:
        """Whether a pod is being run or removed."""
        return self._pod_lock(pod).locked()

    def has_pod(self, pod: str) -> bool:
        """Whether a pod runs that is wanted."""
        with self._lock:
            return pod in self._wanted and pod in self._records

    def remove_all(self, timeout_s: float) -> bool:
        """Remove every pod and every sandbox that the runtime still has; False if that takes too long."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            pods = sorted(self._wanted | set(self._records))
        for pod in pods:
            self.remove_pod(pod)
        self._workers.shutdown(wait=True)
        self._workers = ThreadPoolExecutor(max_workers=1)
        while time.monotonic() < deadline:
            try:
                left = self._node.lab_node.cri.list()
                for sandbox in left:
                    self._remove_sandbox(sandbox.sandbox_id)
                if not left:
                    return True
            except SandboxError as error:
                self._history.note("removal of a leftover failed", node=self._node.name, error=str(error))
                time.sleep(PAUSE_S)
        return False

    def close(self) -> None:
        """Stop what is under way at its next pause."""
        self._ended.set()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _run(self, pod: str) -> None:
        with self._pod_lock(pod):
            if not self._is_wanted(pod) or pod in self._records:
                return
            known = self._control.begin(pod) if self._control is not None else None
            uid, attempt = known.uid if known is not None else str(uuid.uuid4()), 0
            while self._is_wanted(pod):
                with self._places:
                    is_done = not self._is_wanted(pod) or self._run_once(pod, uid, attempt, known)
                if is_done:
                    break
                attempt += 1
                self._clear_away(pod)
                self._ended.wait(PAUSE_S * random.uniform(0.5, 1.5))
            if self._control is not None and known is not None:
                if pod in self._records:
                    self._known[pod] = known
                else:
                    self._control.end(known)

    def _run_once(self, pod: str, uid: str, attempt: int, known: Pod | None) -> bool:
        name, cri = self._node.name, self._node.lab_node.cri
        ticket = self._expected.on_creating(name)
        began = time.monotonic()
        wish = wish_of(pod) if self._pair is not None else Wish()
        try:
            annotations = (
                self._control.annotations(known) if self._control is not None and known is not None else wish.annotations
            )
            sandbox_id = cri.run_sandbox(
                pod, namespace=wish.namespace, uid=uid, attempt=attempt, annotations=annotations, timeout_s=RUN_TIMEOUT_S
            )
            status = cri.status(sandbox_id)
            if status.address is None:
                raise SandboxError(f"sandbox {sandbox_id} has no address")
            path = self._node.lab_node.inside_netns_path(status.netns_path)
            inside = look_inside(self._node.lab_node, {sandbox_id: (path, family_of(status.address))})
            _, egress = inside.get(sandbox_id, ("", ""))
            record = self._judged(
                PodRecord(name, pod, sandbox_id, str(status.address), path, self._history.now(), egress=egress), known
            )
            record = self._keep_record(record, wish)
        except SandboxError as error:
            self._history.note("run failed", node=name, counted="run failed", pod=pod, error=str(error)[:600])
            return False
        finally:
            self._expected.on_answered(ticket)
        took_s = round(time.monotonic() - began, 2)
        self._history.note(
            "runs", node=name, counted="pod run", pod=pod, address=record.address, sandbox=sandbox_id, took_s=took_s
        )
        return True

    def _keep_record(self, record: PodRecord, wish: Wish) -> PodRecord:
        """Record a sandbox that was created, and judge what it was given by what its pod asked for."""
        is_guarded = wish.pool == GUARDED
        with self._lock:  # `condemn` comes before or after
            is_fenced = bool(wish.address) and record.pod not in self._wanted
            removing_at_s = record.created_at_s if is_fenced else None
            record = replace(
                record,
                is_pinned=bool(wish.address),
                is_guarded=is_guarded,
                is_fenced=is_fenced,
                removing_at_s=removing_at_s,
            )
            self._records[record.pod] = record
            self._expected.on_created(record)
        if self._pair is not None and not is_fenced:
            are_ranges_reserved = self._pair.are_ranges_reserved
            problem = wish.problem(record.address, are_ranges_reserved=are_ranges_reserved) or self._pair.problem(
                wish, record.address
            )
            if problem:
                subject = f"{record.node}/{record.pod} {record.address}"
                self._history.violate(Violation("wish", self._history.now(), subject, problem))
        return record

    def _judged(self, record: PodRecord, known: Pod | None) -> PodRecord:
        """With what the control plane gave. A pod that must have groups has the address of its own branch ENI (I19), others none."""
        if self._control is None or known is None:
            return record
        grant = self._control.grant(known)
        if known.groups and (grant is None or record.address not in grant.given.addresses):
            what = f"it must have groups and was given {grant.given if grant is not None else 'no branch ENI'}"
            self._history.violate(Violation("I19", self._history.now(), f"{record.node}/{record.pod} {record.address}", what))
        return replace(record, vlan=grant.given.vlan, is_mistold=grant.is_mistold) if grant is not None else record

    def _remove(self, pod: str) -> None:
        with self._pod_lock(pod):
            record = self._records.get(pod)
            if record is None:
                self._clear_away(pod)
                return
            self._expected.on_removing(record.sandbox_id)
            served_since = began_s = time.monotonic()
            while not self._ended.is_set():
                try:
                    ready_since = self._node.state().ready_since
                    self._node.lab_node.cri.stop(record.sandbox_id)
                    self._demand_gone(record, ready_since, began_s)
                    self._node.lab_node.cri.remove(record.sandbox_id)
                    break
                except SandboxError as error:
                    self._history.note(
                        "removal failed", node=record.node, counted="removal failed", pod=pod, error=str(error)[:600]
                    )
                    if not self._node.runtime_is_up:
                        served_since = time.monotonic()
                    elif time.monotonic() - served_since > REMOVAL_LATE_S:
                        what = f"its removal fails for {REMOVAL_LATE_S:.0f} s: {error}"
                        self._history.violate(Violation("I3", self._history.now(), f"{record.node}/{pod}", what))
                        served_since = float("inf")
                self._ended.wait(PAUSE_S)
            else:
                return
            self._expected.on_removed(record.sandbox_id)
            with self._lock:
                self._records.pop(pod, None)
            known = self._known.pop(pod, None)
            if self._control is not None and known is not None:
                self._control.end(known)
            self._history.note("removed", node=record.node, counted="pod removed", pod=pod, address=record.address)

    def _demand_gone(self, record: PodRecord, ready_since: float | None, began_s: float) -> None:
        """Demand that neither route nor rule is left when DEL is answered (I4), unless the DEL may have been spooled, or its reply
        came so late that another sandbox may have the address."""
        try:
            kernel = read_kernel(self._node.lab_node)
        except FabricError as error:
            self._history.note("a look failed", node=record.node, counted="look failed", error=str(error))
            return
        left = [
            what
            for what, addresses in (
                ("route", kernel.host_routes),
                ("rule to it", kernel.to_rules),
                ("rule from it", kernel.from_rules),
            )
            if record.address in addresses or record.egress in addresses
        ]
        may_be_given = time.monotonic() - began_s > COOLDOWN_S - COOLDOWN_MARGIN_S
        status = self._node.daemon.status() if left and not may_be_given else None
        was_there = ready_since is not None and self._node.state().ready_since == ready_since
        if status is not None and was_there and not status["spooled_delete_count"]:
            what = f"left at the reply of its DEL: {', '.join(left)}"
            self._history.violate(Violation("I4", self._history.now(), f"{record.node}/{record.pod} {record.address}", what))

    def _remove_sandbox(self, sandbox_id: str) -> None:
        self._node.lab_node.cri.stop(sandbox_id)
        self._node.lab_node.cri.remove(sandbox_id)

    def _clear_away(self, pod: str) -> None:
        """Stop and remove what failed attempts of a pod left in the runtime; what cannot be done now is done at the next try."""
        try:
            for sandbox in self._node.lab_node.cri.list():
                if sandbox.name == pod:
                    self._remove_sandbox(sandbox.sandbox_id)
        except SandboxError as error:
            self._history.note("clearing away failed", node=self._node.name, pod=pod, error=str(error)[:300])

    def _is_wanted(self, pod: str) -> bool:
        with self._lock:
            return pod in self._wanted and not self._ended.is_set()

    def _pod_lock(self, pod: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(pod, threading.Lock())

    def _guarded(self, action: object, pod: str) -> None:
        try:
            action(pod)  # type: ignore[operator]  # both callers pass a method that takes a pod
        except Exception as error:  # noqa: BLE001  # top of a queue: the lab's own failure must be seen
            self._history.say(f"the lab failed on pod {pod}: {error!r}", node=self._node.name, counted="lab error")
