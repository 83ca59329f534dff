"""The daemon from alive to ready, and its end: ask the sources, reconcile, set up host routing, serve ADD, have an address to give.

The order is docs/life.md, Start. A start waits as little as it can: with an intact datastore it needs only the kernel,
and sources that have not answered are asked again in the background (`ipamd/cloud_loop.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from ipamd.bootstrap import App
from ipamd.cloud_loop import CloudLoop
from ipamd.core.agenda import NODE
from ipamd.core.deadline import Deadline
from ipamd.core.health import START, Phase
from ipamd.core.loop import Loop
from ipamd.datastore.open import current_boot_id
from ipamd.history import PAUSE_S, REFUSED_MAX_S
from ipamd.host import conflist
from ipamd.host.conflist import ConflistKeeper, Others
from ipamd.host.files import FileFollowers
from ipamd.host.freeze_files import DrainHookFile
from ipamd.host.maintenance import Maintenance
from ipamd.migration.handover import Handover
from ipamd.model.errors import DatastoreError, IpamError, NotServingError, SettingsError, log_text
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ready_marks import FirstAddress, ServedMark
from ipamd.reload import SettingsReload
from ipamd.rpc.server import UnixServer

WORTH_REPEATING = (DatastoreError, SettingsError)
"""Not retryable errors after which a repeated step may still succeed: DEL or EC2's answer changed a row that the step was using,
or a directory is not mounted yet."""

CLOUD_PATIENCE_S = 0.5
"""How long a start with confirmed addresses waits for EC2. Ours, measured: with 3 s and EC2 hanging the first ADD came after 3.4 s,
over the budget of 2 s (docs/performance.md)."""

RUNTIME_PATIENCE_S = 1.0
"""How long a start with an intact datastore waits for CRI. Ours: a list takes milliseconds; a runtime that hangs must not make
every pod wait, and its answer only adds reasons to keep."""

LOOK_S = 0.2
"""How long a wait for a first turn may last before the daemon's end is noticed. Ours; it reads memory only."""

REPLAY_DEADLINE_S = 30.0

log = logging.getLogger(__name__)


class Lifecycle:
    """One life of the daemon. `run` is a thread body; `stop` ends its waits and its loops. `files` and `reload`: for SIGHUP."""

    def __init__(self, app: App, *, end: Callable[[str], None], server: UnixServer | None = None) -> None:
        """`end` exits the process, for a reason that only a restart can repair. `server` has our plugin's socket."""
        self._app, context, daemon = app, app.context, app.settings.daemon
        self._servers = {"socket": server, "cni-backend": app.cni_backend}
        self._health, self._stopped = context.health, threading.Event()
        run_dir, boot_id = daemon.run_dir, current_boot_id()
        self._served_mark = ServedMark(run_dir, boot_id=boot_id, health=self._health)
        self._handover = Handover(
            aws_node=app.adapters.aws_node,
            is_overtaken=app.adapters.is_overtaken,
            export=app.export,
            other=app.other_daemon,
            backend=app.cni_backend,
            hostnet=app.adapters.hostnet,
            identity=app.adapters.node_info.identity,
            health=self._health,
            stopped=self._stopped,
            quiesce=self.stop,
            leave_mark=self._served_mark.leave,
            end=end,
            left_egress=app.imported.left_egress,
        )
        self._maintenance = Maintenance(
            context,
            spool=app.adapters.spool,
            leave_mark=self._served_mark.leave,
            replay=self._replay_spool,
            look=self._handover.look,
            keep=self._keep_sockets,
            settle=app.policy.settle if app.policy else lambda: None,
            rest=app.adapters.ec2.rest,
            end=end,
        )
        self._cloud = CloudLoop(app)
        app.current.follow(lambda now: now.pool, lambda _: self._cloud.loop.wake())
        self._files = FileFollowers(health=self._health, clock=context.clock, agenda=context.agenda)
        self.reload = SettingsReload(app.current, health=self._health, wake=self._files.loop.wake)
        self._drain_hook = DrainHookFile(context.freeze, path=daemon.freeze_path)
        self._conflist = ConflistKeeper(
            app.settings,
            runtime=app.adapters.node_info.runtime,
            clock=context.clock,
            fights=app.host_network.fights,
            health=self._health,
            note=app.host_network.record_repair,
            is_stopped=self._stopped.is_set,
            others=Others(self._take_others, app.settings.takeover.directories),
        )
        self._first_address = FirstAddress(context, run_dir=run_dir, boot_id=boot_id, stopped=self._stopped)
        self._first, self._serving, self._last = self._loops()

    def _loops(self) -> tuple[list[Loop], list[Loop], list[Loop]]:
        """Every loop, in the order in which they are started: with the process, when ADD is served, and those that `stop` spares."""
        app, runtime, history = self._app, self._app.runtime, self._app.adapters.history_writer
        first = [self._files.loop, self._cloud.loop]
        serving = [
            self._maintenance.loop,
            app.pool.maintainer.loop,
            app.host_network.loop,
            app.cloud.links.loop,
        ]
        last = [app.cooldown.loop]  # DEL is served until the process ends, and its links must be deleted within a second (I4)
        if runtime is not None:
            first.append(runtime.loop)
            serving += [runtime.events] if app.settings.runtime.cri_events else []
        if history is not None:
            last.append(
                Loop(
                    "history",
                    history.turn,
                    health=self._health,
                    clock=app.context.clock,
                    changed=history.noted,
                    settle_s=PAUSE_S,
                    failed_max_s=REFUSED_MAX_S,
                )
            )
        return first, serving, last

    def _keep_sockets(self) -> None:
        for subject, server in self._servers.items():
            if server is None:
                continue
            try:
                mended = server.keep()
            except (SettingsError, OSError) as error:
                self._health.report(subject, f"{subject}: nobody reaches us: {log_text(error)}", error=error)
                continue
            if mended:
                log.warning("a socket was mended socket=%s reason=%s", server.path, mended)
                self._health.record_error(subject, SettingsError(f"{server.path} was mended: {mended}"))
            self._health.report(subject, "")

    def run(self) -> None:
        """Go from alive to ready; a permanent error is recorded, and the daemon keeps serving DEL."""
        try:
            self._run()
        except NotServingError:
            return  # stopped while it waited
        except Exception as error:  # noqa: BLE001  # top of the thread
            self._health.report(START, f"start: it stopped, ADD is not served before a restart: {log_text(error)}", error=error)

    def drain(self) -> None:
        """Take no ADD any more, and say until when they were taken."""
        self._served_mark.leave()
        self._health.enter(Phase.DRAINING)

    def stop(self) -> None:
        """End every wait and every loop, but not the cooldown and the history, which DEL needs until the process ends."""
        self._stopped.set()
        for loop in [*self._serving, *self._first]:
            loop.stop()

    def close(self) -> None:
        """End the loops that are left."""
        for loop in self._last:
            loop.stop()
        if (facts := self._app.adapters.pod_facts) is not None:
            facts.close()

    def _run(self) -> None:
        app, health, runtime = self._app, self._health, self._app.runtime
        health.enter(Phase.RESTORING)
        for loop in self._last:
            loop.start()
        self._files.follow(self.reload)
        self._files.loop.start()
        if not self._handover.begin():
            return
        app.operator.restore()
        self._drain_hook.make_directory()
        self._drain_hook.look()  # before the pool may grow
        self._files.follow(self._drain_hook)
        self._cloud.loop.start()
        # Before the first sandbox is wired, and without waiting for EC2. A kernel that refuses is a condition: the node serves.
        log.info("confinement repaired=%s", "; ".join(app.host_network.confine()) or "in place")
        self._until_done("spool", self._replay_spool)
        listed = self._first_list()
        if listed is not None:
            app.other_daemon.heed(listed.values())
        has_addresses = any(eni.host_ready and eni.managed for eni in app.context.datastore.enis())
        self._await(lambda: self._cloud.is_answered, patience_s=CLOUD_PATIENCE_S if has_addresses else math.inf)
        self._until_done("kernel", lambda: self._restore(listed))
        self._until_done("aws-node", self._handover.finish)
        self._until_done("host-routing", self._set_up_eni_routings)
        app.pool.subnets.mark()  # by the settings of now, whatever was recorded: EC2 may not have answered yet
        with health.stage("serve") as stage:
            health.enter(Phase.SERVING)
            stage.detail = str(app.context.datastore.counts())
        for loop in self._serving:
            loop.start()
        self._files.follow(self._conflist)  # plugins are asked while EC2 is
        self._cloud.loop.wake()
        if runtime is not None:
            runtime.begin()
        app.context.demand.announce_supply()
        app.context.demand.trigger()
        with health.stage("first-address") as stage:
            stage.detail = self._first_address.wait()
        with health.stage("plugins") as stage:
            self._await(lambda: bool(self._conflist.said))
            stage.detail = self._conflist.said
        self._conflist.begin()  # before: its looks report a file that cannot be written too
        self._until_done("conflist", self._write_conflist)
        self._files.loop.wake()
        self._first_address.remember()
        health.mark_ready()
        self._served_mark.tidy()
        self._served_mark.leave()
        log.info("ready after start took_s=%.2f addresses=%s", health.uptime_s(), app.context.datastore.counts())

    def _first_list(self) -> dict[str, Sandbox] | None:
        """Wait for the runtime's first complete list.

        Returns: sandboxes by ID; None if CRI is off, or if it does not answer and the datastore is intact. A datastore that is
            not intact cannot be rebuilt without the list: then the wait has no limit.
        """
        runtime = self._app.runtime
        if runtime is None:
            self._health.report("cri", "CRI is off: nothing is reaped")
            return None
        runtime.loop.start()
        is_intact = self._app.adapters.opened.report.is_intact
        self._await(lambda: runtime.first_list is not None, patience_s=RUNTIME_PATIENCE_S if is_intact else math.inf)
        return runtime.first_list

    def _await(self, is_done: Callable[[], bool], *, patience_s: float = math.inf) -> None:
        """Wait for the first turn of a loop. Raises: NotServingError if the daemon is stopped."""
        deadline = time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0 and not self._health.wait_for(is_done, min(left_s, LOOK_S)):
            self._require_running(0.0)

    def _require_running(self, pause_s: float) -> None:
        if self._stopped.wait(pause_s):
            raise NotServingError("vpc-ipamd is shutting down")

    def _until_done(self, what: str, step: Callable[[], None]) -> None:
        """Repeat an idempotent step until it succeeds. Raises: an error that a repetition cannot repair; NotServingError."""
        while True:
            try:
                step()
                self._health.report(what, "")
                return
            except IpamError as error:
                if not (error.retryable or isinstance(error, WORTH_REPEATING)):
                    raise
                self._health.report(what, f"{what}: {log_text(error)}; tried again until it succeeds", error=error)
            self._require_running(self._app.context.agenda.put_off(("start", what), NODE))

    def _replay_spool(self) -> None:
        with self._health.stage("spool") as stage:
            count = self._app.spooled_deletes.replay(deadline=Deadline.after(self._app.context.clock, REPLAY_DEADLINE_S))
            stage.detail = f"{counted(count, 'DEL')} carried out"

    def _restore(self, listed: dict[str, Sandbox] | None) -> None:
        with self._health.stage("kernel") as stage:
            outcome = self._app.startup.reconcile_kernel(self._app.context.wiring.survey(), listed)
            stage.detail = str(outcome)
        if outcome.duplicates:
            sentence = f"{'; '.join(outcome.duplicates)}: given to nobody else; delete the sandbox that should not have it"
            self._health.report("duplicates", sentence)
            log.error("I1 was broken before this start what=%s", sentence)
        log.info("restored result=%s", outcome)

    def _set_up_eni_routings(self) -> None:
        self._app.cloud.links.compare()  # an ENI whose link is gone is not waited for
        with self._health.stage("host-routing") as stage:
            problems = self._app.pool.enis.routing.set_up_all()
            if self._app.adapters.node_info.identity() is None:
                problems.append("the node's own part waits for instance metadata")
            if problems:
                stage.degrade("; ".join(problems))

    def _write_conflist(self) -> None:
        with self._health.stage("conflist") as stage:
            stage.detail = str(conflist.write(self._app.settings, self._conflist.versions))
            if said := self._take_others():
                stage.detail += f"; {said}"

    def _take_others(self) -> str:
        """Set aside what amazon-vpc-cni-k8s left: its conflist, and then its chains. Raises: IpamError."""
        said = self._handover.take_conflist()
        problem = ""
        try:
            if removed := self._handover.tidy():
                self._app.host_network.record_repair(f"removed what amazon-vpc-cni-k8s had left in nftables: {removed}")
        except IpamError as error:
            problem = f"aws-node chains: they could not be removed: {log_text(error)}; tried again"
        self._health.report("aws-node chains", problem)
        return said
