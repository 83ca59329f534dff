"""`vpc-lab`: a VPC on this machine from the command line.

    vpc-lab up [--nodes 2] [--type m5.large] [--daemon [--env KEY=VALUE]...]     start a lab in the background
    vpc-lab daemon node-a kill | start | restart | log [--env KEY=VALUE]...      the node's vpc-ipamd
    vpc-lab aws-node node-a start | kill | show | log                            a stand-in for amazon-vpc-cni-k8s on the node
    vpc-lab pods node-a [--run 3 | --remove]                                     run, list, remove pod sandboxes
    vpc-lab exec node-a [--sandbox ID] -- COMMAND                                in a node, or a sandbox's namespace
    vpc-lab hand detach ENI | unassign ADDRESS | attach node-a --type efa-only | ...   what other hands do (hand.py)
    vpc-lab status | faults | ping | down
    vpc-lab demo                              the main job in a lab of its own, shown and checked (`make demo`)

Exit codes: 0 done, 1 the lab refused (one sentence on standard error), 2 wrong usage; `exec` gives the command's own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ipamd import __version__
from ipamd.command_line import Parser
from lab.cli import background, hand
from lab.cli.control import Answer, ControlError, ask
from lab.errors import LabError

DEFAULT_NAME = "lab"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)  # argparse's REMAINDER would swallow our options before it
    parser = _parser()
    arguments = parser.parse_args(words[:cut], argparse.Namespace(command=words[cut + 1 :]))
    _check_usage(parser, arguments)
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except LabError as exc:
        print(f"vpc-lab: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    parser = Parser(prog="vpc-lab", description="A VPC in network namespaces on this machine.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--name", default=DEFAULT_NAME, help="the lab's name (default: %(default)s)")
        sub.set_defaults(run=run)
        return sub

    _add_up_options(command("up", background.up, "start a lab in the background"))
    command("down", background.down, "stop a lab and remove whatever it, or a killed one, left")
    daemon = command("daemon", _daemon, "kill -9, start or restart the vpc-ipamd of a node, or show the end of its log")
    daemon.add_argument("node")
    daemon.add_argument("action", choices=("kill", "start", "restart", "log"))
    _add_env(daemon, "start, restart: a setting, on top of those the daemon had before; KEY= takes one back")
    daemon.add_argument("--no-wait", action="store_true", help="start, restart: return before pods can run")
    other = command("aws-node", _aws_node, "play amazon-vpc-cni-k8s on a node, to rehearse a migration (docs/migration.md)")
    other.add_argument("node")
    other.add_argument(
        "action",
        choices=("start", "kill", "show", "log"),
        help="start and wait until pods can run; kill -9, which leaves its file and conflist; show who has which address by its file",
    )
    pods = command("pods", _pods, "list, run or remove the pod sandboxes of a node")
    pods.add_argument("node")
    pods.add_argument("--run", dest="count", type=int, default=0, metavar="N", help="run N more")
    pods.add_argument("--remove", action="store_true", help="remove all, or the one given with --sandbox")
    pods.add_argument("--sandbox", default="", help="a sandbox ID")
    execute = command("exec", _exec, "run a command, given after --, in a node")
    execute.usage = "vpc-lab exec [-h] [--name NAME] [--sandbox SANDBOX] NODE -- COMMAND [ARGUMENT ...]"
    execute.add_argument("node", metavar="NODE")
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
    hand.add_options(command("hand", hand.run, "change a node's ENIs behind the daemon's back, as people at the console do"))
    faults = command("faults", _faults, "show, set or clear what goes wrong in the cloud (lab/vpc/faults.py)")
    faults.add_argument("spec", nargs="?", help="JSON to apply")
    faults.add_argument("--clear", action="store_true")
    return parser


def _add_up_options(up: argparse.ArgumentParser) -> None:
    up.add_argument("--nodes", type=int, default=2, help="number of nodes: node-a, node-b, ... (default: %(default)s)")
    up.add_argument("--hosts", type=int, default=1, help="number of plain hosts (default: %(default)s)")
    up.add_argument("--outside", action="store_true", help="a host outside the VPC, behind an internet gateway and a NAT gateway")
    up.add_argument("--ipv6", action="store_true", help="subnets of both families, and with --daemon pods of IPv6")
    up.add_argument("--type", default="m5.large", help="instance type of the nodes (default: %(default)s)")
    up.add_argument(
        "--attach-delay",
        type=float,
        default=1.0,
        metavar="S",
        help="seconds from EC2's yes to AttachNetworkInterface until the node sees the new ENI (default: %(default)s)",
    )
    up.add_argument("--no-containerd", action="store_true", help="network only")
    up.add_argument("--containerd", default="", metavar="DIR", help="another containerd, unpacked in DIR")
    up.add_argument("--daemon", action="store_true", help="start vpc-ipamd in every node and wait until pods can run")
    _add_env(up, "with --daemon: a setting for every daemon")
    up.add_argument("--foreground", action="store_true", help="stay until SIGINT or SIGTERM")
    up.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)


def _add_env(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--env", action="append", default=[], type=_setting, metavar="KEY=VALUE", help=f"{text} (docs/settings.md); repeatable"
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _check_usage(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that would have no effect, with argparse's exit code 2."""
    if arguments.run is background.up and arguments.env and not arguments.daemon:
        parser.error("up: --env is for the daemons: give --daemon too")
    if arguments.run is _daemon and arguments.action in ("kill", "log") and (arguments.env or arguments.no_wait):
        parser.error(f"daemon: --env and --no-wait are for start and restart, not for {arguments.action}")


def _daemon(arguments: argparse.Namespace) -> int:
    action, node = arguments.action, arguments.node
    answer = ask(
        arguments.name,
        "daemon",
        timeout_s=None,  # the lab bounds its waiting
        node=node,
        action=action,
        env=dict(arguments.env),
        is_awaited=not arguments.no_wait,
    )
    if action == "log":
        print(answer["log"])
    elif action == "kill":
        print(f"the daemon of {node} was killed with signal 9")
    else:
        print(f"the daemon of {node} {'was started' if arguments.no_wait else 'is ready'} (process {answer['pid']})")
    return 0


def _aws_node(arguments: argparse.Namespace) -> int:
    action, node = arguments.action, arguments.node
    answer = ask(arguments.name, "aws_node", timeout_s=None, node=node, action=action)  # the lab bounds its waiting
    if action == "log":
        print(answer["log"])
    elif action == "kill":
        print(f"aws-node of {node} was killed with signal 9; its file and conflist stay")
    else:
        state = f"runs (process {answer['pid']})" if answer["pid"] else "does not run"
        print(f"aws-node of {node} {state}")
        for entry in answer["allocations"]:
            print(f"{entry['container_id'][:13]}  {entry['pod']:<20}  {entry['address']}")
    return 0


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
    count = f"{max(len(eni['addresses']) - 1, 0)} secondary addresses, {len(eni['prefixes'])} prefixes"
    count += "".join(f", {one}" for one in eni["ipv6"])
    wired = "" if eni["wired"] else "  (not wired)"
    first, kind = (eni["addresses"] or ["no IPv4"])[0], "" if eni["type"] == "interface" else f"  {eni['type']}"
    return f"  eth{eni['device_index']}  {eni['eni_id']}  {eni['mac']}  {first:<15}  {count}{wired}{kind}"


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
