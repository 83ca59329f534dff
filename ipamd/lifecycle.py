"""From alive to ready: look at cloud, runtime and kernel, restore, set up the host, serve ADD (design 6).

Each look has its own deadline and its own sentence in `ipamctl status`. What a restart needs least is waited for least: with an
intact datastore nothing but the kernel is indispensable, and what did not answer is asked again in the background.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd import conflist
from ipamd.bootstrap import App
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import (
    DatastoreError,
    IpamError,
    KernelDumpError,
    NotServingError,
    RuntimeUnreachableError,
    SettingsError,
    log_text,
)
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports import Runtime
from ipamd.service.health import Phase
from ipamd.service.reconcile.maintenance import Maintenance
from ipamd.service.request import Deadline

CLOUD_PATIENCE_S = 0.5
"""How long a restore with confirmed addresses waits for EC2. Ours, measured: with 3 s and EC2 hanging the first ADD came after
3.4 s, which breaks the budget of 2 s; what EC2 says later is taken in while ADD is served."""

RUNTIME_PATIENCE_S = 1.0
"""How long a restore with an intact datastore waits for CRI. Ours: a list takes milliseconds; a runtime that hangs must not make
every pod wait, and its word only adds reasons to keep."""

RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
"""Doubling pause between tries of a look that failed. Ours."""

WORTH_REPEATING = (DatastoreError, SettingsError)
"""Not retryable as they are, but a step looks anew: a row that DEL or EC2's answer changed under it, a directory not mounted
yet."""

LIMITS_RETRY_S = 300.0
"""Between two questions about an unknown instance type. Ours: as the adapter remembers a failure (`cloud/ec2.py`)."""

REPLAY_DEADLINE_S = 30.0
SURVEY_TRIES = 5

log = logging.getLogger(__name__)


class StartUp:
    """One start of the daemon. `run` is a thread body; `stop` ends its waits."""

    def __init__(self, app: App, *, end: Callable[[str], None]) -> None:
        """Start `app`; `end` ends the process for a reason that only a new start can heal."""
        self._app = app
        self._maintenance = Maintenance(
            datastore=app.datastore,
            spool=app.spool,
            health=app.health,
            clock=app.clock,
            replay=self._replay_spool,
            end=end,
        )
        self._stopped = threading.Event()
        self._cloud_done = threading.Event()
        self._runtime_done = threading.Event()
        self._listed: dict[str, Sandbox] | None = None
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Go from alive to ready; an error that time does not heal is recorded and the daemon keeps serving DEL."""
        try:
            self._run()
        except NotServingError:
            return  # stopped meanwhile
        except Exception as error:  # top of the thread
            self._app.health.record_error("start", error)
            log.error("start-up stopped; DEL is served, ADD is not: %s", log_text(error), exc_info=error)

    def stop(self) -> None:
        """End every loop that was started, and every wait; but not cooling, which DEL needs until the process ends (I4)."""
        self._stopped.set()
        app = self._app
        app.pool.stop()
        app.host_reconciler.stop()
        self._maintenance.stop()
        if app.runtime_reconciler is not None:
            app.runtime_reconciler.stop()

    def _run(self) -> None:
        app = self._app
        app.health.enter(Phase.RESTORING)
        self._spawn("cooling", app.cooldown.run)  # DEL is served already: its links are to go within a second (I4)
        self._spawn("cloud", self._look_at_cloud)
        self._until_done("spool", self._replay_spool)
        listed = self._await_runtime()
        has_addresses = any(eni.host_ready and eni.managed for eni in app.datastore.enis())
        self._wait_for(self._cloud_done, CLOUD_PATIENCE_S if has_addresses else None)
        self._until_done("kernel", lambda: self._restore(listed))
        self._until_done("host-routing", self._set_up_eni_routings)
        with app.health.stage("serve") as stage:
            app.health.enter(Phase.SERVING)
            stage.detail = str(app.datastore.counts())
        self._spawn("upkeep", self._maintenance.run)
        self._spawn("pool", app.pool.run)
        self._spawn("host-audit", app.host_reconciler.run)
        if app.runtime_reconciler is not None:
            if app.settings.runtime.cri_events:
                self._spawn("events", app.runtime_reconciler.run_events)
            self._spawn("runtime_reconciler", app.runtime_reconciler.run)
        app.demand.announce_supply()
        app.demand.trigger()
        self._until_done("conflist", self._write_conflist)
        app.health.mark_ready()
        log.info("ready after %.2f s: %s", app.health.uptime_s(), app.datastore.counts())

    def _until_done(self, what: str, step: Callable[[], None]) -> None:
        """Repeat a step that every restart may repeat until it succeeds; an error that time does not heal passes on."""
        pause = RETRY_FIRST_S
        while True:
            try:
                step()
                self._app.health.clear_condition(what)
                return
            except IpamError as error:
                if not (error.retryable or isinstance(error, WORTH_REPEATING)):
                    raise
                self._app.health.record_error(what, error)
                self._app.health.set_condition(what, f"{what}: {log_text(error)}; tried again until it succeeds")
                log.warning("%s is tried again in %.1f s: %s", what, pause, log_text(error))
            self._stopped.wait(pause)
            self._check_stopped()
            pause = min(pause * 2, RETRY_MAX_S)

    def _look_at_cloud(self) -> None:
        """Thread body: metadata, then EC2, until both have answered once."""
        pause = RETRY_FIRST_S
        while not self._stopped.is_set():
            try:
                self._ask_cloud()
                return
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._app.health.record_error("cloud", error)
                self._app.health.set_condition("ec2", f"EC2: {log_text(error)}; the pool cannot grow")
                self._app.node_info.set_cloud(reachable=False, detail=log_text(error))
                log.warning("cloud is asked again in %.1f s: %s", pause, log_text(error))
            self._stopped.wait(pause)
            pause = min(pause * 2, RETRY_MAX_S)

    def _ask_cloud(self) -> None:
        app = self._app
        with app.health.stage("metadata") as stage:
            identity = app.metadata.identity()
            stage.detail = f"{identity.instance_id} ({identity.instance_type}) in {identity.availability_zone}"
        app.node_info.set_identity(identity)
        app.provisioner.set_identity(identity)
        with app.health.stage("ec2") as stage:
            comparison = app.enis.sync_with_ec2(identity)
            self._cloud_done.set()
            limits = app.ec2.instance_limits(identity.instance_type)
            stage.detail = f"{comparison}; limits from {limits.source}: {limits.eni_count} x {limits.ipv4_per_eni}"
        app.node_info.set_cloud(reachable=True, detail=f"last compared at start: {comparison}")
        app.health.clear_condition("ec2")
        self._set_up_node(identity)
        if app.health.phase is Phase.SERVING:  # late: restore has gone on without us
            for problem in app.enis.set_up_eni_routings():
                log.warning("host routing: %s", problem)
        app.pool.set_limits(limits, settings=app.settings.pool_settings(max_pods=limits.max_pods))
        if limits.source == "default":
            self._spawn("limits", lambda: self._learn_limits(identity))

    def _learn_limits(self, identity: InstanceIdentity) -> None:
        """Thread body: neither EC2 nor the table knew this instance type; ask again until one does. The node is small until
        then."""
        app = self._app
        app.health.set_condition("limits", f"limits: those of {identity.instance_type} are not known, a safe default is used")
        while not self._stopped.wait(LIMITS_RETRY_S):
            limits = app.ec2.instance_limits(identity.instance_type)
            if limits.source != "default":
                app.pool.set_limits(limits, settings=app.settings.pool_settings(max_pods=limits.max_pods))
                app.health.clear_condition("limits")
                return

    def _set_up_node(self, identity: InstanceIdentity) -> None:
        """SNAT and marks; sandboxes get addresses without them, and the audit tries again."""
        try:
            self._app.host_reconciler.set_identity(identity)
        except IpamError as error:
            self._app.health.record_error("node routing", error)
            self._app.health.set_condition("node routing", f"node routing: {log_text(error)}")
            log.error("the node's own routing is not complete and is tried again: %s", log_text(error))

    def _wait_for(self, done: threading.Event, patience_s: float | None) -> None:
        """Wait for a look that runs in its own thread; None: as long as it takes."""
        if patience_s is not None:
            done.wait(patience_s)
        else:
            while not done.wait(0.2):
                self._check_stopped()

    def _replay_spool(self) -> None:
        app = self._app
        with app.health.stage("spool") as stage:
            count = app.restore.replay_spool(deadline=Deadline.after(app.clock, REPLAY_DEADLINE_S))
            stage.detail = f"{counted(count, 'DEL')} carried out"

    def _look_at_runtime(self, runtime: Runtime) -> None:
        """Thread body: who answers, and a complete list, until both were told once."""
        app, pause = self._app, RETRY_FIRST_S
        while not self._stopped.is_set():
            with app.health.stage("cri") as stage:
                try:
                    app.node_info.set_runtime(runtime.info())
                    self._listed = {sandbox.container_id: sandbox for sandbox in runtime.sandboxes()}
                    stage.detail = counted(len(self._listed), "sandbox")
                    self._runtime_done.set()
                    return
                except RuntimeUnreachableError as error:
                    stage.degrade(log_text(error))
                    app.health.set_condition("cri", f"CRI: {log_text(error)}; nothing is reaped")
            self._stopped.wait(pause)
            pause = min(pause * 2, RETRY_MAX_S)

    def _await_runtime(self) -> dict[str, Sandbox] | None:
        """Sandboxes by ID, or None. With a datastore that is not intact there is no going on without them (design 6)."""
        app = self._app
        runtime = app.runtime
        if runtime is None:
            app.health.set_condition("cri", "CRI is off: nothing is reaped")
            return None
        self._spawn("runtime", lambda: self._look_at_runtime(runtime))
        self._wait_for(self._runtime_done, RUNTIME_PATIENCE_S if app.open_report.is_intact else None)
        return self._listed

    def _restore(self, listed: dict[str, Sandbox] | None) -> None:
        app = self._app
        with app.health.stage("kernel") as stage:
            for attempt in range(SURVEY_TRIES):
                try:
                    survey = app.wiring.survey()
                    break
                except KernelDumpError:
                    if attempt == SURVEY_TRIES - 1:
                        raise
            outcome = app.restore.reconcile_kernel(survey, listed)
            stage.detail = str(outcome)
        if outcome.duplicates:
            sentence = f"{'; '.join(outcome.duplicates)}: given to nobody else; delete the sandbox that should not have it"
            app.health.set_condition("duplicates", sentence)
            log.error("I1 was broken before this start: %s", sentence)
        log.info("restored: %s", outcome)

    def _set_up_eni_routings(self) -> None:
        app = self._app
        with app.health.stage("host-routing") as stage:
            problems = app.enis.set_up_eni_routings()
            if app.node_info.identity is None:
                problems.append("the node's own part waits for instance metadata")
            if problems:
                stage.degrade("; ".join(problems))

    def _write_conflist(self) -> None:
        with self._app.health.stage("conflist") as stage:
            stage.detail = str(conflist.write(self._app.settings.daemon))

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guarded, args=(name, body), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except IpamError as error:
            self._app.health.record_error(name, error)
            log.error("thread %s ended: %s", name, log_text(error), exc_info=error)

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise NotServingError("vpc-ipamd is shutting down")
