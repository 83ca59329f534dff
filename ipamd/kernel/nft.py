"""nftables through libnftables: text in, one transaction, no fork (docs/adr/0005).

The library is loaded on first use, so that a node without it still starts, wires sandboxes and reports what is missing.
"""

from __future__ import annotations

import ctypes
import json
import threading
from typing import Any

from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError

LIBRARY = "libnftables.so.1"
PACKAGE = "libnftables1"
"""Debian's and Ubuntu's package of the library; it is in the image."""

OUTPUT_JSON = 1 << 4
"""NFT_CTX_OUTPUT_JSON. Source: nftables/libnftables.h."""


class Nftables:
    """Runs nft commands in the host's namespace.

    Concurrency: safe from any thread, by a lock, because libnftables' contexts are not. No other lock is taken inside it.
    """

    def __init__(self, host: HostNetns, *, library: str = LIBRARY) -> None:
        """Load nothing yet; `library` is the name for dlopen."""
        self._host = host
        self._library_name = library
        self._library: ctypes.CDLL | None = None
        self._lock = threading.Lock()

    def query(self, command: str) -> list[dict[str, Any]]:
        """List something as JSON objects, {kind: fields} each (libnftables-json(5)). Raises: WiringError."""
        try:
            answer = json.loads(self.run(f"{command}\n", is_json=True))["nftables"]
        except (ValueError, KeyError, TypeError) as exc:
            raise WiringError(f"nftables' answer to `{command}` was not understood", details=str(exc)[:200]) from exc
        return [item for item in answer if isinstance(item, dict)] if isinstance(answer, list) else []

    def run(self, commands: str, *, is_json: bool = False) -> str:
        """Run commands as one transaction: all of them or none.

        Returns: what they print (of `list`), as JSON if asked. Raises: WiringError with libnftables' own text.
        """
        with self._lock, self._host.entered():
            library = self._load()
            # A context opens its socket when it is created, so create it inside the namespace; it is cheap, do not keep it.
            context = ctypes.c_void_p(library.nft_ctx_new(0))
            if not context:
                raise WiringError("nftables context could not be made", details="libnftables: nft_ctx_new returned NULL")
            try:
                library.nft_ctx_buffer_output(context)
                library.nft_ctx_buffer_error(context)
                if is_json:
                    library.nft_ctx_output_set_flags(context, OUTPUT_JSON)
                code = library.nft_run_cmd_from_buffer(context, commands.encode())
                output = library.nft_ctx_get_output_buffer(context) or b""
                errors = library.nft_ctx_get_error_buffer(context) or b""
            finally:
                library.nft_ctx_free(context)
        if code:
            raise WiringError("nftables refused the transaction; nothing was changed", details=_one_line(errors))
        return bytes(output).decode("utf-8", "replace")

    def list_table(self, family: str, table: str) -> str:
        """Print a table without counters and handles; an empty string if there is none.

        Raises: WiringError if nftables cannot be asked at all.
        """
        try:
            return self.run(f"list table {family} {table}\n")
        except WiringError:  # most likely there is none, which no code tells apart
            if f"table {family} {table}\n" in self.run(f"list tables {family}\n"):
                raise
            return ""

    def _load(self) -> ctypes.CDLL:
        if self._library is None:
            try:
                library = ctypes.CDLL(self._library_name)
            except OSError as exc:
                raise WiringError(
                    f"{self._library_name} is missing: no SNAT and no connection marks on this node",
                    details=f"install the package {PACKAGE} into the daemon's image ({exc})",
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


def _one_line(errors: bytes) -> str:
    """Keep the error lines, not the echo of our commands: it always shows the first line of the buffer, not the faulty one."""
    said = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if "Error:" in line]
    return "; ".join(said) or "no text from libnftables"
