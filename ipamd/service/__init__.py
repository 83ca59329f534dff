"""Use cases. They see ports (`ipamd.ports`), never adapters; `adapters.py` and `bootstrap.py` bring both together."""
