"""The seams between the rooms and the outside world: what a room may ask of disk, kernel, cloud and runtime.

Services take these Protocols as arguments; only `ipamd/process/adapters.py` knows who implements them. The fakes in `tests/fakes`
implement the same Protocols and pass the same contract tests as the adapters. All implementations are safe to call from any thread.
There is no code in here, only promises.
"""
