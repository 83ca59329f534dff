"""A web site outside of the VPC that answers with the address that it sees, by both families; a test asks it who a pod is outside.

It listens in the lab's host `outside`, where the name that the test asks for leads by the cluster's DNS.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lab.fabric.internet import OUTSIDE_HOST, OUTSIDE_HOST_6
from lab.fabric.netns import run_inside
from lab.vpc.model import Address

NAME = "icanhazip.com"
"""Source of the name: test/integration/cni-egress/pod_egress_test.go of amazon-vpc-cni-k8s v1.23.1."""

ADDRESSES: tuple[Address, ...] = (OUTSIDE_HOST, OUTSIDE_HOST_6)
PORT = 80


class AddressSite:
    """The site, served from entering to leaving."""

    def __init__(self, netns_path: str, *, addresses: tuple[Address, ...] = ADDRESSES, port: int = PORT) -> None:
        """Args: netns_path: the namespace that has the addresses."""
        self._netns_path, self._addresses, self._port = netns_path, addresses, port
        self._stack = ExitStack()

    def __enter__(self) -> AddressSite:
        try:
            for address in self._addresses:
                self._serve(address)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _serve(self, address: Address) -> None:
        listener = run_inside(self._netns_path, partial(_listen, address, self._port))
        server = ThreadingHTTPServer((str(address), self._port), _Answer, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name=f"address-site-{address}", daemon=True)
        thread.start()
        self._stack.callback(server.server_close)
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown)


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.client_address[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: a test's output has what was answered."""


def _listen(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return socket.create_server((str(address), port), family=family)
