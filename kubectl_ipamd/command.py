"""The command `kubectl-ipamd`, which kubectl runs as `kubectl ipamd`: parse, run, and turn errors into exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from kubectl_ipamd.errors import EXIT_INTERRUPTED, PluginError
from kubectl_ipamd.parser import Parser
from kubectl_ipamd.session import NAMESPACE, SELECTOR, Session, open_session
from kubectl_ipamd.text import printable
from kubectl_ipamd.verbs import bundle, clean_up, execute, migrate, status, top, versions, where
from kubectl_ipamd.version import __version__

PROGRAM = "kubectl ipamd"

PARALLEL = 64
"""Requests at once. Ours: the API server takes 400 reads at once by default; 64 leave most of them to other clients."""

TIMEOUT_S = 5.0
"""Longest time for one node. Ours: an answer takes 10 ms, so there is ample reserve; and even 500 nodes of which none answers take
only 40 s (PARALLEL at once), which is less than TOTAL_S."""

TOTAL_S = 45.0
"""Longest time for all nodes. Ours: a command also lists pods and nodes first, and shall still take less than a minute."""

EPILOG = """\
exit statuses: 0 answered; 1 answered, and somebody must look; 2 wrong usage; 3 kubectl, the API server or a daemon does not answer;
4 a right is missing. docs/kubectl.md has screens, the fields of -o json and the rights that each command needs.
`kubectl ipamd COMMAND --help` has an example of each command.
"""

SHARED = "options of every command"

Run = Callable[[Session, argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns: the exit status."""
    arguments = make_parser().parse_all(argv)
    run: Run = arguments.run
    try:
        with open_session(arguments) as session:
            return run(session, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The program that reads our standard output has exited, for example `head`. This is no error. But Python would flush standard
        # output when it exits, and report an error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PluginError as error:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)
        return error.exit_status


def make_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog=PROGRAM, description="All nodes of a cluster that runs vpc-ipamd.", epilog=EPILOG, parents=[_common(is_top=True)]
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Run, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example:\n  {PROGRAM} {name} {example}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[_common(is_top=False)],
        )
        added.set_defaults(run=run)
        return added

    added = command("status", "show every node, the worst first; exit 1 if a node needs attention", status.run, "--short 5")
    added.add_argument(
        "--short", type=int, default=0, metavar="N", help="nodes that can give fewer than N addresses need attention"
    )
    added.add_argument("--troubled", action="store_true", help="show only nodes that need attention")
    text = "show which pod has an address, or which address a pod has, and its node"
    _where_parser(command("where", text, where.run, "10.0.3.7"))
    command("versions", "show which releases run on how many nodes; exit 1 if more than one does", versions.run, "-o wide")
    added = command("top", "show free and used addresses by subnet and by zone, the fullest first", top.run, "--by zone")
    added.add_argument("--by", choices=("both", "subnet", "zone"), default="both")
    text = "collect an archive for support from each of many nodes (needs pods/exec)"
    _bundle_parser(command("bundle", text, bundle.run, "node-a node-b -d archives"))
    text = "run a verb of ipamctl on a node (needs pods/exec)"
    _exec_parser(command("exec", text, execute.run, "node-a explain 10.0.3.7"))
    text = "remove what is ours from a node that has gone back to amazon-vpc-cni-k8s, in a debug pod"
    _clean_up_parser(command("clean-up", text, clean_up.run, "node-a --dry-run"))
    text = "print how nodes come over from amazon-vpc-cni-k8s, or go back, as commands; execute none of them"
    _migrate_parser(command("migrate", text, migrate.run, "--plan > over.sh"))
    return parser


def _migrate_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", action="store_true", help="print the plan; there is nothing else that it does")
    parser.add_argument("--back", action="store_true", help="of nodes that go back to amazon-vpc-cni-k8s")
    label = "what both DaemonSets look at (default: %(default)s)"
    parser.add_argument("--label", default="vpc-ipamd=yes", metavar="KEY=VALUE", help=label)
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="nodes in one batch (default: a tenth)")
    parser.add_argument("--canary", type=int, default=1, metavar="N", help="nodes that go first, alone (default: %(default)s)")
    parser.add_argument(
        "--soak", type=int, default=60, metavar="MINUTES", help="how long the canary is watched (default: %(default)s)"
    )


def _where_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="ADDRESS|POD", help="an address, NAMESPACE/NAME, or a pod's name")
    parser.add_argument("--ask-nodes", action="store_true", help="also ask the history of the daemons, by exec (needs pods/exec)")


def _bundle_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE")
    parser.add_argument("--all", action="store_true", help="of all nodes")
    parser.add_argument("-d", "--directory", default="", metavar="DIR", help="folder for the archives (default: a new one here)")
    _debug_option(parser)


def _exec_parser(parser: argparse.ArgumentParser) -> None:
    _debug_option(parser)
    parser.add_argument("node", metavar="NODE")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="VERB...", help="as for ipamctl, for example: explain 10.0.3.7"
    )


def _clean_up_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE")
    parser.add_argument("--image", default="", metavar="IMAGE", help="of vpc-ipamd (default: that of the daemons on other nodes)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")


def _debug_option(parser: argparse.ArgumentParser) -> None:
    text = "where the daemon's container does not run, start a privileged pod by `kubectl debug`, and delete it afterwards"
    parser.add_argument("--debug", action="store_true", help=text)


def _common(*, is_top: bool) -> Parser:
    """Make a parser of the options that may stand before or after the name of the command.

    argparse parses them twice: first before the name (`is_top`), then after it. Only the first parser sets defaults, because defaults
    of the second would overwrite what stands before the name.
    """
    parser = Parser(add_help=False)
    group = parser.add_argument_group(SHARED)

    def option(*names: str, default: object, **settings: object) -> None:
        group.add_argument(*names, default=default if is_top else argparse.SUPPRESS, **settings)  # type: ignore[arg-type]

    option("-o", "--output", choices=("table", "wide", "json"), default="table", help="(default: table)")
    option("-n", "--namespace", default=NAMESPACE, help=f"of the daemon's pods (default: {NAMESPACE})")
    option("-l", "--selector", default=SELECTOR, help="of the daemon's pods, by labels")
    option("--metrics-port", type=int, default=0, metavar="PORT", help="if a settings file has another than 61678")
    option("--parallel", type=_positive, default=PARALLEL, metavar="N", help=f"requests at once (default: {PARALLEL})")
    option("--timeout", type=float, default=TIMEOUT_S, metavar="S", help=f"seconds for one node (default: {TIMEOUT_S:g})")
    option("--total-timeout", type=float, default=TOTAL_S, metavar="S", help=f"seconds for all nodes (default: {TOTAL_S:g})")
    option("--kubectl", default="kubectl", metavar="PROGRAM", help="kubectl to use (default: that on PATH)")
    for name in ("kubeconfig", "context", "cluster", "user", "server", "as"):
        option(f"--{name}", default="", metavar="X", help="as for kubectl")
    option("--as-group", action="append", default=[], metavar="X", help="as for kubectl")
    return parser


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError("must be a whole number from 1")
    return number
