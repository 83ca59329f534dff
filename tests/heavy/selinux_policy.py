"""Compile an SELinux policy and ask it, without a kernel that has SELinux: secilc makes the policy, libsepol decides.

libsepol decides as the kernel does: by rules, and by the constraints of the levels that a search of the rules alone would not see.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPILE_TIMEOUT_S = 300
POLICY_VERSION = "31"
"""Which Bottlerocket compiles for."""


class _Decision(ctypes.Structure):
    """`struct sepol_av_decision` of sepol/policydb/flask_types.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("allowed", "decided", "auditallow", "auditdeny", "seqno")]


class Policy:
    """One compiled policy. libsepol holds one for a process: making another replaces it."""

    def __init__(self, sources: Sequence[Path], target: Path) -> None:
        """Compile CIL files, and load the result. Raises: subprocess.CalledProcessError if they are not a policy."""
        argv = ["secilc", "--mls", "true", "--policyvers", POLICY_VERSION, "--output", str(target), "--filecontext", "/dev/null"]
        subprocess.run([*argv, *map(str, sources)], check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        self._sepol = ctypes.CDLL("libsepol.so.2")
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        libc.fclose.argtypes = self._sepol.sepol_set_policydb_from_file.argtypes = [ctypes.c_void_p]
        file = libc.fopen(str(target).encode(), b"r")
        assert file
        assert self._sepol.sepol_set_policydb_from_file(file) == 0
        libc.fclose(file)

    def allows(self, source: str, target: str, object_class: str, permission: str) -> bool:
        """Whether a process of context `source` has a permission on an object of context `target`.

        Raises: AssertionError if the policy does not know a context, the class or the permission.
        """
        number, bit = ctypes.c_uint16(), ctypes.c_uint32()
        known = self._sepol.sepol_string_to_security_class(object_class.encode(), ctypes.byref(number)) == 0
        assert known, object_class
        known = self._sepol.sepol_string_to_av_perm(number, permission.encode(), ctypes.byref(bit)) == 0
        assert known, f"{object_class} {permission}"
        decision, reason = _Decision(), ctypes.c_uint()
        subject, object_ = self._sid(source), self._sid(target)
        code = self._sepol.sepol_compute_av_reason(subject, object_, number, bit, ctypes.byref(decision), ctypes.byref(reason))
        assert code == 0
        return bool(decision.allowed & bit.value)

    def _sid(self, context: str) -> ctypes.c_uint32:
        sid = ctypes.c_uint32()
        known = self._sepol.sepol_context_to_sid(context.encode(), ctypes.c_size_t(len(context) + 1), ctypes.byref(sid)) == 0
        assert known, context
        return sid
