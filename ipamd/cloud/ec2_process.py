"""The process that calls EC2 for the daemon: it imports botocore, and makes the calls whose sockets come over its standard input.

`child.py` starts it and describes the protocol. Its libraries are imported in `main`, after the modules that it does not use were left
out, because those take 2.5 MiB of it (measured; `ipamd/unused_modules.py`).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ipamd.unused_modules import UNUSED_BY_EC2_PROCESS, leave_out

if TYPE_CHECKING:
    from ipamd.cloud.client import Ec2Client

THREADS = 16
"""The largest number of calls at once. Ours: more than the daemon has threads that call EC2."""


SENDING, END = b"!", b"\n"
"""The process's reply: SENDING right before the HTTP request, then one line of JSON that ends with END."""


def main() -> None:
    """Make the calls until standard input ends."""
    gc.disable()
    leave_out(UNUSED_BY_EC2_PROCESS)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # may be sent to the whole process group
        signal.signal(number, signal.SIG_IGN)
    from types import SimpleNamespace

    from ipamd import logs
    from ipamd.cloud.client import Ec2Client
    from ipamd.threads import RequestThreads

    logs.set_up("warning")
    from botocore.exceptions import BotoCoreError

    client = Ec2Client(SimpleNamespace(**json.loads(sys.argv[1])), region=str)  # type: ignore[arg-type]  # has the fields that the client reads
    with suppress(BotoCoreError):  # the first call reports the error
        client.prepare()
    gc.enable()
    threads, control = RequestThreads(THREADS, "call"), socket.socket(fileno=0)
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        threads.submit(_serve, socket.socket(fileno=descriptors[0]), client)
    os._exit(0)  # without waiting for calls: nobody reads their answers


def _serve(answers: socket.socket, client: Ec2Client) -> None:
    """Make one call, and send back its answer or its failure."""
    from ipamd.model.record import asdict

    with answers, answers.makefile("rb") as file:
        request = json.load(file)
        client.region = lambda: request["region"]
        try:
            client.built()
            answers.sendall(SENDING)
            document = {"answer": client.call_raw(request["api"], request["params"])}
        except Exception as exc:  # noqa: BLE001  # top of a call
            document = {"failure": asdict(client.failure(exc))}
        answers.sendall(json.dumps(document, default=str).encode() + END)


if __name__ == "__main__":
    main()
