"""A client of the Kubernetes API server. It sends JSON over HTTPS from inside the control plane's network namespace, and can watch."""

from __future__ import annotations

import copy
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from lab.cluster.errors import ApiError, ClusterError
from lab.cluster.http import TIMEOUT_S, Connection

Object = dict[str, Any]

POLL_S = 0.25  # ours: waits take seconds, so this is exact enough, and each poll costs milliseconds of the two cores
WATCH_SILENCE_S = 3600.0
NOT_FOUND, CONFLICT = 404, 409


class Api:
    """Calls one API server with one user's token. Concurrency: any thread; each call has a connection of its own."""

    def __init__(self, netns_path: str, host: str, port: int, *, authority: str, token: str) -> None:
        """`authority`: the certificate of the authority that signed the server's certificate, as PEM. `token`: the user's."""
        self._netns_path = netns_path
        self._host, self._port = host, port
        self._tls = ssl.create_default_context(cadata=authority)
        self._token = token
        self._acting: dict[str, str] = {}

    def acting_as(self, user: str) -> Api:
        """Return a client that acts in another user's name (impersonation), with an administrator's rights. Only an administrator may
        call it."""
        other = copy.copy(self)
        other._acting = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        return other

    def get(self, path: str) -> Object:
        """Read an object or a list. Raises: ApiError."""
        return self._ask("GET", path)

    def items(self, path: str) -> list[Object]:
        """Read a list's items. Raises: ApiError."""
        items: list[Object] = self.get(path)["items"]
        return items

    def create(self, path: str, body: Object) -> Object:
        """Create an object below the collection `path`. Raises: ApiError."""
        return self._ask("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into an object. Lists are replaced as a whole. Raises: ApiError."""
        return self._ask("PATCH", path, body, content="application/merge-patch+json")

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Delete an object or a collection, if it exists. `grace_s`: seconds that a pod has to end; by default its own. Raises:
        ApiError."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body |= {"gracePeriodSeconds": grace_s}  # type: ignore[dict-item]
        try:
            self._ask("DELETE", path, body)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def is_ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        connection = self._connection()
        try:
            connection.request("GET", "/readyz", headers=self._headers())
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def watch(self, path: str, seen: Callable[[str, Object], None]) -> Watch:
        """Call `seen` with type and object of each change from now on, after a call with ADDED for each object that exists."""
        return Watch(self._stream, path, seen)

    def wait(self, claim: Callable[[], str], *, what: str, timeout_s: float) -> float:
        """Call `claim` until it returns "".

        Args:
            claim: returns the problem that is waited for to end, or "" if there is none.
            what: the state that is waited for, for the error.
        Returns: the seconds that this took. Raises: ClusterError with the last problem.
        """
        began = time.monotonic()
        problem = "nothing was seen"
        while True:
            try:
                problem = claim()
            except ApiError as error:
                problem = str(error)
            spent = time.monotonic() - began
            if not problem:
                return spent
            if spent > timeout_s:
                raise ClusterError(f"not {what} within {timeout_s:.0f} s: {problem}")
            time.sleep(POLL_S)

    def _ask(self, method: str, path: str, body: Object | None = None, *, content: str = "application/json") -> Object:
        connection = self._connection()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, body=text, headers=self._headers() | {"Content-Type": content})
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"{method} {path}: the API server does not answer: {error}", status=0) from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiError(f"{method} {path}: {answer.status} {data.decode(errors='replace')[:400]}", status=answer.status)
        document: Object = json.loads(data)
        return document

    def _stream(self, path: str, opened: Callable[[Connection], bool]) -> Iterator[Object]:
        """Yield the changes of one watch until the server ends it; none if `opened` returns False. Raises: OSError, HTTPException."""
        connection = self._connection(timeout_s=WATCH_SILENCE_S)
        try:
            connection.connect()
            if not opened(connection):
                return
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _connection(self, *, timeout_s: float = TIMEOUT_S) -> Connection:
        return Connection(self._netns_path, self._host, self._port, tls=self._tls, timeout_s=timeout_s)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Accept": "application/json", **self._acting}


class Watch:
    """One watch in a thread of its own. If the server ends the stream, it is opened again, and starts with all objects. So every
    object is reported at least once."""

    def __init__(
        self,
        stream: Callable[[str, Callable[[Connection], bool]], Iterator[Object]],
        path: str,
        seen: Callable[[str, Object], None],
    ) -> None:
        """Only `Api.watch` calls this."""
        self._stream, self._path, self._seen = stream, f"{path}{'&' if '?' in path else '?'}watch=1", seen
        self._closed = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch; idempotent."""
        self._closed.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(2)
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(OSError, http.client.HTTPException, ValueError):
                for change in self._stream(self._path, self._opened):
                    if change["type"] != "ERROR":
                        self._seen(change["type"], change["object"])
            self._closed.wait(POLL_S)

    def _opened(self, connection: Connection) -> bool:
        self._connection = connection
        return not self._closed.is_set()
