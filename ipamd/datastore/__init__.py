"""Which sandbox has which address, on disk and in memory: the adapter behind `ports.Datastore` and `ports.Spool`.

The only package that imports sqlalchemy. `adapters.py` calls `open.open_datastore` and `spool.Spool`; this module imports
nothing, so that the spool alone does not cost SQLAlchemy's import. Why SQLite, and what was rejected: docs/adr/0002.

Lock order: sandbox lock (service) > `Disk.lock`, held for one transaction > the lock in `MemoryState`, held for a few dictionary
steps.
"""
