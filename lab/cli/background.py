"""`vpc-lab up` and `down`: start, await and stop a lab in a process of its own.

That process is `up --foreground`. It writes "ready" to a pipe once its control socket listens; if it fails, what it wrote before
is the reason. `up --daemon` then waits over the control socket until pods can run.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab.cli.control import ControlError, ControlServer, ask
from lab.node import workspace

UP_TIMEOUT_S = 60.0
DOWN_TIMEOUT_S = 20.0
POLL_S = 0.02


def up(arguments: argparse.Namespace) -> int:
    """Start a lab; with --daemon return when every node can run pods. Raises: ControlError if it is not up."""
    if arguments.foreground:
        return _serve(arguments)
    name = arguments.name
    pid = _start(arguments)
    print(f"lab {name!r} is up (process {pid}); `vpc-lab status --name {name}`", flush=True)
    if arguments.daemon:
        try:
            ready = ask(name, "await_daemons", timeout_s=None)["ready"]
        except ControlError as error:
            raise ControlError(f"{error}\n\nthe lab is left up for a look; end it with `vpc-lab down --name {name}`") from None
        print(f"vpc-ipamd is ready on {', '.join(ready)}")
    return 0


def down(arguments: argparse.Namespace) -> int:
    """Stop a lab, or remove what a killed one left. Raises: ControlError if something is left."""
    name = arguments.name
    if name not in workspace.names():
        print(f"lab {name!r} is not up, and nothing of it is left")
        return 0
    try:
        ask(name, "down", timeout_s=5.0)
    except ControlError:
        _kill(name)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while workspace.is_up(name) and time.monotonic() < deadline:
        time.sleep(POLL_S)  # flock has no timeout
    if workspace.is_up(name):
        _kill(name)
    if name in workspace.names() and not workspace.clean(name):
        raise ControlError(f"something of lab {name!r} is left in {workspace.STATE_ROOT / name} or its cgroup")
    print(f"lab {name!r} is down")
    return 0


def _start(arguments: argparse.Namespace) -> int:
    """Start the process that serves the lab, and let it live on without us; its ID."""
    ready_r, ready_w = os.pipe2(os.O_CLOEXEC)
    argv = [sys.executable, "-m", "lab.cli", *_up_arguments(arguments), "--foreground", "--ready-fd", str(ready_w)]
    with subprocess.Popen(
        argv,
        pass_fds=[ready_w],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=ready_w,  # until it is up; then it goes to the lab's log
        start_new_session=True,
    ) as process:
        os.close(ready_w)
        try:
            text = _read_until_closed(ready_r, timeout_s=UP_TIMEOUT_S)
        except KeyboardInterrupt:
            process.kill()
            raise
        if text.endswith("ready\n"):
            process.returncode = 0  # it lives on without us
            return process.pid
        process.kill()
    raise ControlError(text.strip().removeprefix("vpc-lab: ") or f"the lab was not up within {UP_TIMEOUT_S:.0f} s")


def _up_arguments(arguments: argparse.Namespace) -> list[str]:
    flags = [f"--{name.replace('_', '-')}" for name in ("no_containerd", "outside", "daemon", "ipv6") if getattr(arguments, name)]
    settings = [f"--env={key}={value}" for key, value in arguments.env]
    values = ("name", "nodes", "hosts", "type", "attach_delay", "containerd")
    return ["up", *(f"--{name.replace('_', '-')}={getattr(arguments, name)}" for name in values), *flags, *settings]


def _serve(arguments: argparse.Namespace) -> int:
    """Be the lab until told to stop; everything is removed on the way out."""
    from lab.cli.aws_nodes import AwsNodes
    from lab.cli.daemons import Daemons
    from lab.lab import IPV6_CIDR, Lab  # ~150 ms of imports that no other command needs
    from lab.vpc.family import IPV4, IPV6
    from lab.vpc.interfaces import Delays
    from lab.vpc.state import Vpc

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lab = Lab(
        name=arguments.name,
        nodes=[f"node-{chr(ord('a') + number)}" for number in range(arguments.nodes)],
        hosts=[f"host-{chr(ord('a') + number)}" for number in range(arguments.hosts)],
        instance_type=arguments.type,
        containerd=not arguments.no_containerd and (Path(arguments.containerd) if arguments.containerd else True),
        vpc=Vpc(delays=Delays(attach_s=arguments.attach_delay), ipv6_cidr=IPV6_CIDR if arguments.ipv6 else ""),
    )
    with lab:
        if arguments.outside:
            lab.add_internet()
        daemons = Daemons(lab)
        control = ControlServer(lab, daemons, AwsNodes(lab))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: control.stopping.set())
        if arguments.daemon:
            for node in lab.nodes:
                daemons.start(node, env={**(IPV6 if arguments.ipv6 else IPV4).settings, **dict(arguments.env)})
        control.start()
        if arguments.ready_fd >= 0:
            _detach_from_starter(arguments.ready_fd, arguments.name)
        control.stopping.wait()
        control.stop()
    return 0


def _detach_from_starter(ready_fd: int, name: str) -> None:
    os.write(ready_fd, b"ready\n")
    log_fd = os.open(workspace.STATE_ROOT / name / "lab.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    os.close(ready_fd)


def _read_until_closed(fd: int, *, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    text = b""
    with open(fd, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = pipe.read(65536)
            if not chunk:
                break
            text += chunk
            if text.endswith(b"ready\n"):
                break
    return text.decode(errors="replace")


def _kill(name: str) -> None:
    """Kill a lab that does not answer; its guard, if alive, then removes what it left."""
    record = workspace.read_record(name)
    if record is not None and workspace.is_running(record):
        os.kill(record.pid, signal.SIGKILL)
