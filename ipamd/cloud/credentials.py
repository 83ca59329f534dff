"""Credentials for the calls to EC2, fetched in a separate step before each call, with its own deadlines.

By itself, botocore would fetch them while it signs a call. Then a failure of STS would look like one of EC2, and a call that was never
sent would look like one that may have taken effect. Here they are fetched first, and the call is signed with them. If a renewal fails,
valid keys are used until a minute before they expire; botocore alone gives up ten minutes before. Imported only where botocore is: in
the process of `child.py`, in a probe, and in `vpc-ipamd-inventory`.
Concurrency: any thread. The lock is held while credentials are fetched, because all callers need the same ones; a caller that waited
for a failed attempt gets its error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials, create_credential_resolver
from botocore.exceptions import NoCredentialsError
from botocore.session import Session

STS_CONNECT_S, STS_ANSWER_S = 3, 5
"""Timeouts of STS in seconds. botocore makes two attempts, which end before `child.START_S`. Ours: STS answers in a tenth of a second,
so a longer wait would rarely help, and it would delay an ADD that waits for the EC2 call."""

HOLDS_S = 60
"""After a failed renewal, keys that expire within this many seconds are not used. Ours: a call takes half a minute at most, and the
other half is for clocks that differ."""

RENEW_PAUSE_S = 60.0
"""Pause between two attempts to renew keys that are still valid. Ours: without a pause, each EC2 call would begin with an attempt that
may last until a timeout, while an ADD waits. The keys stay valid for some minutes, so an attempt each minute is enough."""

_log = logging.getLogger(__name__)


class HeldCredentials(Credentials):
    """The keys of the last `renew`, which sign EC2 calls. botocore calls only `get_frozen_credentials`."""

    def __init__(self, load: Callable[[], Credentials | None]) -> None:
        """`load`: searches for credentials; may raise any error."""
        super().__init__("", "", method="held")
        self._load = load
        self._lock = threading.Lock()
        self._source: Credentials | None = None
        self._keys: ReadOnlyCredentials | None = None
        self._renew_at_s = 0.0
        self._failure: tuple[float, Exception] | None = None

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the keys with which botocore signs. Raises: NoCredentialsError before a successful `renew`, or after `forget`."""
        if self._keys is None:
            raise NoCredentialsError
        return self._keys

    def renew(self) -> None:
        """Take the keys from their source, which renews keys that expire soon.

        After a failed renewal, keys that are still valid are used, and the source is asked again after RENEW_PAUSE_S.
        Raises: the error of the credential source, or NoCredentialsError, if there are no valid keys.
        """
        asked_s = time.monotonic()
        with self._lock:
            if self._failure is not None and self._failure[0] >= asked_s:
                raise self._failure[1]
            if time.monotonic() < self._renew_at_s and self._hold():
                return
            try:
                self._fetch()
            except Exception as error:
                if self._hold():
                    self._pause()
                    return
                self._failure = time.monotonic(), error
                raise

    def forget(self) -> None:
        """Drop keys that EC2 did not accept, so that the next call searches for other keys."""
        with self._lock:
            self._source = None
            self._keys = None
            self._renew_at_s = 0.0

    def _fetch(self) -> None:
        if self._source is None:
            self._source = self._load()
        if self._source is None:
            raise NoCredentialsError
        self._keys = self._source.get_frozen_credentials()
        if isinstance(self._source, RefreshableCredentials) and self._source.refresh_needed():
            self._pause()  # botocore failed to renew the credentials, and raises nothing while the old ones are valid

    def _hold(self) -> bool:
        """Whether the keys come from a source that renews them, and are valid for at least HOLDS_S more.

        Such keys may be used without asking their source again. Keys without an expiry time are taken from their source before each
        call, because they may have been replaced there.
        """
        source = self._source
        return self._keys is not None and isinstance(source, RefreshableCredentials) and not source.refresh_needed(HOLDS_S)

    def _pause(self) -> None:
        _log.warning("credential renewal failed, using the valid ones retry_s=%g", RENEW_PAUSE_S)
        self._renew_at_s = time.monotonic() + RENEW_PAUSE_S


class _CredentialProvider:
    """The provider that botocore's session asks for credentials."""

    def __init__(self, credentials: HeldCredentials) -> None:
        self._credentials = credentials

    def load_credentials(self) -> HeldCredentials:
        """Return the held credentials."""
        return self._credentials


def hold_credentials(session: Session, *, region: str) -> tuple[HeldCredentials, Callable[[], Any]]:
    """Register credentials in a botocore session. Only `renew` fetches them.

    Returns: the credentials, and a function that returns the resolver of the last search, or None before the first search.
    """
    resolvers: list[Any] = []

    def load() -> Credentials | None:
        resolver = create_credential_resolver(session, region_name=region)
        resolvers[:] = [resolver]
        found_credentials: Credentials | None = resolver.load_credentials()
        return found_credentials

    credentials = HeldCredentials(load)
    session.register_component("credential_provider", _CredentialProvider(credentials))
    return credentials, lambda: resolvers[0] if resolvers else None
