"""Compare what is recorded with what is there, and repair it: at start, on events, and on a clock."""
