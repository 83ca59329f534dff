"""Unit tests of `ipamd/settings/` and `ipamd/reload.py`."""
