"""Keep botocore's requests to instance metadata off proxies, and record the result of the last one.

botocore uses `HTTP_PROXY` for metadata too, unless `NO_PROXY` names the address. Most proxies refuse link-local addresses. A
proxy that does not refuse them returns the keys of its own host's role. `metadata.py` does not need this, because http.client uses no
proxy. botocore calls a container's endpoint (ECS, EKS Pod Identity) without a proxy. It calls EC2 and STS through a proxy if one is
configured.

The change is in the class that makes every request to metadata, so it applies to credentials, to their renewal, and to the region of
AWS_DEFAULTS_MODE=auto. Rejected: an addition to `NO_PROXY`, because it applies to the whole process, and the libraries
that read it treat IPv6 addresses differently; our own credential resolver, because profiles may name metadata as their source.
Source: botocore/utils.py, IMDSFetcher and ContainerMetadataFetcher; botocore/httpsession.py, which follows no redirection.
"""

from __future__ import annotations

import json
from functools import wraps
from typing import Any

from ipamd.model.record import dataclass

CODE_MAX = 100
"""Longest code that is recorded, in characters. Ours: the longest known one has 30."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to instance metadata, which botocore's search for credentials does not report.

    `path`: the path below /latest/.
    `status`: the HTTP status of the answer, 0 without an answer.
    `text`: without an answer, the error; else the code that metadata returned instead of keys, or "". Never keys.
    """

    path: str
    status: int
    text: str


def ask_metadata_directly() -> None:
    """Keep botocore's requests to instance metadata off proxies in this process; idempotent."""
    from botocore.utils import IMDSFetcher

    with_proxies = IMDSFetcher.__init__
    if hasattr(with_proxies, "__wrapped__"):
        return

    @wraps(with_proxies)
    def without_proxies(self: Any, *args: Any, **named: Any) -> None:
        with_proxies(self, *args, **named)
        self._session = _direct_session(self._timeout)

    IMDSFetcher.__init__ = without_proxies  # type: ignore[method-assign]


def last_exchange(resolver: Any) -> Exchange | None:
    """Return the result of the last request that a resolver of credentials made to metadata; None without one."""
    exchange: Exchange | None = resolver.get_provider("iam-role")._role_fetcher._session.last
    return exchange


def _direct_session(timeout_s: int) -> Any:
    """Make a session without proxies, which keeps the result of its last request."""
    from botocore.httpsession import URLLib3Session

    class DirectSession(URLLib3Session):
        last: Exchange | None = None

        def send(self, request: Any) -> Any:
            path = request.url.partition("/latest/")[2]
            try:
                response = super().send(request)
            except Exception as error:
                self.last = Exchange(path, 0, str(error))
                raise
            self.last = Exchange(path, response.status_code, _code_in(response))
            return response

    return DirectSession(timeout=timeout_s)


def _code_in(response: Any) -> str:
    """Return the code that metadata answers instead of keys, "" if there is none."""
    try:
        document = json.loads(response.text)
    except (ValueError, LookupError, RecursionError):  # no JSON, no text, or an unknown character set
        return ""
    if not isinstance(document, dict) or "SecretAccessKey" in document:
        return ""
    return str(document.get("Code", ""))[:CODE_MAX]
