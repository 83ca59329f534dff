"""Find out which party did not provide credentials, and how it failed, from the exception that ended botocore's search.

Not all of botocore's exceptions name the party: a silent STS looks like a silent EC2, a malformed answer is one of Python's errors,
and instance metadata is skipped without any message. If the exception does not show the party, it is the one
that the environment selects. Only code that may import botocore imports this module. Pure; the environment is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from botocore import exceptions as theirs

from ipamd.cloud.credential_errors import FAULT, MISSING, REFUSED, SILENT, THROTTLED, UNREADABLE, MissingCredentials, Party
from ipamd.cloud.direct_metadata import Exchange
from ipamd.model.words import printable

TEXT_MAX = 300
"""Characters of a party's own text that are quoted. Ours: as many as of a message of EC2 (`MESSAGE_MAX` in errors.py)."""

SERVER_ERROR = 500
"""HTTP status from which the server reports a fault of its own. Source: RFC 9110, 15.6."""

TOO_MANY = 429
"""HTTP status of a server that throttles. Source: RFC 6585, 4."""

SKEW_S = 60.0
"""Smallest difference, in seconds, between the node's clock and a server's clock that is reported. Ours: AWS refuses a signature whose
time is wrong by five minutes, and a token whose time is wrong by less, so a minute may be the cause of a refusal."""

WEB_IDENTITY, CONTAINER_TOKEN = "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
CONTAINER_URIS = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")

_STATUS = re.compile(r"non 200 response (\d{3})")
"""Finds the HTTP status in botocore's text about a container's endpoint (botocore/utils.py, ContainerMetadataFetcher)."""

_ENDED_ALREADY = "still expired"
"""Words that show that botocore's text is about new keys that have expired already (botocore/credentials.py, _protected_refresh)."""

NO_ANSWER = (theirs.ConnectionError, theirs.HTTPClientError)
"""Base classes of the exceptions that botocore raises if no complete answer came."""


def chosen_party(environ: Mapping[str, str]) -> Party:
    """Return the party that botocore calls first in this environment."""
    if environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_SECRET_ACCESS_KEY") or environ.get("AWS_PROFILE"):
        return Party.SETTINGS
    if environ.get(WEB_IDENTITY):
        return Party.STS
    if any(environ.get(name) for name in CONTAINER_URIS):
        return Party.CONTAINER
    return Party.METADATA


def lack_of(
    error: Exception, *, environ: Mapping[str, str], exchange: Exchange | None, metadata_endpoint: str
) -> MissingCredentials:
    """Return which party did not provide credentials, and how it failed.

    Args:
        error: the exception that ended botocore's search.
        environ: the environment of the process that searched.
        exchange: the last request to instance metadata, None without one.
        metadata_endpoint: the URL of instance metadata, for people.
    """
    text = printable(str(error), most=TEXT_MAX)
    party = chosen_party(environ)
    lack = _named_by_exception(error, text, party, environ)
    if lack is not None:
        return lack
    if party is Party.SETTINGS:
        return _of_settings(text)
    if party is Party.METADATA:
        return _of_metadata(text, exchange, environ, metadata_endpoint)
    if party is Party.CONTAINER:
        return _of_container(text, environ)
    return _of_silent_sts(error, text, environ)


def _named_by_exception(error: Exception, text: str, party: Party, environ: Mapping[str, str]) -> MissingCredentials | None:
    """Return which provider of credentials (`Party`) failed, and why, if the exception shows it; None if only the environment can
    decide.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return _of_file(error, environ)
    if isinstance(error, RuntimeError) and _ENDED_ALREADY in str(error):
        return MissingCredentials(Party.CLOCK, REFUSED, text)
    if isinstance(error, theirs.ClientError):
        return _of_sts(error, environ)
    if isinstance(error, theirs.ParamValidationError | UnicodeDecodeError) and party is Party.STS:
        return _of_rejected_parameter(error, text, environ)
    if isinstance(error, theirs.PartialCredentialsError | theirs.InvalidConfigError | theirs.ProfileNotFound):
        return _of_settings(text)
    return None


def _of_rejected_parameter(error: Exception, text: str, environ: Mapping[str, str]) -> MissingCredentials:
    """Blame the token file if botocore could not send its content, otherwise the settings."""
    is_token = isinstance(error, UnicodeDecodeError) or "WebIdentityToken" in str(error)
    if not is_token:
        return _of_settings(text)
    file = environ[WEB_IDENTITY]
    return MissingCredentials(Party.TOKEN_FILE, REFUSED, f"{file} is empty or holds no token", file=file)


def _of_settings(text: str) -> MissingCredentials:
    return MissingCredentials(Party.SETTINGS, REFUSED, text)


def _of_file(error: OSError, environ: Mapping[str, str]) -> MissingCredentials:
    file = printable(str(error.filename), most=TEXT_MAX)
    is_token = str(error.filename) in (environ.get(WEB_IDENTITY), environ.get(CONTAINER_TOKEN))
    text = f"{file}: {error.strerror or type(error).__name__}"
    return MissingCredentials(Party.TOKEN_FILE if is_token else Party.SETTINGS, REFUSED, text, file=file)


def _of_sts(error: theirs.ClientError, environ: Mapping[str, str]) -> MissingCredentials:
    answer, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code = printable(str(answer.get("Code", "")), most=TEXT_MAX)
    status = meta.get("HTTPStatusCode", 0)
    message = printable(str(answer.get("Message", "")), most=TEXT_MAX)
    text = f"{code}: {message}{skew_note(error)}"
    file, role = environ.get(WEB_IDENTITY, ""), environ.get("AWS_ROLE_ARN", "")
    if status >= SERVER_ERROR:
        code = FAULT
    elif status == TOO_MANY:
        code = THROTTLED
    elif not meta.get("RequestId"):
        code = UNREADABLE
    return MissingCredentials(Party.STS, code, text, role=printable(role, most=TEXT_MAX), file=printable(file, most=TEXT_MAX))


def _of_silent_sts(error: Exception, text: str, environ: Mapping[str, str]) -> MissingCredentials:
    endpoint = str(getattr(error, "kwargs", {}).get("endpoint_url", "")) or environ.get("AWS_ENDPOINT_URL_STS", "")
    code = SILENT if isinstance(error, NO_ANSWER) else UNREADABLE
    return MissingCredentials(Party.STS, code, text, endpoint=printable(endpoint, most=TEXT_MAX))


def _of_container(text: str, environ: Mapping[str, str]) -> MissingCredentials:
    named = next(environ[name] for name in CONTAINER_URIS if environ.get(name))
    endpoint = printable(urlsplit(named).netloc or "169.254.170.2", most=TEXT_MAX)
    status = _STATUS.search(text)
    if status is not None:
        number = int(status[1])
        if number >= SERVER_ERROR:
            code = FAULT
        elif number == TOO_MANY:
            code = THROTTLED
        else:
            code = status[1]
    else:
        code = SILENT if "Received error when" in text else UNREADABLE
    return MissingCredentials(Party.CONTAINER, code, text, endpoint=endpoint)


def _of_metadata(text: str, exchange: Exchange | None, environ: Mapping[str, str], endpoint: str) -> MissingCredentials:
    def lack(code: str, detail: str) -> MissingCredentials:
        return MissingCredentials(Party.METADATA, code, printable(detail, most=TEXT_MAX), endpoint=endpoint)

    if exchange is None:
        if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return lack("disabled", "AWS_EC2_METADATA_DISABLED is set")
        return lack(UNREADABLE, text)
    if not exchange.status:
        return lack(SILENT, exchange.text)
    detail = f"{exchange.status} for {exchange.path}"
    if exchange.status == 404 and "security-credentials" in exchange.path:
        return lack(MISSING, f"{detail}: the instance has no role")
    if exchange.status == TOO_MANY or exchange.status >= SERVER_ERROR:
        return lack(FAULT, detail)
    if exchange.text:
        return lack(exchange.text, f"{exchange.text} instead of keys for {exchange.path}")
    if exchange.status == 403:
        return lack("403", detail)
    return lack(UNREADABLE, detail)


def skew_note(error: theirs.ClientError) -> str:
    """Return a note if the node's clock differs from that of the answering server by SKEW_S or more, otherwise ""."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        answered_at = parsedate_to_datetime(headers["date"])
        skew_s = (datetime.now(UTC) - answered_at).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return ""
    if abs(skew_s) < SKEW_S:
        return ""
    return f" (the node's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the answer's)"
