"""Tests of the benchmarks' arithmetic: a wrong sum would make every budget look kept."""
