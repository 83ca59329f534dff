"""The thin CNI binary `vpc-cni`: sends one CNI invocation to the daemon and prints the answer (docs/adr/0003).

One source for two runtimes: CPython (>= 3.9) for development, tests and nodes that have a Python; MicroPython, linked statically, for
`/opt/cni/bin`. Therefore the code avoids what either of them lacks: no `typing`, `enum`, `dataclasses` or `match`, no `X | Y` outside
quotes, no `%` on bytes, no `del` on slices, no use of the order of a dict. Every system call goes through one interface (`_cni.py`
defines it, and implements it for CPython; `micropython/modcni.c` does for MicroPython). Nothing of `ipamd` is imported. `build.py`
makes the interpreted file, `make plugin` the static one, which is installed (docs/adr/0020).
"""
