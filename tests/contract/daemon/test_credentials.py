"""A real daemon with a service account's role: STS denies it at first, and grants it then."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.fabric.netns import run_inside
from tests.contract.cloud.test_credential_failures import granted
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

PORT = 8443
DENIAL = (
    b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>Not authorized to perform "
    b"sts:AssumeRoleWithWebIdentity</Message></Error><RequestId>r</RequestId></ErrorResponse>"
)
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "",
    "AWS_SECRET_ACCESS_KEY": "",
    "AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/pods",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/etc/token",
    "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{PORT}",
}


class Sts(http.server.BaseHTTPRequestHandler):
    """Denies, until `is_granting`."""

    is_granting = False

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = granted() if Sts.is_granting else DENIAL
        self.send_response(200 if Sts.is_granting else 403)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def sts_on(rig_: Rig) -> Iterator[None]:
    """Serve STS in the node's namespace."""
    server = run_inside(rig_.node.netns_path(), lambda: http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Sts))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def test_a_role_that_sts_denies_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status names STS and the trust policy, and no silence of EC2; the node is ready soon after the mend, without a restart."""
    monkeypatch.setattr(Sts, "is_granting", False)
    with rig(env=ENVIRONMENT, start=False) as node, sts_on(node):
        node.node.write_file("/etc/token", b"eyJhbGciOiJub25lIn0.e30.")
        node.start(wait=False)

        def lacks() -> str:
            return "\n".join((node.status() or {}).get("degraded", []))

        wait_until(lambda: "STS refuses: AccessDenied" in lacks(), what="the party's name in the status")
        assert "trust policy of role arn:aws:iam::111122223333:role/pods" in lacks()
        assert "may have taken effect" not in lacks()
        assert node.lab.vpc.calls() == []
        monkeypatch.setattr(Sts, "is_granting", True)
        node.wait_ready()
        assert node.add("pod").ok
        assert "STS" not in lacks()
