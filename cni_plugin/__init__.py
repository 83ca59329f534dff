"""The thin CNI binary `vpc-cni`: carries one CNI invocation to the daemon and prints what it answers.

One source for two runtimes: CPython (>= 3.9) for development, tests and nodes that have a Python, MicroPython linked statically
for `/opt/cni/bin`. Hence the dialect: no `typing`, `enum`, `dataclasses`, `match`, no `X | Y` outside quotes, no `%` on bytes, no
`del` on slices; every system call goes through one seam (`seam.py` names it, `_cni.py` is CPython's). Nothing of `ipamd` is
imported. `build.py` makes the one file that is installed.
"""
