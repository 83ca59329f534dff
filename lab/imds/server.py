"""The metadata endpoint of one instance: IMDSv2 only, a GET without a token is 401.

Faults under the name `imds` apply: latency, error (its status is answered), lost answers, hang, lag, and being out of
reach. Requests are counted, not logged: only EC2 calls are throttled per account.
"""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus

from lab.httpd import HttpServer, Listener, Request, Response
from lab.imds.tokens import Tokens, read_ttl
from lab.imds.tree import look_up, metadata
from lab.vpc.faults import IMDS
from lab.vpc.state import Vpc

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"
_ROOT = "/latest/"


class ImdsServer:
    """Instance metadata of `instance_id` on one socket; a terminated instance gets 404 everywhere."""

    def __init__(self, vpc: Vpc, instance_id: str, *, socket: socket.socket | tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._vpc = vpc
        self._instance_id = instance_id
        self._tokens = Tokens(vpc.clock)
        self._lock = threading.Lock()
        self._request_count = 0
        self._http = HttpServer(self._handle, [Listener(socket, instance_id)])

    def __enter__(self) -> ImdsServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Base URL, for AWS_EC2_METADATA_SERVICE_ENDPOINT."""
        return self._http.url

    @property
    def request_count(self) -> int:
        """Requests since the start, tokens included."""
        with self._lock:
            return self._request_count

    def start(self) -> None:
        """Begin to serve."""
        self._vpc.faults.on_change(self._faults_changed)
        self._faults_changed()
        self._http.start()

    def stop(self) -> None:
        """Stop serving; closes the socket and ends every thread."""
        self._vpc.faults.off_change(self._faults_changed)
        self._http.stop()

    def _faults_changed(self) -> None:
        self._http.set_reach(self._vpc.faults.reach(IMDS))

    def _handle(self, request: Request) -> Response | None:
        with self._lock:
            self._request_count += 1
        faults = self._vpc.faults
        if faults.hangs(IMDS):
            self._http.hold(lambda: faults.hangs(IMDS))
            return None
        verdict = faults.decide(IMDS)
        self._http.sleep(verdict.latency_s)
        response = _refusal(verdict.error.status) if verdict.error else self._answer(request)
        self._http.sleep(verdict.answer_latency_s)
        return None if verdict.loses_answer else response

    def _answer(self, request: Request) -> Response:
        if request.path == f"{_ROOT}api/token":
            return self._token(request)
        if request.method != "GET":
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        if not self._tokens.is_valid(request.headers.get(_TOKEN)):
            return _refusal(HTTPStatus.UNAUTHORIZED)
        world = self._vpc.shown_by(IMDS)
        instance = world.instances.get(self._instance_id)
        if instance is None or not instance.running or not request.path.startswith(_ROOT):
            return _refusal(HTTPStatus.NOT_FOUND)
        text = look_up(metadata(self._vpc, world, instance), request.path.removeprefix(_ROOT))
        return _refusal(HTTPStatus.NOT_FOUND) if text is None else Response(HTTPStatus.OK, text.encode())

    def _token(self, request: Request) -> Response:
        if request.method != "PUT":
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        if request.headers.get("X-Forwarded-For") is not None:  # "Use IMDSv2": such a PUT gets no token
            return _refusal(HTTPStatus.FORBIDDEN)
        ttl_s = read_ttl(request.headers.get(_TTL))
        if ttl_s is None:
            return _refusal(HTTPStatus.BAD_REQUEST)
        return Response(HTTPStatus.OK, self._tokens.issue(ttl_s).encode(), headers={_TTL: str(ttl_s)})


def _refusal(status: int) -> Response:
    phrase = HTTPStatus(status).phrase
    return Response(status, f"{int(status)} - {phrase}".encode())
