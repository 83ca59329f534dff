"""Use cases. They see ports (`ipamd.ports`), never adapters; `bootstrap` brings both together."""
