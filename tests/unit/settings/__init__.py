"""Unit tests of `ipamd/settings/` and `ipamd/process/reload.py`."""
