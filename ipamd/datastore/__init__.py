"""Who owns which address, on disk and in memory: the adapter behind `ports.Datastore` and `ports.Spool`.

The only importer of sqlalchemy. `open.open_datastore` and `spool.FileSpool` are what `bootstrap` calls; nothing is imported
here, so that the spool does not cost SQLAlchemy's import.

Lock order: sandbox lock (service) > `Disk.lock`, held for one transaction > `Index` lock, held for a few dictionary steps.
"""
