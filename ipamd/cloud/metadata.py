"""The port `Metadata`: the node's identity and its ENIs from instance metadata (IMDSv2).

It uses `http.client` instead of botocore's fetcher: the identity is needed before any AWS library is imported, http.client uses no
proxy (metadata must not go through one), and IMDSv1 is not used even if v2 fails. Metadata lags behind EC2, so nothing is removed
because of it (I7), and a failed read is an error, never an empty value (I11). In the tree of the ENIs a 404 means "none" for
addresses and prefixes (an IPv6-only or EFA-only interface has no local-ipv4s); for the rest it means that metadata has not caught up.
Source of the paths: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html; amazon-vpc-cni-k8s issue
3122 (an interface without local-ipv4s), pkg/awsutils/imds.go (a 404 for ipv4-prefix).
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network
from urllib.parse import urlsplit

from ipamd.cloud.bounded_http import AnswerLimitError, MetadataResponse
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.retries import PASSING, RetryPolicy
from ipamd.model.call_report import Outcome
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudError, SettingsError, ThrottledError
from ipamd.model.family import IPV4, Family
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

POLICY = RetryPolicy(PASSING, attempts=5, total_s=8.0, first_wait_s=0.1, wait_cap_s=1.0)
"""For one reading of the identity. Ours: longer than the second or two in which metadata of a booting instance is incomplete,
and short enough for the start. A 404 is retried because metadata lags."""

DOCUMENT = "dynamic/instance-identity/document"
MAC = "meta-data/mac"
MACS = "meta-data/network/interfaces/macs"
Read = Callable[[str], str | None]
"""Path -> text, None for a 404. Raises: CloudError or AttemptError."""

ID, INDEX = "interface-id", "device-number"

WORD = re.compile(r"[!-;=?-~]{1,1024}")
"""Printable ASCII without spaces and without the angle brackets of HTML. Ours: AWS promises the format of no ID; tokens are base64."""

MAC_FORM = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")

CHANGING = ("vpc-ipv4-cidr-blocks", "security-group-ids")
"""Paths that are read every time; the others do not change while the instance runs."""


class ImdsMetadata(Metadata):
    """Instance metadata of this node. The first reading makes nine small requests on one connection, later ones two or three."""

    def __init__(
        self, config: CloudConfig, *, clock: Clock, sleep: Callable[[float], None] = time.sleep, family: Family = IPV4
    ) -> None:
        """`family`: of the pool. Raises: SettingsError if the endpoint is not an http URL."""
        self._family = family
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
        self._settled_enis: dict[MacAddress, tuple[EniId, int]] = {}
        self._life_cycle = ""
        self._numbers = itertools.count(1)  # of requests: two threads never have the same
        self._count = 0

    def identity(self) -> InstanceIdentity:
        """Read the identity.

        Raises: CloudError naming the path, after the attempts of POLICY.
        Concurrency: any thread, without a lock; two at the same time read twice.
        """
        read: dict[str, str] = dict(self._settled)  # what an attempt has read the next one does not ask for

        def attempt() -> InstanceIdentity:
            with self._connection() as connection:
                return _identity(partial(self._required, connection, read))

        try:
            found = POLICY.retrying(self._clock, self._sleep)(attempt)
        except AttemptError as failed:
            raise failed.error from failed
        self._settled = {path: text for path, text in read.items() if not path.endswith(CHANGING)}
        return found

    def read(self, path: str) -> str | None:
        """Read one path below /latest, in one attempt; None for a 404. For a probe. Raises: CloudError naming the path."""
        with self._once() as read:
            return read(path)

    def list_interfaces(self) -> frozenset[MacAddress]:
        """See the port. One attempt: whoever looks in the background looks again, within a budget of requests."""
        with self._once() as read:
            shown = read_macs(read)
        self._settled_enis = {mac: settled for mac, settled in self._settled_enis.items() if mac in shown}
        return shown

    def interface(self, mac: MacAddress, *, known: Eni | None = None) -> MetadataEni:
        """See the port. What does not change while an ENI is attached is read once."""
        settled = self._settled_enis.get(mac) or (None if known is None else (known.eni_id, known.device_index))
        with self._once() as read:
            found = read_eni(mac, read, settled, self._family)
        self._settled_enis[mac] = found.eni_id, found.device_index
        return found

    def notices(self) -> Mapping[FreezeCause, str]:
        """See the port. The life cycle is read until metadata has told it; it does not change."""
        with self._once() as read:
            self._life_cycle = self._life_cycle or (read(LIFE_CYCLE) or "").strip()
            return read_notices(read) if self._life_cycle == SPOT else {}

    def ipv6_address(self) -> str:
        """See the port."""
        return (self.read(IPV6_PATH) or "").strip()

    def request_count(self) -> int:
        return self._count

    @contextmanager
    def _once(self) -> Iterator[Read]:
        """One connection, and what reads a path over it in one attempt. Raises: CloudError."""
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
        """What is in `read`, or the text that is there now, which it gets. A forgotten token is renewed at once."""
        if path not in read:
            text = self._get(connection, path, tries=2)
            if text is None:
                raise self._refused(path, HTTPStatus.NOT_FOUND)
            read[path] = text
        return read[path]

    def _get(self, connection: http.client.HTTPConnection, path: str, *, tries: int = 1) -> str | None:
        """GET with a token; None for a 404. Raises: AttemptError.

        A 401 means that metadata restarted and forgot the token: the next try renews it, of this call or of another.
        """
        for _ in range(tries):
            headers = {"X-aws-ec2-metadata-token": self._living_token(connection)}
            status, body = self._request(connection, "GET", path, headers)
            if status != HTTPStatus.UNAUTHORIZED:
                break
            self._token = None
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise self._refused(path, status)
        return body if status == HTTPStatus.OK else None

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
        if not is_word(body):
            raise AttemptError(_unread(path, f"it is no token; check AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint}"))
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
                advice = "is this an EC2 instance, and does the pod use hostNetwork or the instance a hop limit of 2?"
                raise AttemptError(_unread(path, f"no connection to {self._endpoint} ({exc}); {advice}"), Outcome.UNSENT) from exc
        connection.sock.settimeout(READ_TIMEOUT_S)  # each answer has all of it: the answer before has left what it did not need
        try:
            connection.request(method, f"{self._root}/{path}", headers=headers)
            with connection.getresponse() as response:
                return response.status, response.read().decode()
        except (AnswerLimitError, UnicodeDecodeError) as exc:
            connection.close()
            advice = f"check what AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint} points to"
            raise AttemptError(_unread(path, f"{exc}; {advice}"), Outcome.UNANSWERED) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            advice = "a PUT that is never answered means a hop limit of 1 between pod and host: set it to 2"
            error = _unread(path, f"no answer from {self._endpoint} ({exc!r}); {advice}")
            raise AttemptError(error, Outcome.UNANSWERED) from exc

    def _refused(self, path: str, status: int) -> AttemptError:
        if status == HTTPStatus.NOT_FOUND:
            details = "404: the instance has none, or metadata has not caught up yet; try again"
            return AttemptError(_unread(path, details), Outcome.NOT_FOUND)
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            details = f"{status}: too many requests; find out what else on this node asks instance metadata so often"
            return AttemptError(_unread(path, details, kind=ThrottledError), Outcome.THROTTLED)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            details = f"{status}: a fault of instance metadata; reboot the node if it lasts"
            return AttemptError(_unread(path, details), Outcome.UNANSWERED)
        if status == HTTPStatus.FORBIDDEN:
            return AttemptError(_unread(path, "403: switched off for this instance; set HttpEndpoint=enabled"))
        return AttemptError(_unread(path, f"{status}; check AWS_EC2_METADATA_SERVICE_ENDPOINT={self._endpoint}"))


def _unread(path: str, details: str, *, kind: type[CloudError] = CloudError) -> CloudError:
    return kind(f"instance metadata /latest/{path} could not be read", details=details)


def _malformed(path: str, what: object) -> CloudError:
    return _unread(path, f"the value is malformed ({str(what)[:200]}); check what AWS_EC2_METADATA_SERVICE_ENDPOINT points to")


def _identity(text: Callable[[str], str]) -> InstanceIdentity:
    """Build the identity from the paths. Raises: AttemptError if a value is malformed or of another type."""
    path = DOCUMENT

    def word(value: object) -> str:
        if not isinstance(value, str) or not is_word(value.strip()):
            raise ValueError(f"{str(value)[:40]!r} is no name")
        return value.strip()

    try:
        document = json.loads(text(path))
        instance_id, instance_type = word(document["instanceId"]), word(document["instanceType"])
        region, zone = word(document["region"]), word(document["availabilityZone"])
        primary = IPv4Address(word(document["privateIp"])) if document.get("privateIp") else None
        path = MAC
        mac = parse_mac(text(path))
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
        raise AttemptError(_malformed(path, repr(str(exc)[:200]))) from exc


# What EC2 announces about the end of an instance, in its metadata: only to spot instances, so only these are asked.
#
# A path that is not there (404) is no notice. Anything else that cannot be read is an error, not "none" (I11): the caller keeps
# what it knew. Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
# (instance-life-cycle), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (action, time;
# two minutes before), https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html (noticeTime; earlier, at
# best effort).


LIFE_CYCLE = "meta-data/instance-life-cycle"
IPV6_PATH = "meta-data/ipv6"
SPOT = "spot"
INTERRUPTION = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"
NOTICES = (
    (FreezeCause.SPOT_INTERRUPTION, INTERRUPTION, ("action", "time"), "EC2 will {} it at {}"),
    (FreezeCause.REBALANCE, REBALANCE, ("noticeTime",), "EC2 says since {} that it is likely to be interrupted"),
)
"""Cause, path, the words that its JSON object must have, and the sentence they make."""


def read_notices(read: Callable[[str], str | None]) -> Mapping[FreezeCause, str]:
    """Read both notices of a spot instance.

    Args:
        read: gives the text at a path, None for a 404; raises CloudError.
    Returns: cause -> words with the time that EC2 names. Raises: CloudError naming a path whose text is malformed.
    """
    found = {}
    for cause, path, names, words in NOTICES:
        if (text := read(path)) is None:
            continue
        try:
            document = json.loads(text)
            values = [document[name] for name in names]
            if not all(isinstance(value, str) and is_word(value) for value in values):
                raise ValueError(f"{values!r:.200}")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise _malformed(path, repr(exc)) from exc
        found[cause] = words.format(*values)
    return found


def read_macs(read: Read) -> frozenset[MacAddress]:
    """Read the list of interfaces: one request. Raises: CloudError, also for an empty list: every instance has one."""
    try:
        macs = frozenset(parse_mac(line.rstrip("/")) for line in (read(f"{MACS}/") or "").split())
    except ValueError as exc:
        raise _malformed(MACS, exc) from exc
    if not macs:
        raise _unread(MACS, "it names no interface, and every instance has one; metadata has not caught up, or is not EC2's")
    return macs


def read_eni(mac: MacAddress, read: Read, settled: tuple[EniId, int] | None, family: Family = IPV4) -> MetadataEni:
    """Read one interface: two requests, and two more unless its ID and device index are `settled`: they do not change.

    Of a pool of IPv6, which gives no single addresses, the primary one alone is told besides the prefixes.
    Raises: CloudError if a leaf that every interface has is missing, or a value is malformed.
    """
    path = f"{MACS}/{mac}"
    try:
        if settled is None:
            eni_id, index = (read(f"{path}/{leaf}") for leaf in (ID, INDEX))
            if eni_id is None or index is None:
                details = "404: the ENI is gone, or metadata has not caught up; it is looked at again"
                raise _unread(f"{path}/{ID if eni_id is None else INDEX}", details)
            if not is_word(eni_id.strip()):
                raise ValueError(f"{eni_id[:40]!r} is no ID")
            settled = EniId(eni_id.strip()), int(index)
        addresses = (read(f"{path}/{IPV4.addresses_leaf}") or "").split()
        return MetadataEni(
            mac=mac,
            eni_id=settled[0],
            device_index=settled[1],
            addresses=frozenset(map(IPV4.address, addresses[:1] if family.is_sparse else addresses)),
            prefixes=frozenset(map(family.prefix, (read(f"{path}/{family.prefixes_leaf}") or "").split())),
        )
    except ValueError as exc:
        raise _malformed(path, exc) from exc


def is_word(text: str) -> bool:
    """Whether a text may be an ID, a name or a token of AWS: no HTML page is."""
    return WORD.fullmatch(text) is not None


def parse_mac(text: str) -> MacAddress:
    """Read a MAC, as metadata writes it. Raises: ValueError."""
    mac = text.strip().lower()
    if not MAC_FORM.fullmatch(mac):
        raise ValueError(f"{text[:40]!r} is no MAC address")
    return MacAddress(mac)
