"""The daemon from alive to ready, and its end: ask the sources, reconcile, set up host routing, serve ADD, have an address to give.

The order is docs/architecture.md, Start. A start waits as little as it can: with an intact datastore it needs only the kernel,
and sources that have not answered are asked again in the background (`ipamd/surroundings.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.bootstrap import App
from ipamd.core.backoff import Backoff
from ipamd.core.deadline import Deadline
from ipamd.core.health import Phase
from ipamd.datastore.open import current_boot_id
from ipamd.host import conflist
from ipamd.host.conflist import ChainedPlugins, ConflistKeeper, Others
from ipamd.host.freeze_files import DrainHookFile
from ipamd.host.maintenance import Maintenance
from ipamd.migration.handover import Handover
from ipamd.model.errors import DatastoreError, IpamError, KernelDumpError, NotServingError, SettingsError, log_text
from ipamd.model.kernel import KernelSurvey
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ready_marks import FirstAddress, ServedMark
from ipamd.surroundings import RETRY_FIRST_S, RETRY_MAX_S, Surroundings

WORTH_REPEATING = (DatastoreError, SettingsError)
"""Not retryable errors after which a repeated step may still succeed: DEL or EC2's answer changed a row that the step was using,
or a directory is not mounted yet."""

REPLAY_DEADLINE_S = 30.0
SURVEY_TRIES = 5

log = logging.getLogger(__name__)


class Lifecycle:
    """One life of the daemon. `run` is a thread body; `stop` ends its waits and its loops."""

    def __init__(self, app: App, *, end: Callable[[str], None]) -> None:
        """`end` exits the process, for a reason that only a restart can repair."""
        self._app = app
        self._health = app.context.health
        self._stopped = threading.Event()
        run_dir, boot_id = app.settings.daemon.run_dir, current_boot_id()
        self._served_mark = ServedMark(run_dir, boot_id=boot_id, health=self._health)
        self._handover = Handover(
            aws_node=app.adapters.aws_node,
            is_overtaken=app.adapters.is_overtaken,
            export=app.reconcile.export,
            other=app.reconcile.other,
            backend=app.cni_backend,
            hostnet=app.adapters.hostnet,
            identity=app.adapters.node_info.identity,
            health=self._health,
            stopped=self._stopped,
            quiesce=self.stop,
            leave_mark=self._served_mark.leave,
            end=end,
        )
        self._maintenance = Maintenance(
            app.context,
            spool=app.adapters.spool,
            leave_mark=self._served_mark.leave,
            replay=self._replay_spool,
            look=self._handover.look,
            end=end,
        )
        self._surroundings = Surroundings(app, spawn=self._spawn, stopped=self._stopped)
        app.current.follow(lambda now: now.pool, lambda _: self._surroundings.renew_targets())
        host_network = app.reconcile.host_network
        self._plugins = ChainedPlugins(
            app.settings, runtime=app.adapters.node_info.runtime, health=self._health, clock=app.context.clock
        )
        self._conflist = ConflistKeeper(
            app.settings.daemon,
            plugins=self._plugins,
            fights=host_network.fights,
            health=self._health,
            note=host_network.note,
            others=Others(self._take_others, app.settings.takeover.directories),
        )
        self._drain_hook = DrainHookFile(app.context.freeze, path=app.settings.daemon.freeze_path, health=self._health)
        self._first_address = FirstAddress(app.context, run_dir=run_dir, boot_id=boot_id, stopped=self._stopped)

    def run(self) -> None:
        """Go from alive to ready; a permanent error is recorded, and the daemon keeps serving DEL."""
        try:
            self._run()
        except NotServingError:
            return  # stopped while it waited
        except Exception as error:  # top of the thread
            self._health.record_error("start", error)
            self._health.set_condition("start", f"start: it stopped, ADD is not served before a restart: {log_text(error)}")
            log.error("start-up stopped; DEL is served, ADD is not: %s", log_text(error), exc_info=error)

    def drain(self) -> None:
        """Take no ADD any more, and say until when they were taken."""
        self._served_mark.leave()
        self._health.enter(Phase.DRAINING)

    def stop(self) -> None:
        """End every loop that was started, and every wait; but not the cooldown, which DEL needs until the process ends (I4)."""
        self._stopped.set()
        reconcile = self._app.reconcile
        self._app.pool.maintainer.stop()
        reconcile.host_network.stop()
        reconcile.cloud.stop()
        self._maintenance.stop()
        self._plugins.stop()
        self._conflist.stop()
        self._drain_hook.stop()
        if reconcile.runtime is not None:
            reconcile.runtime.stop()

    def _run(self) -> None:
        app, health = self._app, self._health
        health.enter(Phase.RESTORING)
        self._spawn("cooldown", app.cooldown.run)  # DEL is served already, and its links must be deleted within a second (I4)
        if app.adapters.history_loop is not None:
            self._spawn("history", app.adapters.history_loop.run)
        if not self._handover.begin():
            return
        app.operator.restore()
        self._drain_hook.look()  # before the pool may grow
        self._spawn("drain-hook", self._drain_hook.run)
        self._surroundings.begin_cloud()
        # Before the first sandbox is wired, and without waiting for EC2. A kernel that refuses is a condition: the node serves.
        log.info("confinement: %s", "; ".join(app.reconcile.host_network.confine()) or "in place")
        self._until_done("spool", self._replay_spool)
        listed = self._surroundings.await_runtime()
        if listed is not None:
            app.reconcile.other.heed(listed.values())
        self._surroundings.await_cloud()
        self._until_done("kernel", lambda: self._restore(listed))
        self._until_done("aws-node", self._handover.settle)
        self._until_done("host-routing", self._set_up_eni_routings)
        app.pool.subnets.mark()  # by the settings of now, whatever was recorded: EC2 may not have answered yet
        with health.stage("serve") as stage:
            health.enter(Phase.SERVING)
            stage.detail = str(app.context.datastore.counts())
        self._start_loops()
        with health.stage("first-address") as stage:
            stage.detail = self._first_address.wait()
        with health.stage("plugins") as stage:
            stage.detail = self._plugins.wait()
        self._until_done("conflist", self._write_conflist)
        self._spawn("conflist", self._conflist.run)
        self._first_address.remember()
        health.mark_ready()
        self._served_mark.tidy()
        self._served_mark.leave()
        log.info("ready after %.2f s: %s", health.uptime_s(), app.context.datastore.counts())

    def _start_loops(self) -> None:
        """Start what runs as long as ADD is served, and wake the pool and the ADDs that came early."""
        app = self._app
        self._spawn("maintenance", self._maintenance.run)
        self._spawn("pool", app.pool.maintainer.run)
        self._spawn("host-network", app.reconcile.host_network.run)
        self._spawn("links", app.reconcile.cloud.run_links)
        self._spawn("other-hands", app.reconcile.cloud.run)
        runtime = app.reconcile.runtime
        if runtime is not None:
            if app.settings.runtime.cri_events:
                self._spawn("events", runtime.run_events)
            self._spawn("runtime", runtime.run)
        app.context.demand.announce_supply()
        app.context.demand.trigger()

    def _until_done(self, what: str, step: Callable[[], None]) -> None:
        """Repeat an idempotent step until it succeeds. Raises: an error that a repetition cannot repair; NotServingError."""
        backoff = Backoff(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while True:
            try:
                step()
                self._health.clear_condition(what)
                return
            except IpamError as error:
                if not (error.retryable or isinstance(error, WORTH_REPEATING)):
                    raise
                pause_s = backoff.next_s()
                self._health.record_error(what, error)
                self._health.set_condition(what, f"{what}: {log_text(error)}; tried again until it succeeds")
                log.warning("%s is tried again in %.1f s: %s", what, pause_s, log_text(error))
            if self._stopped.wait(pause_s):
                raise NotServingError("vpc-ipamd is shutting down")

    def _replay_spool(self) -> None:
        with self._health.stage("spool") as stage:
            deadline = Deadline.after(self._app.context.clock, REPLAY_DEADLINE_S)
            count = self._app.reconcile.spooled_deletes.replay(deadline=deadline)
            stage.detail = f"{counted(count, 'DEL')} carried out"

    def _restore(self, listed: dict[str, Sandbox] | None) -> None:
        with self._health.stage("kernel") as stage:
            outcome = self._app.reconcile.startup.reconcile_kernel(self._survey(), listed)
            stage.detail = str(outcome)
        if outcome.duplicates:
            sentence = f"{'; '.join(outcome.duplicates)}: given to nobody else; delete the sandbox that should not have it"
            self._health.set_condition("duplicates", sentence)
            log.error("I1 was broken before this start: %s", sentence)
        log.info("restored: %s", outcome)

    def _survey(self) -> KernelSurvey:
        """Survey the kernel, again if a concurrent change interrupts it. Raises: KernelDumpError after SURVEY_TRIES."""
        for _ in range(SURVEY_TRIES - 1):
            try:
                return self._app.context.wiring.survey()
            except KernelDumpError as error:
                log.info("the kernel is surveyed again: %s", log_text(error))
        return self._app.context.wiring.survey()

    def _set_up_eni_routings(self) -> None:
        self._app.reconcile.cloud.links.compare()  # an ENI whose link is gone is not waited for
        with self._health.stage("host-routing") as stage:
            problems = self._app.pool.enis.routing.set_up_all()
            if self._app.adapters.node_info.identity() is None:
                problems.append("the node's own part waits for instance metadata")
            if problems:
                stage.degrade("; ".join(problems))

    def _write_conflist(self) -> None:
        with self._health.stage("conflist") as stage:
            stage.detail = str(conflist.write(self._app.settings.daemon, self._plugins.versions))
            if said := self._take_others():
                stage.detail += f"; {said}"

    def _take_others(self) -> str:
        """Set aside what amazon-vpc-cni-k8s left: its conflist, and then its chains. Raises: IpamError."""
        said = self._handover.take_conflist()
        try:
            if removed := self._handover.tidy():
                self._app.reconcile.host_network.note(f"removed what amazon-vpc-cni-k8s had left in nftables: {removed}")
        except IpamError as error:
            self._health.set_condition(
                "aws-node chains", f"aws-node chains: they could not be removed: {log_text(error)}; tried again"
            )
        else:
            self._health.clear_condition("aws-node chains")
        return said

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        threading.Thread(target=self._guarded, args=(name, body), name=name, daemon=True).start()

    def _guarded(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except IpamError as error:
            self._health.record_error(name, error)
            log.error("thread %s ended: %s", name, log_text(error), exc_info=error)
