"""The port `Metadata`: the node's identity and its ENIs from instance metadata (IMDSv2).

It uses `http.client` instead of botocore's fetcher: the identity is needed before any AWS library is imported, http.client uses no
proxy (metadata must not go through one), and IMDSv1 is never used, even if v2 fails. Metadata lags behind EC2, so nothing is
removed because of it (I7), and a failed read is an error, never an empty value (I11). Among the paths of an ENI a 404 means "none"
for addresses and prefixes (an IPv6-only or EFA-only interface has no local-ipv4s); for the other paths it means that metadata is not
up to date yet.
Source of the paths: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html; amazon-vpc-cni-k8s issue
3122 (an interface without local-ipv4s), pkg/awsutils/imds.go (a 404 for ipv4-prefix).
"""

from __future__ import annotations

import http.client
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from ipamd.cloud.bounded_http import AnswerLimitError, MetadataResponse
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.instance_notices import LIFE_CYCLE, SPOT, read_notices
from ipamd.cloud.metadata_answers import Read, _identity, is_word, read_eni, read_macs
from ipamd.cloud.retries import PASSING, RetryPolicy
from ipamd.model.call_report import CallOutcome
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudError, SettingsError, ThrottledError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId, MacAddress
from ipamd.ports.cloud import Metadata
from ipamd.ports.process import Clock
from ipamd.settings import CloudConfig

CONNECT_TIMEOUT_S = 1.0
"""Longest wait for a connection to instance metadata, which is on the host itself. Source: botocore's default for instance
metadata."""

READ_TIMEOUT_S = 2.0
"""Timeout of a whole answer. Ours: twice `CONNECT_TIMEOUT_S`; the service answers in milliseconds unless it throttles this
instance."""

TOKEN_TTL_S = 21600
"""Longest lifetime of a token.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html.
"""

TOKEN_MARGIN_S = 300.0
"""A token is renewed this long before its end. Ours: longer than any request, because no request may start with a token that expires
during it."""

POLICY = RetryPolicy(PASSING, attempts=5, total_s=8.0, first_wait_s=0.1, wait_cap_s=1.0)
"""Retries of one reading of the identity. Ours: longer than the second or two in which metadata of a booting instance is incomplete,
and short enough for the start. A 404 is retried because metadata lags."""

CHANGING = ("vpc-ipv4-cidr-blocks", "security-group-ids")
"""The last parts of the paths that are read every time. The other paths of the identity do not change while the instance runs."""


class ImdsMetadata(Metadata):
    """Instance metadata of this node. The first reading of the identity makes nine small requests on one connection, later readings
    make two or three.
    """

    def __init__(
        self, config: CloudConfig, *, clock: Clock, sleep: Callable[[float], None] = time.sleep, family: Family = IPV4
    ) -> None:
        """`family`: the IP family of the pool. Raises: SettingsError if the endpoint is not an http URL."""
        self._family = family
        parts = urlsplit(config.imds_endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise failure(SettingsError, FailureCode.METADATA_ENDPOINT, endpoint=config.imds_endpoint)
        self._endpoint = config.imds_endpoint
        self._host, self._port = parts.hostname, parts.port or http.client.HTTP_PORT
        self._root = f"{parts.path.rstrip('/')}/latest"
        self._clock = clock
        self._sleep = sleep
        self._token: tuple[str, float] | None = None
        self._settled: dict[str, str] = {}
        self._settled_enis: dict[MacAddress, tuple[EniId, int]] = {}
        self._life_cycle = ""
        self._numbers = itertools.count(1)  # numbers of the requests; taking the next number is atomic
        self._count = 0

    def identity(self) -> InstanceIdentity:
        """Read the identity.

        Raises: CloudError naming the path, after the attempts of POLICY.
        Concurrency: any thread, without a lock; if two threads call it at the same time, both read the paths.
        """
        read: dict[str, str] = dict(self._settled)  # shared by the attempts: no path is read twice

        def attempt() -> InstanceIdentity:
            with self._connection() as connection:
                return _identity(partial(self._required, connection, read))

        try:
            identity = POLICY.retrying(self._clock, self._sleep)(attempt)
        except AttemptError as failed:
            raise failed.error from failed
        self._settled = {path: text for path, text in read.items() if not path.endswith(CHANGING)}
        return identity

    def read(self, path: str) -> str | None:
        """Read one path below /latest, in one attempt; None for a 404. For a probe. Raises: CloudError naming the path."""
        with self._once() as read:
            return read(path)

    def list_interfaces(self) -> frozenset[MacAddress]:
        """See `Metadata.list_interfaces`. One attempt, because the next turn of the comparison reads the list again."""
        with self._once() as read:
            macs = read_macs(read)
        self._settled_enis = {mac: settled for mac, settled in self._settled_enis.items() if mac in macs}
        return macs

    def interface(self, mac: MacAddress, *, described: Eni | None = None) -> MetadataEni:
        """See `Metadata.interface`. Values that do not change while an ENI is attached are read once."""
        settled = self._settled_enis.get(mac)
        if settled is None and described is not None:
            settled = described.eni_id, described.device_index
        with self._once() as read:
            eni = read_eni(mac, read, settled, self._family)
        self._settled_enis[mac] = eni.eni_id, eni.device_index
        return eni

    def notices(self) -> Mapping[FreezeCause, str]:
        """See `Metadata.notices`. The life cycle is read until metadata has it, and then no more, because it does not change."""
        with self._once() as read:
            if not self._life_cycle:
                self._life_cycle = (read(LIFE_CYCLE) or "").strip()
            if self._life_cycle != SPOT:
                return {}
            return read_notices(read)

    def ipv6_address(self) -> str:
        """See `Metadata.ipv6_address`."""
        return (self.read(IPV6_PATH) or "").strip()

    def request_count(self) -> int:
        return self._count

    @contextmanager
    def _once(self) -> Iterator[Read]:
        """Open a connection, and yield a function that reads a path over it in one attempt. Raises: CloudError."""
        try:
            with self._connection() as connection:
                yield partial(self._get, connection)
        except AttemptError as failed:
            raise failed.error from failed

    def _connection(self) -> closing[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        connection.response_class = MetadataResponse
        return closing(connection)

    def _required(self, connection: http.client.HTTPConnection, read: dict[str, str], path: str) -> str:
        """Return the text of a path from `read`, or request it and add it there. A token that metadata refuses is renewed at once."""
        if path not in read:
            text = self._get(connection, path, tries=2)
            if text is None:
                raise self._refused(path, HTTPStatus.NOT_FOUND)
            read[path] = text
        return read[path]

    def _get(self, connection: http.client.HTTPConnection, path: str, *, tries: int = 1) -> str | None:
        """GET with a token; None for a 404. Raises: AttemptError.

        A 401 means that metadata restarted and forgot the token; the next try, of this call or a later one, renews it.
        """
        for _ in range(tries):
            headers = {"X-aws-ec2-metadata-token": self._living_token(connection)}
            status, body = self._request(connection, "GET", path, headers)
            if status != HTTPStatus.UNAUTHORIZED:
                break
            self._token = None
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise self._refused(path, status)
        if status == HTTPStatus.NOT_FOUND:
            return None
        return body

    def _living_token(self, connection: http.client.HTTPConnection) -> str:
        now = self._clock.monotonic()
        token = self._token
        if token is not None and now < token[1]:
            return token[0]
        path = "api/token"
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        status, body = self._request(connection, "PUT", path, headers)
        if status != HTTPStatus.OK:
            raise self._refused(path, status)
        if not is_word(body):
            raise AttemptError(failure(CloudError, FailureCode.METADATA_NO_TOKEN, path=path, endpoint=self._endpoint))
        self._token = (body, now + TOKEN_TTL_S - TOKEN_MARGIN_S)
        return body

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Make one HTTP request, opening the connection if necessary."""
        self._count = next(self._numbers)
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as exc:
                unreachable = failure(CloudError, FailureCode.METADATA_UNREACHABLE, path=path, endpoint=self._endpoint, cause=exc)
                raise AttemptError(unreachable, CallOutcome.UNSENT) from exc
        connection.sock.settimeout(READ_TIMEOUT_S)  # set again, because the previous answer reduced it
        try:
            connection.request(method, f"{self._root}/{path}", headers=headers)
            with connection.getresponse() as response:
                return response.status, response.read().decode()
        except (AnswerLimitError, UnicodeDecodeError) as exc:
            connection.close()
            odd = failure(CloudError, FailureCode.METADATA_ANSWER_ODD, path=path, endpoint=self._endpoint, cause=exc)
            raise AttemptError(odd, CallOutcome.UNANSWERED) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            unanswered = failure(CloudError, FailureCode.METADATA_UNANSWERED, path=path, endpoint=self._endpoint, cause=repr(exc))
            raise AttemptError(unanswered, CallOutcome.UNANSWERED) from exc

    def _refused(self, path: str, status: int) -> AttemptError:
        """Return the error of an answer with another status than 200."""
        kind, cause, outcome = CloudError, f"check AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint}", None
        if status == HTTPStatus.NOT_FOUND:
            cause, outcome = "the instance has none, or metadata is not up to date yet; try again", CallOutcome.NOT_FOUND
        elif status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            cause = "too many requests; find out what else on this node asks instance metadata so often"
            kind, outcome = ThrottledError, CallOutcome.THROTTLED
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            cause, outcome = "a fault of instance metadata; reboot the node if it lasts", CallOutcome.UNANSWERED
        elif status == HTTPStatus.FORBIDDEN:
            cause = "switched off for this instance; set HttpEndpoint=enabled"
        error = failure(kind, FailureCode.METADATA_REFUSED, path=path, status=int(status), cause=cause)
        return AttemptError(error, outcome)


IPV6_PATH = "meta-data/ipv6"
