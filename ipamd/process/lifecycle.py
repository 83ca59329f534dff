"""The daemon's start, from alive to ready, and its end.

docs/life.md, Start, has the order of the steps. A start waits as little as possible: with an intact datastore it needs only the
kernel, and the cloud loop goes on asking the other sources in the background (`ipamd/process/cloud_loop.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from ipamd.core.backoffs import NODE
from ipamd.core.deadline import Deadline
from ipamd.core.health import START, ConditionHandle, Health, Phase
from ipamd.core.loop import Loop
from ipamd.datastore.open import current_boot_id
from ipamd.history.writer import PAUSE_S, REFUSED_MAX_S
from ipamd.host.conflist_keeper import ConflistKeeper, OtherCni
from ipamd.host.files import FileFollowers
from ipamd.host.freeze_files import DrainHookFile
from ipamd.host.maintenance import Maintenance
from ipamd.host.runtime_directories import RuntimeDirectories
from ipamd.migration.handover import Handover
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import DatastoreError, IpamError, NotServingError, SettingsError, log_text
from ipamd.model.repair_messages import repair_texts
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.process.bootstrap import App
from ipamd.process.cloud_loop import CloudLoop
from ipamd.process.first_address import FirstAddress
from ipamd.process.network_watch import NetworkFileWatch
from ipamd.process.reload import SettingsReload
from ipamd.process.served_mark import ServedMark
from ipamd.rpc.unix_server import UnixServer

WORTH_REPEATING = (DatastoreError, SettingsError)
"""Errors that are not retryable in general, but after which a step of the start is repeated. The repetition may succeed, because a DEL
or EC2's answer had changed a row that the step was using, or because a directory was not mounted yet."""

CLOUD_PATIENCE_S = 0.5
"""How many seconds a start waits for EC2, or only for metadata (`_await_cloud`), if the records have a managed ENI whose routing was
set up. Otherwise it waits without limit. Ours, measured: with 3 s and an EC2 that does not answer, the first ADD took 3.4 s, which is
above the budget of 2 s (docs/performance.md)."""

SHORT_ABSENCE_S = 60.0
"""If the daemon was absent for at most this many seconds, a start with an intact datastore and a usable ENI waits for metadata but not
for EC2 (docs/adr/0087). Ours: STATUS bridges an absence of the same length."""

RUNTIME_PATIENCE_S = 1.0
"""How many seconds a start with an intact datastore waits for CRI. Ours: a list takes milliseconds, and a runtime that does not answer
must not delay every pod. The start may go on without the answer, because nothing is freed then."""

REPEATED = ("spool", "kernel", "aws-node", "host-routing", "conflist")
"""Steps of a start that are repeated after a failure. Each reports its failure as the part `start` of the condition with the step's
name.
"""

CHECK_S = 0.2
"""Longest pause, in seconds, until a waiting step of the start checks again whether the daemon ends. Ours: the check only reads
memory."""

REPLAY_DEADLINE_S = 30.0
"""The longest time, in seconds, for which the replay of the spool at the start waits for locks. It has a limit, because the start goes
on only when the replay has ended."""

REPLAY_WHILE_SERVING_S = 1.0
"""The longest time, in seconds, for which a replay of the spool by the maintenance waits for the locks of sandboxes and of the spool.
Ours: the next replay comes 5 s later, and one sandbox must not delay the check for another daemon."""

log = logging.getLogger(__name__)


def _claim_conditions(health: Health, sockets: Iterable[str]) -> dict[str, ConditionHandle]:
    """Claim the conditions of the sockets, and a part of the condition of each repeated step. Returns: the handles by subject."""
    conditions = {subject: health.claim(subject) for subject in sockets}
    for step in REPEATED:
        conditions[step] = health.claim(step, part="start")
    return conditions


class Lifecycle:
    """The start and the end of one daemon process.

    `run` is the body of the start's thread. `stop` ends its waits and the loops.
    `reload`: reads changed settings; SIGHUP requests that.
    """

    def __init__(self, app: App, *, end: Callable[[str], None], server: UnixServer | None = None) -> None:
        """Compose the start.

        Args:
            end: exits the process. It is called with the reason, if only a restart can repair a problem.
            server: the server on our plugin's socket.
        """
        self._app, self._end, context, daemon = app, end, app.context, app.settings.daemon
        self._servers = {"socket": server, "cni-backend": app.cni_backend}
        self._health, self._stopped, self._is_serving = context.health, threading.Event(), threading.Event()
        self._conditions = _claim_conditions(self._health, self._servers)
        run_dir, boot_id = daemon.run_dir, current_boot_id()
        self._served_mark = ServedMark(run_dir, boot_id=boot_id, health=self._health)
        self._handover = Handover(
            aws_node=app.adapters.aws_node,
            is_overtaken=app.adapters.is_overtaken,
            export=app.export,
            other=app.other_daemon,
            backend=app.cni_backend,
            backend_condition=self._conditions["cni-backend"],
            hostnet=app.adapters.hostnet,
            identity=app.adapters.node_info.identity,
            stopped=self._stopped,
            quiesce=self.stop,
            leave_mark=self._served_mark.leave,
            end=end,
            left_chains=app.imported.left_chains,
        )
        self._maintenance = Maintenance(
            context,
            spool=app.adapters.spool,
            leave_mark=self._served_mark.leave,
            replay=self._replay_spool_while_serving,
            find_other_daemon=self._handover.check,
            keep_sockets=self._keep_sockets,
            clean_up_policy=self._clean_up_policy,
            release_idle=app.adapters.ec2.release_idle,
            end=end,
        )
        self._cloud = CloudLoop(app)
        self._files = FileFollowers(health=self._health, clock=context.clock, backoffs=context.backoffs)
        self.reload = SettingsReload(app.current, health=self._health, wake=self._files.loop.wake)
        in_force = app.adapters.network_file
        self._network_watch = NetworkFileWatch(app.current.now.subnets, in_force=in_force, health=self._health)
        self._drain_hook = DrainHookFile(context.freeze, path=daemon.freeze_path)
        self._conflist = self._conflist_keeper()
        self._first_address = FirstAddress(context, run_dir=run_dir, boot_id=boot_id, stopped=self._stopped)
        self._first, self._serving, self._last = self._loops()

    def _clean_up_policy(self) -> None:
        """Repeat pending calls to the network policy agent, if a setting requires the agent."""
        if self._app.policy is not None:
            self._app.policy.clean_up()

    def _conflist_keeper(self) -> ConflistKeeper:
        app = self._app
        return ConflistKeeper(
            app.settings,
            runtime=app.adapters.node_info.runtime,
            clock=app.context.clock,
            repair_backoff=app.host_network.repair_backoff,
            health=self._health,
            note=app.host_network.record_repair,
            is_stopped=self._stopped.is_set,
            other_cni=OtherCni(self._take_others, app.settings.takeover.directories),
            companions=app.companions,
            more_directories=RuntimeDirectories(app.adapters.runtime, clock=app.context.clock).directories,
        )

    def _loops(self) -> tuple[list[Loop], list[Loop], list[Loop]]:
        """Make the loops in three groups.

        Returns: the loops that start early, the loops that start when ADD is served, and the loops that `stop` does not end.
        """
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
            if app.settings.runtime.cri_events:
                serving.append(runtime.events)
        if history is not None:
            history_loop = Loop(
                "history",
                history.turn,
                health=self._health,
                clock=app.context.clock,
                changed=history.noted,
                settle_s=PAUSE_S,
                failed_max_s=REFUSED_MAX_S,
            )
            last.append(history_loop)
        return first, serving, last

    def _keep_sockets(self) -> None:
        """Repair each socket that was removed, replaced or made accessible to other users. Report a socket that cannot be repaired."""
        for subject, server in self._servers.items():
            if server is None:
                continue
            try:
                repaired = server.keep()
            except (SettingsError, OSError, RuntimeError) as error:
                unreachable = problem(ConditionCode.SOCKET_UNREACHABLE, cause=log_text(error))
                self._conditions[subject].report(unreachable, error=error)
                continue
            if repaired:
                log.warning("socket repaired socket=%s reason=%s", server.path, repaired)
                self._health.record_error(subject, SettingsError(f"{server.path} was repaired: {repaired}"))
            self._conditions[subject].report(None)

    def run(self) -> None:
        """Run the start, from alive to ready.

        After an IpamError that a repetition cannot repair, the daemon reports a condition and goes on serving DEL. Any other error,
        for example because a thread cannot be started, ends the process: a part of the start may be missing, and the next start may
        succeed.
        """
        try:
            self._run()
        except NotServingError:
            return  # the daemon was stopped while the start waited
        except IpamError as error:
            state = "ADD is not served"
            if self._health.phase is Phase.SERVING:
                state = "it is not ready"
            stopped = problem(ConditionCode.START_STOPPED, state=state, cause=log_text(error))
            self._health.report(START, stopped, error=error)
        except Exception as error:  # top of the thread
            # No condition of the start is reported, because it would refuse the waiting ADDs. The next daemon serves them.
            log.error("the start failed error=%s", log_text(error), exc_info=error)
            self._end(f"the start failed: {log_text(error)}")

    def drain(self) -> None:
        """Stop serving ADD, and record when this daemon last served."""
        self._served_mark.leave()
        self._health.enter(Phase.DRAINING)

    def stop(self) -> None:
        """End every wait and every loop except the cooldown and the history, which DEL needs until the process ends."""
        self._stopped.set()
        for loop in [*self._serving, *self._first]:
            loop.stop()
        self._is_serving.set()  # ends loops that still wait for this event before their first turn

    def close(self) -> None:
        """End the loops that `stop` leaves running, and the connection to kubelet. It is called after the last request."""
        for loop in self._last:
            loop.stop()
        pod_facts = self._app.adapters.pod_facts
        if pod_facts is not None:
            pod_facts.close()

    def _run(self) -> None:
        app, health, runtime = self._app, self._health, self._app.runtime
        absence_s = self._served_mark.absence_s()
        health.enter(Phase.RESTORING)
        for loop in self._last:
            loop.start()
        self._follow_settings()
        if not self._handover.begin():
            return
        app.operator.restore()
        self._drain_hook.make_directory()
        self._drain_hook.check()  # before the pool may grow
        self._files.follow(self._drain_hook)
        self._cloud.loop.start()
        # Confine sandboxes before the first one is wired; this needs no answer of EC2. If the kernel refuses the tables, a condition
        # is reported and the start goes on.
        log.info("confinement repaired=%s", repair_texts(app.host_network.confine()) or "in place")
        self._until_done("spool", self._replay_spool)
        listed = self._first_list()
        if listed is not None:
            app.other_daemon.check_pods(listed.values())
        self._await_cloud(absence_s)
        self._until_done("kernel", lambda: self._restore(listed))
        self._until_done("aws-node", self._handover.finish)
        self._until_done("host-routing", self._set_up_eni_routings)
        # Mark the ENIs that get no new sandbox. EC2's first answer has the same effect, but perhaps it has not come yet.
        app.pool.subnets.mark_exclusions()
        self._serve()
        self._files.follow(self._conflist)  # before the wait for an address, so that plugins report their versions meanwhile
        self._cloud.loop.wake()
        if runtime is not None:
            runtime.begin()
        app.context.demand.announce_supply()
        app.context.demand.trigger()
        with health.stage("first-address") as stage:
            stage.detail = self._first_address.wait()
        with health.stage("plugins") as stage:
            self._await(lambda: bool(self._conflist.versions_text))
            stage.detail = self._conflist.versions_text
        self._conflist.begin()  # before the conflist is written, because the keeper also reports a failure to write it
        self._until_done("conflist", self._write_conflist)
        self._files.loop.wake()
        self._first_address.remember()
        health.mark_ready()
        self._served_mark.tidy()
        self._served_mark.leave()
        log.info("ready after start took_s=%.2f addresses=%s", health.uptime_s(), app.context.datastore.counts())

    def _await_cloud(self, absence_s: float) -> None:
        """Wait for the answer of EC2; after a short absence, with an intact datastore and a usable ENI, only for that of metadata.

        With a usable ENI the wait ends after CLOUD_PATIENCE_S, even without an answer. An ENI is usable if it is managed and its
        routing was set up. `absence_s`: for how many seconds no daemon has served.
        """
        has_addresses = any(eni.host_ready and eni.managed for eni in self._app.context.datastore.enis())
        patience_s = CLOUD_PATIENCE_S if has_addresses else math.inf
        if has_addresses and absence_s <= SHORT_ABSENCE_S and self._app.adapters.opened.report.is_intact:
            self._await(lambda: self._cloud.is_node_set_up, patience_s=patience_s)
        else:
            self._await(lambda: self._cloud.is_answered, patience_s=patience_s)

    def _follow_settings(self) -> None:
        """Begin to follow the mounted files: the settings file, and the network file if a setting uses it."""
        self._files.follow(self.reload)
        if self._app.current.now.subnets.reads_network_file:
            self._files.follow(self._network_watch)
        self._files.loop.start()

    def _serve(self) -> None:
        """Begin to serve ADD.

        The loops are started before that, but their first turns wait until ADD is served, so that no ADD waits for these turns.
        """
        with self._health.stage("serve") as stage:
            for loop in self._serving:
                loop.start(gate=self._is_serving)
            self._health.enter(Phase.SERVING)
            self._is_serving.set()
            stage.detail = str(self._app.context.datastore.counts())

    def _first_list(self) -> dict[str, Sandbox] | None:
        """Wait for the runtime's first complete list.

        The wait has no limit if the datastore is not intact, because the rows cannot be rebuilt without the list.
        Returns: sandboxes by container ID; None if CRI is off, or if the runtime does not answer in time.
        """
        runtime = self._app.runtime
        if runtime is None:
            unlisted = self._health.claim("cri")  # with CRI on, the runtime reconciler claims this condition
            unlisted.report(problem(ConditionCode.RUNTIME_OFF))
            return None
        runtime.loop.start()
        patience_s = math.inf
        if self._app.adapters.opened.report.is_intact:
            patience_s = RUNTIME_PATIENCE_S
        with self._health.stage("cri") as stage:
            self._await(lambda: runtime.first_list is not None, patience_s=patience_s)
            listed = runtime.first_list
            if listed is None:
                stage.degrade(runtime.view().detail)
            else:
                stage.detail = counted(len(listed), "sandbox")
        return listed

    def _await(self, is_done: Callable[[], bool], *, patience_s: float = math.inf) -> None:
        """Wait until `is_done` returns true, at most for `patience_s`. Raises: NotServingError if the daemon is stopped."""
        deadline = time.monotonic() + patience_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._health.wait_for(is_done, min(left_s, CHECK_S)):
                return
            self._require_running(0.0)

    def _require_running(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds. Raises: NotServingError as soon as the daemon is stopped."""
        if self._stopped.wait(pause_s):
            raise NotServingError("vpc-ipamd is shutting down")

    def _until_done(self, name: str, step: Callable[[], None]) -> None:
        """Repeat an idempotent step until it succeeds. Raises: NotServingError, or an error that a repetition cannot repair."""
        while True:
            try:
                step()
                self._conditions[name].report(None)
                return
            except IpamError as error:
                if not (error.retryable or isinstance(error, WORTH_REPEATING)):
                    raise
                failed = problem(ConditionCode.START_STEP_FAILED, cause=log_text(error))
                self._conditions[name].report(failed, error=error)
            self._require_running(self._app.context.backoffs.back_off(("start", name), NODE))

    def _replay_spool(self) -> None:
        with self._health.stage("spool") as stage:
            count = self._app.spooled_deletes.replay(deadline=Deadline.after(self._app.context.clock, REPLAY_DEADLINE_S))
            stage.detail = f"{counted(count, 'DEL')} carried out"

    def _replay_spool_while_serving(self) -> None:
        """Carry out DELs that were spooled after the start. The detail of the start's stage is not changed."""
        deadline = Deadline.after(self._app.context.clock, REPLAY_WHILE_SERVING_S)
        count = self._app.spooled_deletes.replay(deadline=deadline)
        if count:
            log.info("spooled DELs carried out count=%d", count)

    def _restore(self, listed: dict[str, Sandbox] | None) -> None:
        with self._health.stage("kernel") as stage:
            outcome = self._app.startup.reconcile_kernel(self._app.context.wiring.survey(), listed)
            stage.detail = str(outcome)
        if outcome.duplicates:
            self._app.host_network.report_duplicates(outcome.duplicates)
            log.error("I1 was broken before this start what=%s", "; ".join(outcome.duplicates))
        log.info("restored result=%s", outcome)

    def _set_up_eni_routings(self) -> None:
        self._app.cloud.links.compare()  # so that the set-up does not wait for an ENI whose link is gone
        with self._health.stage("host-routing") as stage:
            problems = self._app.pool.enis.routing.set_up_all()
            if self._app.adapters.node_info.identity() is None:
                problems.append("the node's own routing is set up once instance metadata answers")
            if problems:
                stage.degrade("; ".join(problems))

    def _write_conflist(self) -> None:
        with self._health.stage("conflist") as stage:
            stage.detail = str(self._conflist.write())
            outcome = self._take_others()
            if outcome:
                stage.detail += f"; {outcome}"

    def _take_others(self) -> str:
        """Set aside the conflist of amazon-vpc-cni-k8s, and then remove its chains. Raises: IpamError.

        Returns: a sentence about the conflist, "" if there was none.
        """
        outcome = self._handover.take_conflist()
        chains_problem = None
        try:
            removed = self._handover.remove_left_chains()
            if removed:
                self._app.host_network.record_repair(f"removed what amazon-vpc-cni-k8s had left in nftables: {removed}")
        except IpamError as error:
            chains_problem = problem(ConditionCode.CHAINS_LEFT, cause=log_text(error))
        self._health.report("aws-node chains", chains_problem)
        return outcome
