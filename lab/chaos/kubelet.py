"""The kubelet's part on one node: pods are run until they run, and removed until they are gone.

As the real one does: a sandbox that could not be created is retried with a new attempt (a new ID) after a pause, what the failed
one left is stopped and removed first, and a removal is repeated until the runtime says that it is done.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from lab.chaos.books import Books, Life, Violation
from lab.chaos.journal import Journal
from lab.chaos.member import Member
from lab.chaos.sight import look
from lab.fabric.errors import FabricError
from lab.node.errors import SandboxError

RUNS_AT_ONCE = 10
"""Ours: kubelets start as many pods as there are; two cores run so many sandboxes at a time without drowning."""

WORKERS = 64
"""Ours: above the pods of a plan, so that a removal never waits for pods that wait for addresses, as with the real one."""

RUN_TIMEOUT_S = 90.0  # ours: above the plugin's 60 s, whose words we want
PAUSE_S = 1.0
REMOVAL_LATE_S = 90.0
"""Removal must succeed, spooled or not (I3), as soon as the runtime serves; the plugin's own deadline for DEL is below."""


class Kubelet:
    """Runs and removes pods of one member. Concurrency: any thread; one operation at a time per pod."""

    def __init__(self, member: Member, *, books: Books, journal: Journal) -> None:
        self._member = member
        self._books = books
        self._journal = journal
        self._wanted: set[str] = set()
        self._lives: dict[str, Life] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()  # a leaf, around the three above
        self._ended = threading.Event()
        self._places = threading.BoundedSemaphore(RUNS_AT_ONCE)
        self._workers = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix=f"kubelet-{member.name}")

    def run_pod(self, pod: str) -> None:
        """Have a pod run; returns at once."""
        with self._lock:
            self._wanted.add(pod)
        self._workers.submit(self._guarded, self._run, pod)

    def remove_pod(self, pod: str) -> None:
        """Have a pod removed; returns at once."""
        with self._lock:
            self._wanted.discard(pod)
        self._workers.submit(self._guarded, self._remove, pod)

    def remove_all(self, timeout_s: float) -> bool:
        """Remove every pod and every sandbox that the runtime still has; False if that takes too long."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            pods = sorted(self._wanted | set(self._lives))
        for pod in pods:
            self.remove_pod(pod)
        self._workers.shutdown(wait=True)
        self._workers = ThreadPoolExecutor(max_workers=1)
        while time.monotonic() < deadline:
            try:
                left = self._member.node.cri.list()
                for sandbox in left:
                    self._remove_sandbox(sandbox.sandbox_id)
                if not left:
                    return True
            except SandboxError as error:
                self._journal.note("removal of a leftover failed", node=self._member.name, error=str(error))
                time.sleep(PAUSE_S)
        return False

    def close(self) -> None:
        """Give up what is under way at its next pause."""
        self._ended.set()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _run(self, pod: str) -> None:
        with self._pod_lock(pod):
            uid, attempt = str(uuid.uuid4()), 0
            while self._is_wanted(pod) and pod not in self._lives:
                with self._places:
                    is_done = not self._is_wanted(pod) or self._run_once(pod, uid, attempt)
                if is_done:
                    return
                attempt += 1
                self._clear_away(pod)
                self._ended.wait(PAUSE_S * random.uniform(0.5, 1.5))

    def _run_once(self, pod: str, uid: str, attempt: int) -> bool:
        name, cri = self._member.name, self._member.node.cri
        ticket = self._books.began(name)
        began = time.monotonic()
        try:
            sandbox_id = cri.run_sandbox(pod, uid=uid, attempt=attempt, timeout_s=RUN_TIMEOUT_S)
            status = cri.status(sandbox_id)
            if status.address is None:
                raise SandboxError(f"sandbox {sandbox_id} has no address")
            path = self._member.node.inside_netns_path(status.netns_path)
            life = Life(name, pod, sandbox_id, str(status.address), path, self._journal.now())
            with self._lock:
                self._lives[pod] = life
            self._books.born(life)
        except SandboxError as error:
            self._journal.note("run failed", node=name, counted="run failed", pod=pod, error=str(error)[:600])
            return False
        finally:
            self._books.ended(ticket)
        took_s = round(time.monotonic() - began, 2)
        self._journal.note("runs", node=name, counted="pod run", pod=pod, address=life.address, sandbox=sandbox_id, took_s=took_s)
        return True

    def _remove(self, pod: str) -> None:
        with self._pod_lock(pod):
            life = self._lives.get(pod)
            if life is None:
                self._clear_away(pod)
                return
            self._books.leaving(life.sandbox_id)
            served_since = time.monotonic()
            while not self._ended.is_set():
                try:
                    ready_since = self._member.state().ready_since
                    self._member.node.cri.stop(life.sandbox_id)
                    self._demand_gone(life, ready_since)
                    self._member.node.cri.remove(life.sandbox_id)
                    break
                except SandboxError as error:
                    self._journal.note(
                        "removal failed", node=life.node, counted="removal failed", pod=pod, error=str(error)[:600]
                    )
                    if not self._member.runtime_is_up:
                        served_since = time.monotonic()
                    elif time.monotonic() - served_since > REMOVAL_LATE_S:
                        what = f"its removal fails for {REMOVAL_LATE_S:.0f} s: {error}"
                        self._journal.violate(Violation("I3", self._journal.now(), f"{life.node}/{pod}", what))
                        served_since = float("inf")
                self._ended.wait(PAUSE_S)
            else:
                return
            self._books.gone(life.sandbox_id)
            with self._lock:
                self._lives.pop(pod, None)
            self._journal.note("removed", node=life.node, counted="pod removed", pod=pod, address=life.address)

    def _demand_gone(self, life: Life, ready_since: float | None) -> None:
        """At the reply of DEL neither route nor rule is left (I4); not asked when the DEL may have gone into the spool."""
        try:
            sight = look(self._member.node, (), None)
        except FabricError as error:
            self._journal.note("a look failed", node=life.node, counted="look failed", error=str(error))
            return
        left = [
            what
            for what, addresses in (("route", sight.routes), ("rule 512", sight.to_rules), ("rule 1536", sight.from_rules))
            if life.address in addresses
        ]
        status = self._member.ask(lambda client: client.status()) if left else None
        was_there = ready_since is not None and self._member.state().ready_since == ready_since
        if status is not None and was_there and not status["spooled_count"]:
            what = f"left at the reply of its DEL: {', '.join(left)}"
            self._journal.violate(Violation("I4", self._journal.now(), f"{life.node}/{life.pod} {life.address}", what))

    def _remove_sandbox(self, sandbox_id: str) -> None:
        self._member.node.cri.stop(sandbox_id)
        self._member.node.cri.remove(sandbox_id)

    def _clear_away(self, pod: str) -> None:
        """Stop and remove what failed attempts of a pod left in the runtime; what cannot be done now is done at the next try."""
        try:
            for sandbox in self._member.node.cri.list():
                if sandbox.name == pod:
                    self._remove_sandbox(sandbox.sandbox_id)
        except SandboxError as error:
            self._journal.note("clearing away failed", node=self._member.name, pod=pod, error=str(error)[:300])

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
            self._journal.say(f"the lab failed on pod {pod}: {error!r}", node=self._member.name, counted="lab error")
