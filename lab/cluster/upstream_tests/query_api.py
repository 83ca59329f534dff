"""An AWS API of the query protocol (a form in, XML out) with a few actions, served in the control plane's node.

IAM, CloudFormation and others have this protocol. Signatures are not checked.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from xml.sax.saxutils import escape

from lab.ec2.query import Params
from lab.httpd import HttpServer, Listener, Request, Response
from lab.vpc.errors import Ec2Error

Tree = Mapping[str, object]
"""A result: name -> text, Tree, or a list, whose items are written as <member>."""

Action = Callable[[Params], Tree]


class QueryApi:
    """Serves the actions of one API on a socket, while its context is entered."""

    def __init__(self, socket: Listener | tuple[str, int], actions: Mapping[str, Action], *, namespace: str) -> None:
        """Make the object; it does not serve yet.

        Args:
            socket: where it listens.
            actions: by name. They may raise Ec2Error, and are called by any thread.
            namespace: XML namespace of the answers.
        """
        self._actions, self._namespace = actions, namespace
        self._http = HttpServer(self._handle, [socket])

    def __enter__(self) -> QueryApi:
        self._http.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.stop()

    @property
    def url(self) -> str:
        """The endpoint for AWS clients."""
        return self._http.url

    def _handle(self, request: Request) -> Response:
        params = Params.decode(request.body)
        name = params.text("Action") or ""
        try:
            if name not in self._actions:
                raise Ec2Error("InvalidAction", f"The lab does not have the action {name}.")
            result = self._actions[name](params)
        except Ec2Error as error:
            inner = _element("Type", "Sender") + _element("Code", error.code) + _element("Message", error.message)
            return self._answer("Error", f"<Error>{inner}</Error>", status=error.status)
        return self._answer(name, _element(f"{name}Result", result))

    def _answer(self, name: str, content: str, *, status: int = HTTPStatus.OK) -> Response:
        request_id = _element("RequestId", str(uuid.uuid4()))
        tail = f"<ResponseMetadata>{request_id}</ResponseMetadata>" if status == HTTPStatus.OK else request_id
        document = f'<{name}Response xmlns="{self._namespace}">{content}{tail}</{name}Response>'
        return Response(status, document.encode(), "text/xml")


def _element(name: str, value: object) -> str:
    return f"<{name}>{_content(value)}</{name}>"


def _content(value: object) -> str:
    if isinstance(value, Mapping):
        return "".join(_element(name, inner) for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_element("member", item) for item in value)
    return escape(str(value))
