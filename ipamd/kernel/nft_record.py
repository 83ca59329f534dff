"""Record our nftables tables in the run directory, so that the next process of the daemon need not make unchanged tables again.

To replace tables costs a start 20 to 30 ms, because the kernel waits until no packet uses the old ones. The record has the commands
that made the tables, their texts, and a digest of their objects in the kernel (`nft_changes`). These objects contain handles, so the
digest differs if anybody changed the tables since, or made them again. The next process uses the record only if its own commands are
the same, so a table of other settings is always replaced. So are the tables of another release: its libnftables may print the
same table differently. The record is in the run directory, because that directory is emptied at a reboot, and the tables are lost
then too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ipamd import __version__
from ipamd.kernel.nft_table import NftTable
from ipamd.settings.settings_file import created

CONFINEMENT_RECORD, TRANSLATION_RECORD = "nft-confinement.json", "nft-translation.json"
"""Names of the records in the run directory: of the tables that confine sandboxes, and of the tables for SNAT and marks."""

log = logging.getLogger(__name__)


class RecordedTables(NamedTuple):
    """Tables as they were when they were last verified.

    `commands`: the commands that made each table.
    `texts`: each table as nft listed it right after it was made.
    `digest`: of the tables' objects in the kernel (`digest_of`).
    """

    commands: Mapping[NftTable, str]
    texts: Mapping[NftTable, str]
    digest: str


def digest_of(content: bytes) -> str:
    """Return the digest of objects in the kernel."""
    return sha256(content).hexdigest()


class TableRecord:
    """One file with a record of tables. Concurrency: under the lock of the tables' owner."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        """`boot_id`: ID of the present boot; "" if it is unknown. A record of another or of an unknown boot is ignored."""
        self._path = path
        self._boot_id = boot_id

    def read(self) -> RecordedTables | None:
        """Return the record; None if there is none of this boot and release, or if it cannot be read."""
        try:
            fields = json.loads(self._path.read_bytes())
            if not self._boot_id or (fields["boot_id"], fields["release"]) != (self._boot_id, __version__):
                return None
            tables = [(NftTable(table["family"], table["name"]), table) for table in fields["tables"]]
            commands = {table: str(entry["commands"]) for table, entry in tables}
            texts = {table: str(entry["text"]) for table, entry in tables}
            return RecordedTables(commands, texts, str(fields["digest"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write(self, recorded: RecordedTables) -> None:
        """Replace the record. If that fails, the next process makes the tables again, so the failure is only logged."""
        tables = [
            {**table._asdict(), "commands": commands, "text": recorded.texts[table]}
            for table, commands in recorded.commands.items()
        ]
        fields = {"boot_id": self._boot_id, "release": __version__, "digest": recorded.digest, "tables": tables}
        temporary = self._path.with_name(f".{self._path.name}")
        try:
            with created(temporary, 0o600) as stream:
                stream.write(json.dumps(fields).encode())
            temporary.replace(self._path)
        except OSError as error:
            log.info("nftables tables were not recorded for the next start path=%s error=%s", self._path, error)
