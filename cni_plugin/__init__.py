"""The thin CNI binary `vpc-cni`: sends one CNI invocation to the daemon and prints the answer (docs/adr/0003).

The same sources run on two interpreters: on CPython (>= 3.9) for development, tests and nodes that have a Python; and on MicroPython,
linked statically, for `/opt/cni/bin`. So the code uses only features that both have: no `typing`, `enum`, `dataclasses` or `match`, no
`X | Y` outside quotes, no `%` on bytes, no `del` on slices, no use of the order of a dict. Every system call goes through one
interface. `_cni.py` defines it and implements it for CPython, `micropython/modcni.c` implements it for MicroPython. The plugin imports
nothing of `ipamd`. `build.py` makes the interpreted file, and `make plugin` makes the static file, which is installed (docs/adr/0020).
"""
