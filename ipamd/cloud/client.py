"""One botocore EC2 client, built at the first call; each call is one HTTP attempt.

The daemon makes its calls by a process of their own (`child.py`), which runs this; so does a probe. Its botocore session knows only
the calls that we make (`trim_model`). botocore's retries are off: `retries.py` has them all.
Concurrency: any thread. The lock is held while the client is built, never across a call (I10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipamd import __version__
from ipamd.cloud import errors
from ipamd.cloud.bounded_http import bound_botocore
from ipamd.cloud.trim_model import DATA_DIR, OPERATIONS, trimmed_loader, why_unusable

if TYPE_CHECKING:
    from ipamd.settings import CloudConfig

CONNECT_TIMEOUT_S = 3
"""Longest wait for a connection, unless HTTP_TIMEOUT is shorter. Ours: a lost SYN is sent again after 1 s, EC2's
endpoint is milliseconds away, and an unreachable endpoint must not delay the start by ten seconds."""

CREDENTIAL_TIMEOUT_S = 1
"""Seconds per request for credentials to instance metadata. Source: botocore's default, fixed here against changes."""

CREDENTIAL_ATTEMPTS = 2
"""Ours: metadata drops single requests while an instance boots; more attempts would delay the start where there is none."""

POOL_CONNECTIONS = 4
"""HTTP connections kept open. Ours: one worker per network card, and one for the queries at start."""

_log = logging.getLogger(__name__)


class NotCalledError(Exception):
    """Nothing was sent, because there is no client: `failure` says why."""

    def __init__(self, failure: errors.Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Ec2Client:
    """Makes EC2 calls. Each is exactly one HTTP attempt, or none if there are no credentials. `region` tells it, once it is known."""

    def __init__(self, config: CloudConfig, *, region: Callable[[], str], model_dir: Path = DATA_DIR) -> None:
        self._config = config
        self.region = region
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._client: Any = None

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one attempt.

        Args:
            api: a key of OPERATIONS.
            subject: the object, for messages.
        Raises: AttemptError, by the table in `errors.py`.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self.undigested(api, params)
        except (BotoCoreError, ClientError, NotCalledError) as exc:
            raise errors.failed(api, subject, self.failure(exc)) from exc

    def rest(self, *, is_wanted: bool) -> None:
        """Called now and then: let go of what has not been used for long; if it `is_wanted` soon, have it ready."""

    def failure(self, exc: Exception) -> errors.Failure:
        """Describe what `undigested` has raised."""
        from botocore.exceptions import ClientError

        if isinstance(exc, NotCalledError):
            return exc.failure
        if not isinstance(exc, ClientError):
            return errors.failure_of(exc, self._client.meta.endpoint_url)
        error, meta = exc.response.get("Error", {}), exc.response.get("ResponseMetadata", {})
        code, message = str(error.get("Code", "")), str(error.get("Message", ""))
        return errors.Failure([], message, code=code, status=meta.get("HTTPStatusCode", 0))

    def undigested(self, api: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one attempt; also for a probe, which wants to see EC2's own codes (`ipamd/probe/`).

        Raises: NotCalledError without credentials, else botocore's own exceptions, whose parsers have others for what is no answer
        of EC2.
        """
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        client = self.built()
        try:
            answer: Mapping[str, Any] = getattr(client, OPERATIONS[api])(**params)
        except (BotoCoreError, ClientError):
            raise
        except Exception as exc:
            if isinstance(exc, OSError) and exc.filename is not None:
                # A file of credentials, read when the call is signed: nothing was sent.
                raise _without_credentials(errors.said(exc)) from exc
            # Any of Python's errors, from a parser that met HTML, nothing, or a word for a number; also that of credentials.
            raise HTTPClientError(error=errors.UnreadableAnswerError(f"{type(exc).__name__}: {exc}")) from exc
        if not answer.get("ResponseMetadata", {}).get("RequestId"):
            # Well-formed XML of somebody else would be an empty list, or the success of a change that was never made.
            raise HTTPClientError(error=errors.UnreadableAnswerError("it has no request ID, so it is not EC2's"))
        return answer

    def built(self) -> Any:
        """Return the client. One without credentials is not kept, because they may appear later. Raises: NotCalledError."""
        from botocore.exceptions import BotoCoreError

        with self._lock:
            if self._client is None:
                try:
                    self._client = self._build()
                except BotoCoreError as exc:
                    raise NotCalledError(errors.failure_of(exc, "instance metadata")) from exc
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
                    cause = f"what gives the credentials sent something else ({errors.said(exc)})"
                    raise _without_credentials(cause) from exc
                if self._client is None:
                    raise _without_credentials("no AWS credentials were found")
            return self._client

    def _build(self) -> Any:
        """Make a client; None if there are no credentials. Raises: BotoCoreError, and Python's errors for a malformed answer."""
        from botocore.config import Config
        from botocore.session import Session

        bound_botocore()
        session = Session()
        unusable = why_unusable(self._model_dir, operations=frozenset(OPERATIONS))
        if unusable:
            _log.warning("botocore's whole EC2 model is used, which costs about 23 MiB more reason=%s", unusable)
        else:
            session.register_component("data_loader", trimmed_loader(self._model_dir))
        session.set_config_variable("ec2_metadata_service_endpoint", self._config.imds_endpoint)
        session.set_config_variable("ec2_metadata_v1_disabled", True)
        session.set_config_variable("metadata_service_timeout", CREDENTIAL_TIMEOUT_S)
        session.set_config_variable("metadata_service_num_attempts", CREDENTIAL_ATTEMPTS)
        if session.get_credentials() is None:
            return None
        return session.create_client(
            "ec2",
            region_name=self.region(),
            endpoint_url=self._config.ec2_endpoint or None,  # None: AWS_ENDPOINT_URL_EC2, else the region's own
            config=Config(
                connect_timeout=min(self._config.http_timeout_s, CONNECT_TIMEOUT_S),
                read_timeout=self._config.http_timeout_s,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=POOL_CONNECTIONS,
                user_agent_extra=f"vpc-ipamd/{__version__}",
            ),
        )


def _without_credentials(cause: str) -> NotCalledError:
    return NotCalledError(errors.Failure(["NoCredentialsError"], cause))
