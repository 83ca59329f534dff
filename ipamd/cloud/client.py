"""One botocore EC2 client, built at the first call; each call is one HTTP attempt.

The process of `child.py`, a probe and `vpc-ipamd-inventory` use it. Its botocore session has only the operations that we call
(`trim_model`). botocore's retries are off, because `retries.py` does them. Concurrency: any thread. The lock is held while the client
is built, never across a call (I10).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ipamd import __version__
from ipamd.cloud.attempt_failure import AttemptFailure, UnreadableAnswerError, failure_of
from ipamd.cloud.bounded_http import bound_botocore
from ipamd.cloud.direct_metadata import ask_metadata_directly, last_exchange
from ipamd.cloud.operations import OPERATIONS
from ipamd.cloud.trimmed_model import DATA_DIR, trimmed_loader, why_unusable
from ipamd.model.errors import STALE_KEYS
from ipamd.model.record import asdict

if TYPE_CHECKING:
    from ipamd.settings import CloudConfig

CONNECT_TIMEOUT_S = 3
"""Longest wait for a connection, unless HTTP_TIMEOUT is shorter. Ours: a lost SYN is sent again after 1 s, EC2's
endpoint is milliseconds away, and an unreachable endpoint must not delay the start by ten seconds."""

CREDENTIAL_TIMEOUT_S = 1
"""Timeout of one request for credentials to instance metadata. Source: botocore's default, repeated here so that a change of botocore
does not change it."""

CREDENTIAL_ATTEMPTS = 2
"""The largest number of attempts to get credentials from instance metadata. Ours: metadata drops single requests while an instance
boots; more attempts would delay the start of a node whose metadata does not answer."""

POOL_CONNECTIONS = 4
"""HTTP connections kept open. Ours: the pool's thread and the cloud loop each make one call at a time, and reports make few. Further
calls at the same time open connections that are not kept."""

_log = logging.getLogger(__name__)


class NotCalledError(Exception):
    """Nothing was sent, because there is no client, or there are no credentials; `failure` explains why."""

    def __init__(self, failure: AttemptFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Ec2Client:
    """Makes EC2 calls. Each is exactly one HTTP attempt, or none without credentials. `region`: returns the node's region."""

    operations: ClassVar[Mapping[str, str]] = OPERATIONS
    """API name -> method of a botocore client: what `call` accepts, and what the trimmed model must have."""

    def __init__(self, config: CloudConfig, *, region: Callable[[], str], model_dir: Path = DATA_DIR) -> None:
        self._config = config
        self.region = region
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._session: Any = None
        self._client: Any = None
        self._credentials: Any = None
        self._resolver_of: Callable[[], Any] = lambda: None

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one attempt.

        Args:
            api: a key of `operations`.
            subject: the object, for messages.
        Raises: AttemptError, by the table in `errors.py`.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        from ipamd.cloud import errors  # here, because the process that calls EC2 does without our tree of errors

        try:
            return self.call_raw(api, params)
        except (BotoCoreError, ClientError, NotCalledError) as exc:
            raise errors.failed(api, subject, self.failure(exc)) from exc

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """Do nothing. A subclass releases resources that were idle for a long time, or has them ready if they are needed soon. Called
        from time to time.
        """

    def failure(self, exc: Exception) -> AttemptFailure:
        """Describe an exception that `call_raw` raised."""
        from botocore.exceptions import ClientError

        if isinstance(exc, NotCalledError):
            return exc.failure
        if not isinstance(exc, ClientError):
            return failure_of(exc, self._client.meta.endpoint_url)
        error, meta = exc.response.get("Error", {}), exc.response.get("ResponseMetadata", {})
        code, message = str(error.get("Code", "")), str(error.get("Message", ""))
        if code in STALE_KEYS:
            from ipamd.cloud.credential_naming import skew_note

            message += skew_note(exc)
        return AttemptFailure([], message, code=code, status=meta.get("HTTPStatusCode", 0))

    def call_raw(self, api: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one attempt; also for a probe, which needs EC2's own codes (`ipamd/probe/`).

        Raises: NotCalledError without credentials, otherwise botocore's exceptions; HTTPClientError for an answer that is not EC2's.
        """
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        client = self.built()
        try:
            answer: Mapping[str, Any] = getattr(client, self.operations[api])(**params)
        except ClientError as exc:
            if exc.response.get("Error", {}).get("Code") in STALE_KEYS:
                self._forget_keys()
            raise
        except BotoCoreError:
            raise
        except Exception as exc:
            # botocore's parsers raise any of Python's errors for HTML, an empty body, or a word instead of a number.
            raise HTTPClientError(error=UnreadableAnswerError(f"{type(exc).__name__}: {exc}")) from exc
        if not answer.get("ResponseMetadata", {}).get("RequestId"):
            # Other well-formed XML would look like an empty list, or like the success of a change that was never made.
            raise HTTPClientError(error=UnreadableAnswerError("it has no request ID, so it is not EC2's"))
        return answer

    def built(self) -> Any:
        """Return the client, with credentials for the next call.

        Raises: NotCalledError if the client cannot be made, or if there are no credentials; the error then names the party that failed
            to provide them.
        """
        from botocore.exceptions import BotoCoreError

        with self._lock:
            if self._client is None:
                try:
                    self._build()
                except BotoCoreError as exc:
                    raise NotCalledError(failure_of(exc, "")) from exc
            client, credentials, resolver_of = self._client, self._credentials, self._resolver_of
        try:
            credentials.renew()
        except Exception as exc:
            raise NotCalledError(self._lack(exc, resolver_of())) from exc
        return client

    def _lack(self, exc: Exception, resolver: Any) -> AttemptFailure:
        """Describe why there are no credentials."""
        from ipamd.cloud.credential_naming import lack_of

        exchange = None if resolver is None else last_exchange(resolver)
        lack = lack_of(exc, environ=os.environ, exchange=exchange, metadata_endpoint=self._config.imds_endpoint)
        return AttemptFailure([type(exc).__name__], lack.text, lack=asdict(lack))

    def _forget_keys(self) -> None:
        """Drop keys that EC2 did not accept, so that the next call searches for other keys."""
        with self._lock:
            if self._credentials is not None:
                self._credentials.forget()

    def prepare(self) -> None:
        """Make the parts of a client that do not depend on the region, so that the first call does not wait for them. Without any
        request. Raises: BotoCoreError.
        """
        with self._lock:
            self._session = self._new_session()
            # with the arguments of `create_client`, because the loader remembers its answers by them
            self._session.get_component("data_loader").load_service_model("ec2", "service-2", api_version=None)

    def _new_session(self) -> Any:
        """Make a session that has only the operations that we call. Raises: BotoCoreError."""
        from botocore.config import Config
        from botocore.session import Session

        from ipamd.cloud.credentials import STS_ANSWER_S, STS_CONNECT_S

        bound_botocore()
        ask_metadata_directly()
        session = Session()
        unusable = why_unusable(self._model_dir, operations=frozenset(self.operations))
        if unusable:
            _log.warning("using botocore's whole EC2 model, which takes about 23 MiB more reason=%s", unusable)
        else:
            session.register_component("data_loader", trimmed_loader(self._model_dir))
        session.set_config_variable("ec2_metadata_service_endpoint", self._config.imds_endpoint)
        session.set_config_variable("ec2_metadata_v1_disabled", True)
        session.set_config_variable("metadata_service_timeout", CREDENTIAL_TIMEOUT_S)
        session.set_config_variable("metadata_service_num_attempts", CREDENTIAL_ATTEMPTS)
        # For STS, which botocore calls for a service account's role.
        session.set_default_client_config(
            Config(
                connect_timeout=STS_CONNECT_S, read_timeout=STS_ANSWER_S, retries={"mode": "standard", "total_max_attempts": 2}
            )
        )
        return session

    def _build(self) -> None:
        """Make a client, without any request. Raises: BotoCoreError."""
        from botocore.config import Config

        from ipamd.cloud.credentials import hold_credentials

        session = self._session or self._new_session()
        region = self.region()
        credentials, resolver_of = hold_credentials(session, region=region)
        client = session.create_client(
            "ec2",
            region_name=region,
            endpoint_url=self._config.ec2_endpoint or None,  # None: botocore uses AWS_ENDPOINT_URL_EC2, or the region's endpoint
            config=Config(
                connect_timeout=min(self._config.http_timeout_s, CONNECT_TIMEOUT_S),
                read_timeout=self._config.http_timeout_s,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=POOL_CONNECTIONS,
                user_agent_extra=f"vpc-ipamd/{__version__}",
            ),
        )
        self._client, self._credentials, self._resolver_of = client, credentials, resolver_of
