"""Fuzzing: random and mutated input for everything that others can send us; `python -m fuzz`, or `make fuzz`.

Each target in `targets/` makes cases from a seed and a number, runs one, and judges it from outside: no traceback, no invalid
document, nothing late, memory bounded, decoders equal to a reference, the daemon still serving. The same seed and number make the
same case on any machine, as long as code and corpus are the same; a finding is also written down as it was.
Rejected: Hypothesis (its database and its time per example), and coverage-guided fuzzers (a compiler, and no MicroPython).
"""
