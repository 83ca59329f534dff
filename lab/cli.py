"""`vpc-lab`: a VPC on this machine from the command line.

    vpc-lab up [--nodes 2] [--type m5.large]      start a lab in the background
    vpc-lab pods node-a --run 3 | --remove        run, list, remove pod sandboxes
    vpc-lab exec node-a [--sandbox ID] -- CMD     run a command in a node, or in a sandbox's network namespace
    vpc-lab status | faults | ping | down
    vpc-lab demo                                  the main job in a lab of its own, shown and checked (`make demo`)

Exit codes: 0 done, 1 the lab refused (one sentence on standard error), 2 wrong usage; `exec` gives the command's own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.control import Answer, ControlError, ControlServer, ask
from lab.node import ground
from lab.vpc.errors import LabError

DEFAULT_NAME = "lab"
UP_TIMEOUT_S = 60.0
DOWN_TIMEOUT_S = 20.0
POLL_S = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)  # argparse's REMAINDER would swallow our options before it
    arguments = _parser().parse_args(words[:cut], argparse.Namespace(command=words[cut + 1 :]))
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except LabError as exc:
        print(f"vpc-lab: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vpc-lab", description="A VPC in network namespaces on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--name", default=DEFAULT_NAME, help="the lab's name (default: %(default)s)")
        sub.set_defaults(run=run)
        return sub

    up = command("up", _up, "start a lab in the background")
    up.add_argument("--nodes", type=int, default=2, help="number of nodes: node-a, node-b, ... (default: %(default)s)")
    up.add_argument("--hosts", type=int, default=1, help="number of plain hosts (default: %(default)s)")
    up.add_argument("--type", default="m5.large", help="instance type of the nodes (default: %(default)s)")
    up.add_argument("--attach-delay", type=float, default=1.0, metavar="S", help="seconds (default: %(default)s)")
    up.add_argument("--no-containerd", action="store_true", help="network only")
    up.add_argument("--containerd", default="", metavar="DIR", help="another containerd, unpacked in DIR")
    up.add_argument("--daemon", action="store_true", help="start vpc-ipamd in every node")
    up.add_argument("--foreground", action="store_true", help="stay until SIGINT or SIGTERM")
    up.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    command("down", _down, "stop a lab and remove whatever it, or a killed one, left")
    pods = command("pods", _pods, "list, run or remove the pod sandboxes of a node")
    pods.add_argument("node")
    pods.add_argument("--run", dest="count", type=int, default=0, metavar="N", help="run N more")
    pods.add_argument("--remove", action="store_true", help="remove all, or the one given with --sandbox")
    pods.add_argument("--sandbox", default="", help="a sandbox ID")
    execute = command("exec", _exec, "run a command, given after --, in a node")
    execute.add_argument("node")
    execute.add_argument("--sandbox", default="", help="in this sandbox's network namespace (ID, or path in the node)")
    ping = command("ping", _ping, "ask from a node, host or sandbox which addresses answer")
    ping.add_argument("source", help="node or host")
    ping.add_argument("targets", nargs="+", metavar="ADDRESS")
    ping.add_argument("--sandbox", default="", help="from this sandbox of the node")
    demo = command("demo", _demo, "show and check the main job in a lab of its own: 40 sandboxes, kill -9, nothing left")
    demo.set_defaults(name=f"demo-{os.getpid()}")
    demo.add_argument("--json", type=Path, default=Path("build/demo.json"), metavar="FILE", help="(default: %(default)s)")
    status = command("status", _status, "show nodes, ENIs, addresses, dropped packets")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text")
    faults = command("faults", _faults, "show, set or clear what goes wrong in the cloud (lab/faults.py)")
    faults.add_argument("spec", nargs="?", help="JSON to apply")
    faults.add_argument("--clear", action="store_true")
    return parser


def _up(arguments: argparse.Namespace) -> int:
    if arguments.foreground:
        return _serve(arguments)
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
            print(f"lab {arguments.name!r} is up (process {process.pid}); `vpc-lab status --name {arguments.name}`")
            return 0
        process.kill()
    raise ControlError(text.strip().removeprefix("vpc-lab: ") or f"the lab was not up within {UP_TIMEOUT_S:.0f} s")


def _up_arguments(arguments: argparse.Namespace) -> list[str]:
    flags = [f"--{name.replace('_', '-')}" for name in ("no_containerd", "daemon") if getattr(arguments, name)]
    values = ("name", "nodes", "hosts", "type", "attach_delay", "containerd")
    return ["up", *(f"--{name.replace('_', '-')}={getattr(arguments, name)}" for name in values), *flags]


def _serve(arguments: argparse.Namespace) -> int:
    """Be the lab until told to stop; everything is removed on the way out."""
    from lab.lab import Lab  # ~150 ms of imports that no other command needs

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lab = Lab(
        name=arguments.name,
        nodes=[f"node-{chr(ord('a') + number)}" for number in range(arguments.nodes)],
        hosts=[f"host-{chr(ord('a') + number)}" for number in range(arguments.hosts)],
        instance_type=arguments.type,
        attach_delay_s=arguments.attach_delay,
        containerd=not arguments.no_containerd,
        containerd_directory=arguments.containerd,
    )
    with lab:
        control = ControlServer(lab)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: control.stopping.set())
        if arguments.daemon:
            for node in lab.nodes.values():
                node.start_daemon(region=lab.vpc.region)
        control.start()
        if arguments.ready_fd >= 0:
            _detach_from_starter(arguments.ready_fd, arguments.name)
        control.stopping.wait()
        control.stop()
    return 0


def _detach_from_starter(ready_fd: int, name: str) -> None:
    os.write(ready_fd, b"ready\n")
    log_fd = os.open(ground.STATE_ROOT / name / "lab.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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


def _down(arguments: argparse.Namespace) -> int:
    name = arguments.name
    if name not in ground.names():
        print(f"lab {name!r} is not up, and nothing of it is left")
        return 0
    try:
        ask(name, "down", timeout_s=5.0)
    except ControlError:
        _kill(name)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while ground.is_up(name) and time.monotonic() < deadline:
        time.sleep(POLL_S)  # flock has no timeout
    if ground.is_up(name):
        _kill(name)
    if name in ground.names() and not ground.clean(name):
        raise ControlError(f"something of lab {name!r} is left in {ground.STATE_ROOT / name} or its cgroup")
    print(f"lab {name!r} is down")
    return 0


def _kill(name: str) -> None:
    """Kill a lab that does not answer; its guard, if alive, then removes what it left."""
    record = ground.read_record(name)
    if record is not None and ground.is_running(record):
        os.kill(record.pid, signal.SIGKILL)


def _pods(arguments: argparse.Namespace) -> int:
    if arguments.count:
        ask(arguments.name, "run", node=arguments.node, count=arguments.count, timeout_s=None)
    if arguments.remove:
        ask(arguments.name, "remove", node=arguments.node, sandbox=arguments.sandbox, timeout_s=None)
    for pod in ask(arguments.name, "pods", node=arguments.node)["pods"]:
        state = "ready" if pod["is_ready"] else "not ready"
        print(f"{pod['sandbox_id'][:13]}  {pod['namespace']}/{pod['name']:<12}  {pod['address'] or '-':<15}  {state}")
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        raise ControlError("exec needs a command: vpc-lab exec NODE -- CMD ...")
    answer = ask(
        arguments.name,
        "exec",
        fds=[0, 1, 2],
        timeout_s=None,
        node=arguments.node,
        argv=arguments.command,
        sandbox=arguments.sandbox,
    )
    code = int(answer["exit_code"])
    return code if code >= 0 else 128 - code


def _ping(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.name, "ping", source=arguments.source, sandbox=arguments.sandbox, targets=arguments.targets)
    for target, answered in answer["answers"].items():
        print(f"{target:<15}  {'answers' if answered else 'silent'}")
    return 0 if all(answer["answers"].values()) else 1


def _status(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.name, "status")
    print(json.dumps(answer, indent=2) if arguments.output == "json" else "\n".join(_status_lines(answer)))
    return 0


def _status_lines(answer: Answer) -> list[str]:
    lines = [f"lab {answer['name']}, {answer['vpc_id']}"]
    for place in (*answer["nodes"], *answer["hosts"]):
        detail = f"  {place['instance_id']}  PID {place['pid']}" if "pid" in place else ""
        lines.append(f"{place['name']}{detail}")
        lines.extend(_eni_line(eni) for eni in place["enis"])
    lines.extend(f"dropped: {d['packet_count']} packets from {d['source']} on {d['eni_id']}" for d in answer["drops"])
    lines.extend(f"PROBLEM: {problem}" for problem in answer["problems"])
    return lines


def _eni_line(eni: dict[str, Any]) -> str:
    count = f"{len(eni['addresses']) - 1} secondary addresses, {len(eni['prefixes'])} prefixes"
    wired = "" if eni["wired"] else "  (not wired)"
    return f"  eth{eni['device_index']}  {eni['eni_id']}  {eni['mac']}  {eni['addresses'][0]:<15}  {count}{wired}"


def _demo(arguments: argparse.Namespace) -> int:
    from lab.demo.main import demo  # ~150 ms of imports that no other command needs

    return demo(lab_name=arguments.name, json_path=arguments.json)


def _faults(arguments: argparse.Namespace) -> int:
    try:
        spec = json.loads(arguments.spec) if arguments.spec else None
    except ValueError as exc:
        raise ControlError(f"the faults are not JSON: {exc}") from exc
    print(json.dumps(ask(arguments.name, "faults", spec=spec, clear=arguments.clear)["faults"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
