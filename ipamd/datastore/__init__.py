"""Which sandbox has which address, on disk and in memory: the adapter behind `ports.Datastore` and `ports.Spool`.

The only package that imports sqlalchemy. `ipamd/process/adapters.py` calls `open.open_datastore` and `spool.SpoolDirectory`. This
module imports nothing, so that a program that needs only the spool does not import SQLAlchemy. Why SQLite, and what was rejected:
docs/adr/0002.

Lock order: sandbox lock (service) > `Disk.lock`, held for one transaction > the lock in `MemoryState`, whose holder waits for nothing.
"""
