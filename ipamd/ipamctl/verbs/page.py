"""`ipamctl page`: the status page for a browser, on a port of the node's loopback until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.verb import Answer, Ask, RefusedError, UsageError, Verb, argument

PORT = 61676
"""Default port of the page. Ours: next to those of the daemon (61677 and 61678)."""

PORT_MAX = 65535


def render_page(answer: Answer, _: Layout) -> str:
    """Write the URL of the page."""
    url = answer["url"]
    if answer["token_required"]:
        url += ", with a token"
    return f"the status page is at {url}; Ctrl-C ends it"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no port: 0 to {PORT_MAX}")
    return int(text)


def _url(text: str) -> str:
    if text and not text.startswith(("https://", "http://")):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} begins with neither https:// nor http://")
    return text.rstrip("/")


def _serve(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    from ipamd.ipamctl.page import Answers, PagePort
    from ipamd.ipamctl.page_access import LOOPBACK, token_of
    from ipamd.ipamctl.page_state import state

    token_file = None
    try:
        if arguments.token_file:
            token_file = Path(arguments.token_file)
            token_of(token_file)
    except OSError as error:
        raise UsageError(f"--token-file {token_file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--token-file {token_file}: {error}") from error
    try:
        served = PagePort(
            arguments.port, answers=Answers(token_file=token_file, state=lambda: state(daemon, docs_url=arguments.docs_url))
        )
    except OSError as error:
        problem = f"cannot serve the page on {LOOPBACK}:{arguments.port}: {error.strerror}; name another with --port"
        raise RefusedError(problem) from error
    # The signal stays pending for `sigwait`. Otherwise the kernel may give it to the page's thread, and this one would go on waiting.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    served.start()
    try:
        yield {"url": f"http://localhost:{served.port}/", "token_required": token_file is not None}
        signal.sigwait({signal.SIGINT})
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        served.close()


PAGE = Verb(
    help="a status page for a browser, on a port of the node's loopback until Ctrl-C",
    about="Serves a page that refreshes by itself and only reads, on loopback, until Ctrl-C.",
    examples=("ipamctl page --port 61676",),
    lay_out=render_page,
    make=_serve,
    arguments=(
        argument("--port", type=_port, default=PORT, metavar="PORT", help=f"on 127.0.0.1 (default {PORT}; 0: any)"),
        argument("--docs-url", type=_url, default="", metavar="URL", help="where your copy of docs/ is, for the page's links"),
        argument("--token-file", default="", metavar="FILE", help="ask for the token in this file"),
    ),
)
