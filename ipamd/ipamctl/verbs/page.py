"""`ipamctl page`: the status page for a browser, on a port of the node's loopback until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

from ipamd.ipamctl.verb import Answer, Ask, RefusedError, UsageError, Verb, argument

PORT = 61676
PORT_MAX = 65535


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no port: 0 to {PORT_MAX}")
    return int(text)


def _serve(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    from ipamd.ipamctl.page import LOOPBACK, Answers, PagePort, state, token_of

    token_file = Path(arguments.token_file) if arguments.token_file else None
    try:
        if token_file is not None:
            token_of(token_file)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--token-file {token_file}: {problem}") from error
    try:
        served = PagePort(arguments.port, answers=Answers(token_file=token_file, state=lambda: state(daemon)))
    except OSError as error:
        problem = f"cannot serve the page on {LOOPBACK}:{arguments.port}: {error.strerror}; name another with --port"
        raise RefusedError(problem) from error
    served.start()
    try:
        yield {"url": f"http://localhost:{served.port}/", "is_token_needed": token_file is not None}
        signal.pause()
    finally:
        served.close()


def render(answer: Answer) -> str:
    """Write where it is."""
    return f"the status page is at {answer['url']}{', with a token' if answer['is_token_needed'] else ''}; Ctrl-C ends it"


PAGE = Verb(
    help="a status page for a browser, on a port of the node's loopback until Ctrl-C",
    render=render,
    make=_serve,
    arguments=(
        argument("--port", type=_port, default=PORT, metavar="PORT", help=f"on 127.0.0.1 (default {PORT}; 0: any)"),
        argument("--token-file", default="", metavar="FILE", help="ask for the token in this file"),
    ),
)
