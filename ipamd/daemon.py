"""The daemon's process: settings, lock, datastore, socket, start-up in the background, signals, drain, exit.

On SIGHUP the daemon reads the settings again (`ipamd/process/reload.py`).

On the first SIGTERM or SIGINT it drains: it ceases to be ready, leaves ADD to its successor, and gives running requests a second to
end. By default it does not wait for further DELs, because the plugin spools them (`VPC_IPAMD_DRAIN_SECONDS`). On the second signal it
exits at once. That is safe, because every change is on disk before its request is answered.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ipamd import logs
from ipamd.grpc_environment import prepare_grpc
from ipamd.malloc import limit_arenas, return_free_memory
from ipamd.model.errors import DatastoreError, IpamError, SettingsError, log_text
from ipamd.model.words import printable
from ipamd.settings import CurrentSettings, differences, load, without_meaning
from ipamd.settings.fields import RUN_DIR
from ipamd.settings.start_record import StartRecord
from ipamd.unused_modules import leave_out_unused_modules

if TYPE_CHECKING:
    import socket

    from ipamd.http.late_ports import LatePorts
    from ipamd.ports.kernel import VlanLinks
    from ipamd.process.bootstrap import App
    from ipamd.process.lifecycle import Lifecycle
    from ipamd.rpc.unix_server import UnixServer
    from ipamd.rpc.watch import ServiceWatch

EXIT_SETTINGS = 2
EXIT_DATASTORE = 3
EXIT_FAILED = 1

END_MAX_S = 15
"""Time from an internal failure until the kernel ends the process, even if it hangs. Ours: a normal end takes a second or two."""

DESCRIPTORS = 65536
"""The daemon raises its soft limit of descriptors to this, if the hard limit allows it. Ours: far more than it uses, because ADD fails
when no descriptor is left."""

DESCRIPTORS_BESIDE_RPCS = 200
"""Descriptors that the daemon needs besides one for each RPC. Ours: 64 for connections of the metrics port, and the rest for
files, sockets, and the namespaces of sandboxes."""

LIBRARIES = ("grpc", "sqlalchemy.dialects.sqlite", "google.protobuf.internal.builder", "prometheus_client", "http.client")
"""Modules of libraries that are imported before our modules that use them. Two thirds of the objects after all imports are theirs."""

log = logging.getLogger("ipamd")


FAILURE = 0
"""Byte in the signals' pipe that stands for an internal failure; other bytes are signal numbers."""


class Signals:
    """Waits for an order to end the daemon (SIGTERM, SIGINT, or an internal failure) and for SIGHUP. The first order to end drains the
    daemon, the second ends it at once.

    The interpreter writes each signal's number into a pipe when it arrives, and `wait` reads the pipe. Rejected: a handler that sets
    an Event, because it deadlocks when it interrupts that Event's own `wait`, and because a lock may begin to block just after the
    interpreter has checked for signals. Source: https://docs.python.org/3/library/signal.html, set_wakeup_fd.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self.failure = ""
        self.exit_status = 0
        self.is_ending = False
        self._is_reload_asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # The handler only replaces the default action, which would end the process; the pipe carries the request.
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, *, reload: Callable[[], None], check: Callable[[], None] = lambda: None, check_s: float | None = None) -> str:
        """Block until the first order to end; returns its reason.

        Calls `reload` for each SIGHUP, and once for all those that `wait_again` has read before. Calls `check` after each signal, and
        whenever `check_s` seconds have passed without one; None: no time.
        """
        while True:
            if self._is_reload_asked:
                self._is_reload_asked = False
                reload()
            reason = self._next(check_s)
            if reason:
                self.is_ending = True
                return reason
            check()

    def wait_again(self, timeout_s: float) -> bool:
        """Block until the next order to end. Returns: False if the time is up first. A SIGHUP that arrives is left to `wait`."""
        deadline = time.monotonic() + timeout_s
        while not self._next(max(deadline - time.monotonic(), 0.0)):
            if time.monotonic() >= deadline:
                return False
        return True

    def fail(self, reason: str) -> None:
        """Exit at once, with a status that makes the supervisor restart the daemon. From any thread.

        The failed part may hang, or hold a lock that the orderly end needs. So SIGALRM, which has no handler, ends the process after
        END_MAX_S: an alarm needs neither a thread nor the interpreter.
        """
        log.warning("exiting after an internal failure reason=%s", reason)
        self.exit_status, self.failure = EXIT_FAILED, reason
        signal.alarm(END_MAX_S)
        os.write(self._writer, bytes([FAILURE, FAILURE]))  # two orders to end, so that the daemon does not drain

    def _next(self, timeout_s: float | None) -> str:
        """Wait for a signal. Returns: the reason of an order to end, or "" if the time is up first or SIGHUP arrived."""
        is_ready, _, _ = select.select([self._reader], [], [], timeout_s)
        if not is_ready:
            return ""
        number = os.read(self._reader, 1)[0]
        if number == signal.SIGHUP:
            self._is_reload_asked = True
            return ""
        if number == FAILURE:
            return self.failure
        return signal.Signals(number).name


def end_with_a_thread(signals: Signals, failed: threading.ExceptHookArgs) -> None:
    """End the process after an exception has ended a thread, because no other thread does the work of that thread.

    This covers every thread of the process, including those of libraries: grpcio dispatches requests by a single thread. While the
    daemon is ending, the exception is only logged.
    """
    name = "unknown"
    if failed.thread is not None:
        name = failed.thread.name
    error = failed.exc_value or failed.exc_type()
    log.error("a thread was ended by an exception thread=%s error=%s", name, log_text(error), exc_info=error)
    if not signals.is_ending:
        signals.fail(f"the thread {name} was ended by an exception: {log_text(error)}")


def main(*, vlan_links: VlanLinks | None = None) -> int:
    """Run the daemon until a signal or a failure ends it, or run the command that the process's arguments name.

    Args:
        vlan_links: makes VLAN links if the kernel cannot, as on a lab's machine.
    Returns: the exit status.
    """
    if sys.argv[1:]:
        return _run_command(sys.argv[1:])
    leave_out_unused_modules()
    prepare_grpc()
    gc.disable()  # imported modules are never freed, and scanning them for garbage took a sixth of the start
    # The default action of SIGHUP would end the process. An ignored SIGHUP is not missed, because the settings are read after this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    record = StartRecord(Path(os.environ.get("VPC_IPAMD_RUN_DIR") or RUN_DIR))
    record.begin()
    exit_status, reason, next_step = _run_with_settings(vlan_links)
    record.end(exit_status, reason=reason, next_step=next_step)
    return exit_status


def _run_command(arguments: list[str]) -> int:
    """Run `ipamd clean-up` or `ipamd datastore`; returns the exit status."""
    if arguments[0] == "clean-up":
        from ipamd.process import clean_up

        return clean_up.main(arguments[1:])
    from ipamd.datastore import command

    return command.main(arguments)


def _run_with_settings(vlan_links: VlanLinks | None) -> tuple[int, str, str]:
    """Read the settings, and run. Returns: the exit status, and the reason and the next step if they are known."""
    try:
        settings = load()
    except SettingsError as error:
        text = printable(str(error), most=logs.MESSAGE_MAX)
        step = f"; next: {error.next_step}" if error.next_step else ""
        print(f"vpc-ipamd: {text}{step}", file=sys.stderr)  # noqa: T201  # logging is not set up yet
        return EXIT_SETTINGS, text, error.next_step
    logs.set_up(settings.daemon.log_level)
    ignored = without_meaning()
    if ignored:
        log.warning("settings without meaning ignored=%s", ignored)
    for difference in differences():
        log.warning("a setting of amazon-vpc-cni-k8s does something else here difference=%s", difference)
    from ipamd.http.listening import listen_early

    early = listen_early(settings.daemon.health_address)
    limit_arenas()
    _raise_descriptor_limit(settings.daemon.max_concurrent_rpcs)
    signals = Signals()
    threading.excepthook = partial(end_with_a_thread, signals)
    try:
        return run(CurrentSettings(settings), signals, early=early, vlan_links=vlan_links), signals.failure, ""
    except IpamError as error:
        log.error("the daemon ends error=%s", error)
        return _exit_status(error), str(error), ""
    except Exception as error:  # top of the process
        log.error("the daemon ends error=%s", log_text(error), exc_info=error)
        signal.alarm(END_MAX_S)  # threads that have started may keep the process alive
        return EXIT_FAILED, log_text(error), ""


def _exit_status(error: IpamError) -> int:
    if isinstance(error, SettingsError):
        return EXIT_SETTINGS
    if isinstance(error, DatastoreError):
        return EXIT_DATASTORE
    return EXIT_FAILED


def _raise_descriptor_limit(rpc_count: int) -> None:
    """Raise the soft limit of descriptors, which many service managers leave at 1,024. Log a warning if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        soft = sys.maxsize
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    needed = rpc_count + DESCRIPTORS_BESIDE_RPCS
    if max(soft, wanted) < needed:
        log.warning("the limit of descriptors is too low limit=%d needed=%d rpcs=%d", wanted, needed, rpc_count)


def run(current: CurrentSettings, signals: Signals, *, early: list[socket.socket], vlan_links: VlanLinks | None = None) -> int:
    """Serve until a signal or a failure ends the daemon; returns the exit status.

    Args:
        early: the list of sockets that `listen_early` returned for the health port.
    Raises: SettingsError, DatastoreError, NotServingError if the daemon cannot start.
    """
    from ipamd.cloud.child import start

    settings, ec2_process = current.now, None
    with suppress(OSError):  # the first call to EC2 reports the error
        ec2_process = start(settings.cloud)  # first, so that the child imports its modules while this process does
    _import_libraries()
    from ipamd.rpc.server import RpcServer
    from ipamd.rpc.watch import INTERVAL_S, ServiceWatch

    lock, has_run_before = _take_lock(settings.daemon.run_dir, signals)
    from ipamd.process import early_question

    cloud = early_question.begin(settings, ec2_process)
    from ipamd.process.adapters import connect
    from ipamd.process.bootstrap import App
    from ipamd.process.lifecycle import Lifecycle

    current.follow(lambda now: now.daemon.log_level, logs.set_level)
    adapters = connect(current, has_run_before=has_run_before, cloud=cloud, vlan_links=vlan_links)
    app = App(adapters, current)
    health = app.context.health
    directory = settings.daemon.run_dir
    server = RpcServer(run_dir=directory, cni=app.cni, introspection=lambda: app.introspection, max_concurrent_rpcs=app.rpc_limit)
    gc.collect()  # mostly the classes that `dataclass` has replaced by classes with slots, 0.7 MiB
    gc.freeze()  # modules and services live as long as the process, so no collection needs to scan them
    with health.stage("rpc") as stage:
        server.start()
        stage.detail = "DEL and introspection are served"
    watch = ServiceWatch(server, health=health, clock=app.context.clock, end=signals.fail)
    watch.loop.start()
    ports = _ports(app, early, is_answered=watch.is_alive)
    ports.start("health port")
    log.info("alive after start took_s=%.3f datastore=%s", health.uptime_s(), app.adapters.opened.report.detail)
    ports.start("metrics port")  # before the start-up: a client that sees the daemon ready may use every port
    ports.loop.start()
    life = Lifecycle(app, end=signals.fail, server=server)
    threading.Thread(target=_start_up, args=[life], name="start-up", daemon=True).start()
    reason = signals.wait(reload=life.reload.ask, check=watch.check, check_s=INTERVAL_S)
    _end(app, life, signals, reason=reason, parts=(watch, server, ports))
    os.close(lock)
    log.info("exiting")
    signal.alarm(END_MAX_S)  # the interpreter still waits for threads, such as grpcio's
    return signals.exit_status


def _take_lock(run_dir: Path, signals: Signals) -> tuple[int, bool]:
    """Prepare the run directory, and take the instance lock. Returns: see `take_instance_lock`."""
    from ipamd.rpc.run_dir import prepare_run_dir, take_instance_lock
    from ipamd.settings.places import INSTANCE_LOCK, free_places

    prepare_run_dir(run_dir)
    free_places(run_dir, [INSTANCE_LOCK])
    lock, has_run_before = take_instance_lock(run_dir, is_ended=signals.wait_again)
    free_places(run_dir)
    return lock, has_run_before


def _import_libraries() -> None:
    """Import the libraries, and keep their objects from garbage collections. Before, free the garbage of the modules that are imported
    already, which would stay: 0.3 MiB, in 4 ms (measured).
    """
    gc.collect()
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()


def _end(app: App, life: Lifecycle, signals: Signals, *, reason: str, parts: tuple[ServiceWatch, UnixServer, LatePorts]) -> None:
    """Drain, and close everything except the instance lock."""
    from ipamd.model.freeze import FreezeCause

    watch, server, ports = parts
    drain_s = app.settings.daemon.drain_s
    life.drain()
    app.context.freeze.set(FreezeCause.SHUTDOWN, reason)
    log.info("draining: DEL is still served, ADD is not reason=%s drain_s=%d", reason, drain_s)
    life.stop()
    watch.close()
    grace_s = 1.0
    if signals.wait_again(drain_s):
        grace_s = 0.0
    server.stop(grace_s)
    if app.cni_backend is not None:
        app.cni_backend.stop(1.0)
    life.close()
    _close(app, ports)


def _start_up(life: Lifecycle) -> None:
    gc.enable()
    life.run()
    gc.freeze()  # the rows and sockets of the start live as long as the process, too
    return_free_memory()


def _ports(app: App, early: list[socket.socket], *, is_answered: Callable[[], bool]) -> LatePorts:
    """Make the ports for kubelet's probes and for scrapes. Neither serves yet. `is_answered`: see `HealthPages`."""
    from ipamd.http.health_pages import HealthPages, after_start
    from ipamd.http.late_ports import LatePorts
    from ipamd.http.listening import listen
    from ipamd.metrics import page as metrics
    from ipamd.rpc.server import SOCKET_NAME

    daemon, health, refused = app.settings.daemon, app.context.health, app.metrics.scrape_refused
    health_pages = partial(HealthPages, cni_socket=daemon.run_dir / SOCKET_NAME, is_answered=is_answered)
    pages = health_pages(is_ready=lambda: health.is_ready)
    probed = health_pages(is_ready=lambda: health.is_ready or health.is_ending_ready)
    probes = partial(
        listen,
        daemon.health_address,
        variable="VPC_IPAMD_HEALTH_ADDRESS",
        pages=after_start(probed, health=health),
        refused=refused,
        early=early,
    )
    scrapes = partial(metrics.serve, app.metrics, daemon.metrics_address, health=pages)
    ports = {"health port": probes, "metrics port": scrapes}
    return LatePorts(ports, health=health, clock=app.context.clock)


def _close(app: App, ports: LatePorts) -> None:
    """Close the ports, and then the history and the datastore, which they read."""
    ports.close()
    app.refused.record_all()
    if app.adapters.history_writer is not None:
        app.adapters.history_writer.close()
    app.context.datastore.close()


if __name__ == "__main__":
    sys.exit(main())
