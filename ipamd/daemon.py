"""The daemon's process: settings, lock, datastore, socket, start-up in the background, signals, drain, exit.

SIGHUP has the settings read again (`ipamd/reload.py`).

The first SIGTERM or SIGINT drains: not ready, ADD is left to the successor, what is running gets a second to end. By default no DEL is
awaited, because the plugin spools it (`VPC_IPAMD_DRAIN`). The second exits at once, which is safe: everything that matters is on disk.
"""

from __future__ import annotations

import ctypes
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
from types import ModuleType
from typing import TYPE_CHECKING

from ipamd import logs
from ipamd.model.errors import DatastoreError, IpamError, SettingsError
from ipamd.model.words import printable
from ipamd.settings import CurrentSettings, load, without_meaning

if TYPE_CHECKING:
    import socket

    from ipamd.bootstrap import App
    from ipamd.lifecycle import Lifecycle
    from ipamd.metrics_port import LatePorts
    from ipamd.ports import VlanLinks

EXIT_SETTINGS = 2
EXIT_DATASTORE = 3
EXIT_FAILED = 1

M_ARENA_MAX = -8
"""Source: glibc's malloc.h."""

DESCRIPTORS = 65536
"""What the soft limit is raised to, if the hard one allows it. Ours: far more than is used; a limit that is reached refuses ADD."""

DESCRIPTORS_BESIDE_RPCS = 200
"""Ours: 64 connections of the metrics port; files, sockets, and what a burst of requests opens in sandboxes' namespaces."""

log = logging.getLogger("ipamd")


FAILURE = 0
"""Byte in the pipe of requests that stands for a failure of our own; the others are signal numbers."""


class Signals:
    """Requests to end: SIGTERM, SIGINT, and failures of our own. The first one drains, the second one ends at once. And SIGHUP.

    The interpreter writes each signal's number into a pipe at the instant it arrives, and `wait` reads the pipe. A handler that sets
    an Event would deadlock where it interrupts that Event's own `wait`, and any lock may begin to block just after the interpreter
    has looked for signals. Source: https://docs.python.org/3/library/signal.html, set_wakeup_fd.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._failure = ""
        self.exit_status = 0
        self._is_reload_asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Only replaces the default action, which would end the process: the pipe has the request already.
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, *, reload: Callable[[], None]) -> str:
        """Block until the first request to end; returns its reason. `reload` is called for each SIGHUP, also for earlier ones."""
        while True:
            if self._is_reload_asked:
                self._is_reload_asked = False
                reload()
            if reason := self._next(None):
                return reason

    def wait_again(self, timeout_s: float) -> bool:
        """Block until the next request to end; returns False if the time is up first. SIGHUP is none, and `wait` hears of it."""
        deadline = time.monotonic() + timeout_s
        while not self._next(max(deadline - time.monotonic(), 0.0)):
            if time.monotonic() >= deadline:
                return False
        return True

    def fail(self, reason: str) -> None:
        """Exit at once, with a status that makes the supervisor restart the daemon."""
        self.exit_status, self._failure = EXIT_FAILED, reason
        os.write(self._writer, bytes([FAILURE, FAILURE]))

    def _next(self, timeout_s: float | None) -> str:
        """The next request's reason, or an empty string if the time is up first or SIGHUP came."""
        is_ready, _, _ = select.select([self._reader], [], [], timeout_s)
        if not is_ready:
            return ""
        number = os.read(self._reader, 1)[0]
        if number == signal.SIGHUP:
            self._is_reload_asked = True
            return ""
        return self._failure if number == FAILURE else signal.Signals(number).name


def main(*, vlan_links: VlanLinks | None = None) -> int:
    """Run the daemon until it is told to exit; returns the exit status. With arguments: `ipamd datastore`, which works on its file.

    `vlan_links`: who makes these where the kernel cannot, as on a lab's machine.
    """
    if sys.argv[1:]:
        from ipamd.datastore import command

        return command.main(sys.argv[1:])
    _do_without_tls()
    # Each queue of gRPC's looks up every 0.2 s, and with epoll has the other one look, too: a tenth of what an idle daemon costs.
    os.environ.setdefault("GRPC_POLL_STRATEGY", "poll")
    gc.disable()  # what is imported stays: to look through it again and again was a sixth of the start
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its default would end the process; what it asks for is about to be read
    try:
        settings = load()
    except SettingsError as error:
        text = printable(str(error), most=logs.MESSAGE_MAX)
        print(f"vpc-ipamd: {text}", file=sys.stderr)  # noqa: T201  # logging is not set up yet
        return EXIT_SETTINGS
    logs.set_up(settings.daemon.log_level)
    if ignored := without_meaning():
        log.warning("settings without meaning ignored=%s", ignored)
    from ipamd.metrics_port import listen_early

    early = listen_early(settings.daemon.health_address)
    _limit_arenas()
    _raise_descriptor_limit(settings.daemon.max_concurrent_rpcs)
    signals = Signals()
    try:
        return run(CurrentSettings(settings), signals, early=early, vlan_links=vlan_links)
    except IpamError as error:
        log.error("the daemon ends error=%s", error)
        if isinstance(error, SettingsError):
            return EXIT_SETTINGS
        return EXIT_DATASTORE if isinstance(error, DatastoreError) else EXIT_FAILED


def _do_without_tls() -> None:
    """Keep OpenSSL out, which is about 3 MiB (measured): libraries import it, and this process speaks no TLS; EC2 is asked by a child.

    They find a module `ssl` in which every name is a class of errors, and digests are the interpreter's own.
    """
    tls = ModuleType("ssl")
    tls.__getattr__ = lambda name: getattr(None, name) if name.startswith("_") else OSError  # type: ignore[method-assign]
    sys.modules |= {"ssl": tls, "_hashlib": None}  # type: ignore[dict-item]


def _limit_arenas() -> None:
    """Let threads share malloc's arenas: with one per thread the daemon keeps 3 to 4 MiB more (measured)."""
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt; malloc's arenas are not limited")


def _raise_descriptor_limit(rpc_count: int) -> None:
    """Raise the soft limit of descriptors, which many service managers leave at 1,024, and say if even the hard one is scarce."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, allowed = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    wanted = min(allowed, DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if max(soft, wanted) < (needed := rpc_count + DESCRIPTORS_BESIDE_RPCS):
        log.warning("the limit of descriptors is too low limit=%d needed=%d rpcs=%d", wanted, needed, rpc_count)


def run(current: CurrentSettings, signals: Signals, *, early: list[socket.socket], vlan_links: VlanLinks | None = None) -> int:
    """Serve until told to exit. `early`: see `listen`. Raises: SettingsError, DatastoreError, NotServingError if it cannot start."""
    from ipamd.cloud.child import start

    settings, ec2_process = current.now, None
    with suppress(OSError):  # the first call says why
        ec2_process = start(settings.cloud)  # first, so that it imports what it needs while this one does
    from ipamd.rpc.server import RpcServer, prepare_run_dir, take_instance_lock

    prepare_run_dir(settings.daemon.run_dir)
    lock, has_run_before = take_instance_lock(settings.daemon.run_dir, is_ended=signals.wait_again)
    from ipamd.adapters import connect
    from ipamd.bootstrap import App
    from ipamd.lifecycle import Lifecycle
    from ipamd.model.freeze import FreezeCause

    current.follow(lambda now: now.daemon.log_level, logs.set_level)
    adapters = connect(current, has_run_before=has_run_before, ec2_process=ec2_process, vlan_links=vlan_links)
    app = App(adapters, current)
    health = app.context.health
    directory = settings.daemon.run_dir
    server = RpcServer(run_dir=directory, cni=app.cni, introspection=app.introspection, max_concurrent_rpcs=app.rpc_limit)
    gc.freeze()  # modules, and what was made for the whole life: no collection looks at it again
    with health.stage("rpc") as stage:
        server.start()
        stage.detail = "DEL and introspection are served"
    ports = _ports(app, early)
    ports.start("health port")
    log.info("alive after start took_s=%.3f datastore=%s", health.uptime_s(), app.adapters.opened.report.detail)
    ports.start("metrics port")  # before the start-up: who sees us ready may ask every port
    ports.loop.start()
    life = Lifecycle(app, end=signals.fail, server=server)
    threading.Thread(target=_start_up, args=[life], name="start-up", daemon=True).start()
    reason = signals.wait(reload=life.reload.ask)
    drain_s = current.now.daemon.drain_s
    life.drain()
    app.context.freeze.set(FreezeCause.SHUTDOWN, reason)
    log.info("draining: ADD is left to the successor, DEL is served reason=%s drain_s=%d", reason, drain_s)
    life.stop()
    server.stop(0.0 if signals.wait_again(drain_s) else 1.0)
    if app.cni_backend is not None:
        app.cni_backend.stop(1.0)
    life.close()
    _close(app, ports)
    os.close(lock)
    log.info("exiting")
    return signals.exit_status


def _start_up(life: Lifecycle) -> None:
    gc.enable()
    life.run()
    gc.freeze()  # the rows and sockets of the start too


def _ports(app: App, early: list[socket.socket]) -> LatePorts:
    """What answers kubelet's probes and scrapes; neither answers yet."""
    from ipamd import metrics
    from ipamd.metrics_port import HealthPages, LatePorts, after_start, listen
    from ipamd.rpc.server import SOCKET_NAME

    daemon, health, refused = app.settings.daemon, app.context.health, app.metrics.scrape_refused
    pages = HealthPages(cni_socket=daemon.run_dir / SOCKET_NAME, is_ready=lambda: health.is_ready)
    probed = HealthPages(cni_socket=daemon.run_dir / SOCKET_NAME, is_ready=lambda: health.is_ready or health.is_ending_ready)
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
    """Close what still answers, then the history and the datastore, which it reads."""
    ports.close()
    app.refused.tell_all()
    if app.adapters.history_writer is not None:
        app.adapters.history_writer.close()
    app.context.datastore.close()


if __name__ == "__main__":
    sys.exit(main())
