"""A stand-in for kubectl: `proxy` leads from a Unix socket to FAKE_API (host:port); other commands are recorded in FAKE_LOG.

`exec` prints the file FAKE_OUTPUT and ends with FAKE_STATUS; `debug` prints the name of a pod as kubectl does.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path


def main() -> int:
    """Run one command."""
    words = sys.argv[1:]
    sockets = [word.partition("=")[2] for word in words if word.startswith("--unix-socket=")]
    if "proxy" in words:
        serve(sockets[0])
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps(words) + "\n")
    if "debug" in words:
        sys.stdout.write("Creating debugging pod node-debugger-node-0-x7k2p with container debugger on node node-0.\n")
    if "exec" in words:
        sys.stdout.buffer.write(Path(os.environ["FAKE_OUTPUT"]).read_bytes())
        return int(os.environ.get("FAKE_STATUS", "0"))
    return 0


def serve(path: str) -> None:
    """Pass every connection on, until a signal ends this process."""
    host, _, port = os.environ["FAKE_API"].rpartition(":")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=splice, args=(connection, (host, int(port))), daemon=True).start()


def splice(connection: socket.socket, address: tuple[str, int]) -> None:
    """Send the request, then the answer until its end."""
    with connection, socket.create_connection(address) as server:
        server.sendall(connection.recv(65536))
        while data := server.recv(65536):
            try:
                connection.sendall(data)
            except OSError:
                return


sys.exit(main())
