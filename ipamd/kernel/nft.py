"""Run nft commands through libnftables, without a fork (docs/adr/0005). The commands of one call are one transaction.

The library is loaded on first use, so that a daemon without it still starts, wires sandboxes and reports the missing library.
"""

from __future__ import annotations

import ctypes
import json
import threading
from typing import Any

from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft_table import COUNTED, NftTable
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure

LIBRARY = "libnftables.so.1"

PACKAGE = "libnftables1"
"""Debian's and Ubuntu's package of the library; it is in the image."""

OUTPUT_JSON, OUTPUT_TERSE = 1 << 4, 1 << 11
"""NFT_CTX_OUTPUT_JSON, NFT_CTX_OUTPUT_TERSE. Source: nftables/libnftables.h."""


class Nftables:
    """Runs nft commands in the host's namespace.

    Concurrency: safe from any thread, also while other instances are used, because one lock of the process lets only one thread run
    the library. No other lock is taken while it is held.
    """

    _lock = threading.Lock()
    """One lock for the process and not for each instance, because all contexts of the library share its global variables."""

    def __init__(self, host: HostNetns, *, library: str = LIBRARY) -> None:
        """Load nothing yet. `library`: the library's name for dlopen."""
        self._host = host
        self._library_name = library
        self._library: ctypes.CDLL | None = None

    def query(self, command: str) -> list[dict[str, Any]]:
        """Run a list command, and return its JSON objects, each {kind: fields} (libnftables-json(5)). Raises: WiringError."""
        try:
            answer = json.loads(self.run(f"{command}\n", form=OUTPUT_JSON))["nftables"]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise failure(WiringError, FailureCode.NFT_NOT_UNDERSTOOD, command=command, cause=str(exc)[:200]) from exc
        return [member for member in answer if isinstance(member, dict)] if isinstance(answer, list) else []

    def run(self, commands: str, *, form: int = 0) -> str:
        """Run commands as one transaction: all of them or none.

        Args:
            form: flags for the form of the output, for example OUTPUT_JSON; 0 for plain text.
        Returns: the output of `list` commands. Raises: WiringError with the error text of libnftables.
        """
        with self._lock, self._host.entered():
            library = self._load()
            # A context opens its socket when it is created, so it is created inside the namespace. A context costs so little that it
            # is not kept.
            context = ctypes.c_void_p(library.nft_ctx_new(0))
            if not context:
                raise failure(WiringError, FailureCode.NFT_WITHOUT_CONTEXT)
            try:
                library.nft_ctx_buffer_output(context)
                library.nft_ctx_buffer_error(context)
                library.nft_ctx_output_set_flags(context, form)
                code = library.nft_run_cmd_from_buffer(context, commands.encode())
                output = library.nft_ctx_get_output_buffer(context) or b""
                errors = library.nft_ctx_get_error_buffer(context) or b""
            finally:
                library.nft_ctx_free(context)
        if code:
            raise failure(WiringError, FailureCode.NFT_REFUSED, cause=_joined_errors(errors))
        return bytes(output).decode("utf-8", "replace")

    def list_table(self, table: NftTable) -> str:
        """Return the text of a table without counter values, handles and the elements of its sets; "" if there is no such table.

        Elements are left out, because nft would read all links of the node each time to print the names of links in the sets.
        Raises: WiringError if the table exists and cannot be listed, or if nftables does not work at all.
        """
        try:
            return COUNTED.sub("", self.run(f"list table {table}\n", form=OUTPUT_TERSE))
        except WiringError:  # most likely the table does not exist, which has no error code of its own
            if f"table {table}\n" in self.run(f"list tables {table.family}\n"):
                raise
            return ""

    def _load(self) -> ctypes.CDLL:
        if self._library is None:
            try:
                library = ctypes.CDLL(self._library_name)
            except OSError as exc:
                raise failure(
                    WiringError, FailureCode.NFT_MISSING, library=self._library_name, package=PACKAGE, cause=exc
                ) from exc
            library.nft_ctx_new.restype = ctypes.c_void_p
            library.nft_ctx_new.argtypes = [ctypes.c_uint32]
            library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
            library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
            for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
                getter = getattr(library, name)
                getter.restype = ctypes.c_char_p
                getter.argtypes = [ctypes.c_void_p]
            for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
                getattr(library, name).argtypes = [ctypes.c_void_p]
            self._library = library
        return self._library


def _joined_errors(errors: bytes) -> str:
    """Return the error lines without the echo of our commands: the echo shows the first line of the buffer and not the faulty line."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if "Error:" in line]
    return "; ".join(lines) or "no text from libnftables"
