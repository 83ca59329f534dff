"""The port `Metadata`: the node's identity and its ENIs from instance metadata (IMDSv2).

It uses `http.client` instead of botocore's fetcher: the identity is needed before any AWS library is imported, http.client uses no
proxy (metadata must not go through one), and IMDSv1 is not used even if v2 fails. Metadata lags behind EC2, so nothing is removed
because of it (I7), and a failed read is an error, never an empty value (I11).
Source of the paths: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network
from urllib.parse import urlsplit

from ipamd.cloud import metadata_enis
from ipamd.cloud.bounded_http import AnswerLimitError, MetadataResponse
from ipamd.cloud.errors import AttemptError, ThrottledAttempt, UnansweredAttempt, UnseenAttempt, UnsentAttempt
from ipamd.cloud.retries import RetryPolicy
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudError, SettingsError, ThrottledError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.ports import Clock, Metadata
from ipamd.settings import CloudConfig

CONNECT_TIMEOUT_S = 1.0
"""Metadata is on the host itself. Source: botocore's default for the same service."""

READ_TIMEOUT_S = 2.0
"""For a whole answer. Ours: twice the above; the service answers in milliseconds unless it throttles this instance."""

TOKEN_TTL_S = 21600
"""Longest lifetime of a token.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html.
"""

TOKEN_MARGIN_S = 300.0
"""A token is renewed this long before its end. Ours: no request may start with a token that expires during it."""

POLICY = RetryPolicy(
    (UnsentAttempt, UnansweredAttempt, UnseenAttempt, ThrottledAttempt),
    attempts=5,
    total_s=8.0,
    first_wait_s=0.1,
    wait_cap_s=1.0,
)
"""For one reading of the identity. Ours: longer than the second or two in which metadata of a booting instance is incomplete,
and short enough for the start. A 404 is retried because metadata lags."""

DOCUMENT = "dynamic/instance-identity/document"
MAC = "meta-data/mac"
MACS = "meta-data/network/interfaces/macs"

CHANGING = ("vpc-ipv4-cidr-blocks", "security-group-ids")
"""Paths that are read every time; the others do not change while the instance runs."""


class ImdsMetadata(Metadata):
    """Instance metadata of this node. The first reading makes nine small requests on one connection, later ones two or three."""

    def __init__(self, config: CloudConfig, *, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises: SettingsError if the endpoint is not an http URL."""
        parts = urlsplit(config.imds_endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise SettingsError(
                f"AWS_EC2_METADATA_SERVICE_ENDPOINT={config.imds_endpoint!r} is not usable",
                details="it must be an http:// URL with a host; leave it empty on EC2",
            )
        self._endpoint = config.imds_endpoint
        self._host, self._port = parts.hostname, parts.port or http.client.HTTP_PORT
        self._root = f"{parts.path.rstrip('/')}/latest"
        self._clock = clock
        self._sleep = sleep
        self._token: tuple[str, float] | None = None
        self._settled: dict[str, str] = {}
        self._settled_enis: dict[MacAddress, dict[str, str]] = {}
        self._life_cycle = ""
        self._count = 0
        self._counting = threading.Lock()

    def identity(self) -> InstanceIdentity:
        """Read the identity.

        Raises: CloudError naming the path, after the attempts of POLICY.
        Concurrency: any thread, without a lock; two at the same time read twice.
        """
        read: dict[str, str] = dict(self._settled)
        try:
            found = POLICY.retrying(self._clock, self._sleep)(self._read_identity, read)
        except AttemptError as failed:
            raise failed.error from failed
        self._settled = {path: text for path, text in read.items() if not path.endswith(CHANGING)}
        return found

    def read(self, path: str) -> str | None:
        """Read one path below /latest, in one attempt; None for a 404. For a probe. Raises: CloudError naming the path."""
        with self._connection() as connection:
            return self._get_once(connection, path)

    def list_interfaces(self) -> frozenset[MacAddress]:
        """See the port. One attempt: whoever looks in the background looks again, within a budget of requests."""
        with self._connection() as connection:
            shown = metadata_enis.read_macs(lambda path: self._get_once(connection, f"{MACS}/{path}"))
        self._settled_enis = {mac: leaves for mac, leaves in self._settled_enis.items() if mac in shown}
        return shown

    def interface(self, mac: MacAddress, *, known: Eni | None = None) -> MetadataEni:
        """See the port. What does not change while an ENI is attached is read once."""
        settled = dict(self._settled_enis.get(mac, {} if known is None else metadata_enis.settled_of(known)))
        with self._connection() as connection:
            found = metadata_enis.read_eni(mac, lambda path: self._get_once(connection, f"{MACS}/{path}"), settled)
        self._settled_enis[mac] = settled
        return found

    def notices(self) -> Mapping[FreezeCause, str]:
        """See the port. The life cycle is read until metadata has told it; it does not change."""
        with self._connection() as connection:
            if not self._life_cycle:
                self._life_cycle = (self._get_once(connection, LIFE_CYCLE) or "").strip()
            if self._life_cycle != SPOT:
                return {}
            return read_notices(lambda path: self._get_once(connection, path))

    def request_count(self) -> int:
        return self._count

    def _get_once(self, connection: http.client.HTTPConnection, path: str) -> str | None:
        """GET in one attempt; None for a 404. Raises: CloudError; a 401 makes the next request renew the token."""
        try:
            headers = {"X-aws-ec2-metadata-token": self._living_token(connection)}
            status, body = self._request(connection, "GET", path, headers)
        except AttemptError as failed:
            raise failed.error from failed
        if status == HTTPStatus.UNAUTHORIZED:
            self._token = None
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise self._refused(path, status).error
        return body if status == HTTPStatus.OK else None

    def _connection(self) -> closing[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        connection.response_class = MetadataResponse
        return closing(connection)

    def _read_identity(self, read: dict[str, str]) -> InstanceIdentity:
        """Make one attempt; paths in `read` from an earlier attempt are not requested again."""
        with self._connection() as connection:

            def text(path: str) -> str:
                if path not in read:
                    read[path] = self._get(connection, path)
                return read[path]

            return _identity(text)

    def _get(self, connection: http.client.HTTPConnection, path: str) -> str:
        """GET with a token. A 401 means that metadata restarted and forgot the token: renew it once."""
        for is_last in (False, True):
            headers = {"X-aws-ec2-metadata-token": self._living_token(connection)}
            status, body = self._request(connection, "GET", path, headers)
            if status == HTTPStatus.OK:
                return body
            if status != HTTPStatus.UNAUTHORIZED or is_last:
                break
            self._token = None
        raise self._refused(path, status)

    def _living_token(self, connection: http.client.HTTPConnection) -> str:
        now = self._clock.monotonic()
        held = self._token
        if held is not None and now < held[1]:
            return held[0]
        path = "api/token"
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        status, body = self._request(connection, "PUT", path, headers)
        if status != HTTPStatus.OK:
            raise self._refused(path, status)
        if not metadata_enis.is_word(body):
            raise AttemptError(self._error(path, f"it is no token; check AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint}"))
        self._token = (body, now + TOKEN_TTL_S - TOKEN_MARGIN_S)
        return body

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Make one HTTP request, opening the connection if necessary."""
        with self._counting:
            self._count += 1
        if connection.sock is None:
            self._connect(connection, path)
        connection.sock.settimeout(READ_TIMEOUT_S)  # each answer has all of it: the answer before has left what it did not need
        try:
            connection.request(method, f"{self._root}/{path}", headers=headers)
            with connection.getresponse() as response:
                return response.status, response.read().decode()
        except (AnswerLimitError, UnicodeDecodeError) as exc:
            connection.close()
            advice = f"check what AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint} points to"
            raise UnansweredAttempt(self._error(path, f"{exc}; {advice}")) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            advice = "a PUT that is never answered means a hop limit of 1 between pod and host: set it to 2"
            raise UnansweredAttempt(self._error(path, f"no answer from {self._endpoint} ({exc!r}); {advice}")) from exc

    def _connect(self, connection: http.client.HTTPConnection, path: str) -> None:
        try:
            connection.connect()
        except OSError as exc:
            advice = "is this an EC2 instance, and does the pod use hostNetwork or the instance a hop limit of 2?"
            raise UnsentAttempt(self._error(path, f"no connection to {self._endpoint} ({exc}); {advice}")) from exc

    def _refused(self, path: str, status: int) -> AttemptError:
        if status == HTTPStatus.NOT_FOUND:
            return UnseenAttempt(self._error(path, "404: the instance has none, or metadata has not caught up yet; try again"))
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            advice = "find out what else on this node asks instance metadata so often"
            return ThrottledAttempt(ThrottledError(_what(path), details=f"{status}: too many requests; {advice}"))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return UnansweredAttempt(self._error(path, f"{status}: a fault of instance metadata; reboot the node if it lasts"))
        if status == HTTPStatus.FORBIDDEN:
            return AttemptError(self._error(path, "403: switched off for this instance; set HttpEndpoint=enabled"))
        return AttemptError(self._error(path, f"{status}; check AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint}"))

    def _error(self, path: str, details: str) -> CloudError:
        return CloudError(_what(path), details=details)


def _what(path: str) -> str:
    return f"instance metadata /latest/{path} could not be read"


def _identity(text: Callable[[str], str]) -> InstanceIdentity:
    """Build the identity from the paths. Raises: AttemptError if a value is malformed or of another type."""
    path = DOCUMENT

    def word(value: object) -> str:
        if not isinstance(value, str) or not metadata_enis.is_word(value.strip()):
            raise ValueError(f"{str(value)[:40]!r} is no name")
        return value.strip()

    try:
        document = json.loads(text(path))
        instance_id, instance_type = word(document["instanceId"]), word(document["instanceType"])
        region, zone = word(document["region"]), word(document["availabilityZone"])
        primary = IPv4Address(word(document["privateIp"])) if document.get("privateIp") else None
        path = MAC
        mac = metadata_enis.parse_mac(text(path))
        path = f"{MACS}/{mac}"
        return InstanceIdentity(
            instance_id=InstanceId(instance_id),
            instance_type=instance_type,
            region=region,
            availability_zone=zone,
            vpc_id=word(text(f"{path}/vpc-id")),
            vpc_cidrs=tuple(IPv4Network(item) for item in text(f"{path}/vpc-ipv4-cidr-blocks").split()),
            primary_mac=mac,
            primary_eni_id=EniId(word(text(f"{path}/interface-id"))),
            primary_address=primary or IPv4Address(text(f"{path}/local-ipv4s").split()[0]),
            subnet_id=SubnetId(word(text(f"{path}/subnet-id"))),
            subnet_cidr=IPv4Network(text(f"{path}/subnet-ipv4-cidr-block").strip()),
            security_group_ids=tuple(sorted(map(word, text(f"{path}/security-group-ids").split()))),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as exc:
        details = f"the value is malformed ({str(exc)[:200]!r}); check what AWS_EC2_METADATA_SERVICE_ENDPOINT points to"
        raise AttemptError(CloudError(_what(path), details=details)) from exc


# What EC2 announces about the end of an instance, in its metadata: only to spot instances, so only these are asked.
#
# A path that is not there (404) is no notice. Anything else that cannot be read is an error, not "none" (I11): the caller keeps
# what it knew. Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
# (instance-life-cycle), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (action, time;
# two minutes before), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html (noticeTime; earlier, at
# best effort).


LIFE_CYCLE = "meta-data/instance-life-cycle"
SPOT = "spot"
INTERRUPTION = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"


def read_notices(read: Callable[[str], str | None]) -> Mapping[FreezeCause, str]:
    """Read both notices of a spot instance.

    Args:
        read: gives the text at a path, None for a 404; raises CloudError.
    Returns: cause -> words with the time that EC2 names. Raises: CloudError naming a path whose text is malformed.
    """
    found = {}
    if action := _words(INTERRUPTION, read(INTERRUPTION), ("action", "time")):
        found[FreezeCause.SPOT_INTERRUPTION] = "EC2 will {} it at {}".format(*action)
    if noticed := _words(REBALANCE, read(REBALANCE), ("noticeTime",)):
        found[FreezeCause.REBALANCE] = "EC2 says since {} that it is likely to be interrupted".format(*noticed)
    return found


def _words(path: str, text: str | None, names: tuple[str, ...]) -> list[str]:
    """The values of a small JSON object, each one word; empty without a text."""
    if text is None:
        return []
    try:
        document = json.loads(text)
        values = [document[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise _malformed(path, repr(exc)[:200]) from exc
    if not all(isinstance(value, str) and metadata_enis.is_word(value) for value in values):
        raise _malformed(path, f"{values!r:.200}")
    return values


def _malformed(path: str, what: str) -> CloudError:
    details = f"the value is malformed ({what}); check what AWS_EC2_METADATA_SERVICE_ENDPOINT points to"
    return CloudError(f"instance metadata /latest/{path} could not be read", details=details)
