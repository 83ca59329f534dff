"""The pure core: identities, states, decisions and errors. No I/O, no clock, standard library only.

Everything that decides lives here and can be tested with values; everything that does lives in an adapter. import-linter
holds the boundary.
"""
