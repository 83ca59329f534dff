"""The pure core: identities, states, decisions and errors. No I/O, no clock, standard library only.

Decisions are here and can be tested with values; effects are in the adapters. import-linter checks the boundary.
"""
