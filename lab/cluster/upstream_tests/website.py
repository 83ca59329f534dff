"""A website outside of the VPC, which stands in for one of the internet that the tests read by HTTPS.

The host `outside` of the lab has it, so packets to it and back pass the lab's gateways. The cluster's authority signed its
certificate, and the test helper's image trusts that authority.
"""

from __future__ import annotations

import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab.cluster.control_plane import FOLDER
from lab.fabric.internet import OUTSIDE_HOST
from lab.fabric.netns import Netns
from lab.node.node import Node

HOST = "aws.amazon.com"
"""Name of the website that the suite `snat` reads."""

PORT = 443
NAMES = {HOST: str(OUTSIDE_HOST)}
"""What the cluster DNS resolves: name -> address."""


class Website:
    """The website, while its context is entered. `readers` are the addresses by which it was read."""

    def __init__(self, outside: Netns, control: Node) -> None:
        """Make the object; it does not serve yet. `control`: the control plane's node, which has the authority's key."""
        self.readers: list[str] = []
        self._outside, self._control = outside, control
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Website:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._certificate())
        readers = self.readers

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                readers.append(self.client_address[0])
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Page, bind_and_activate=False)
        server.socket.close()
        server.daemon_threads = True
        listener = self._outside.listener(str(OUTSIDE_HOST), PORT)
        server.socket = context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, name="website", daemon=True).start()
        self._server = server
        return self

    def __exit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _certificate(self) -> tuple[Path, Path]:
        """Return the files of the certificate, and of its key."""
        self._control.write_file(f"{FOLDER}/website.ext", f"subjectAltName=DNS:{HOST}".encode())
        curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        signing = "-CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile website.ext"
        script = f"""
            set -e; cd {FOLDER}
            openssl req {curve} -keyout website.key -out website.csr -subj /CN={HOST}
            openssl x509 -req -in website.csr {signing} -out website.crt
        """
        self._control.run(["/bin/sh", "-c", script])
        folder = Path(f"{self._control.root}{FOLDER}")
        return folder / "website.crt", folder / "website.key"
