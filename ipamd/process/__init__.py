"""The daemon as a process: composition, start, reload of settings, and end."""
