"""Fakes of the ports: plain Python, one lock each, with named ways to fail. The same contract tests hold for the real
adapters."""
