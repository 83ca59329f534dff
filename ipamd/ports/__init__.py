"""The interfaces between the daemon's packages (*rooms*) and the outside world: disk, kernel, cloud, container runtime and other
programs.

Services take these Protocols as arguments. `ipamd/process/adapters.py` chooses the classes that implement them. The fakes in
`tests/fakes` implement the same Protocols and pass the same contract tests as the adapters. All implementations are safe to call
from any thread, unless a docstring says otherwise. Besides Protocols there are only trivial implementations, such as `NoHistory`.
"""
