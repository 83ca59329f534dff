"""The wire edge: envelopes in, typed requests to services, errors and results out. ADD and DEL are words of this room."""
