"""Tests that need heavy tools (buildah, promtool, kustomize, helm): `make test-all` runs them, `make test` skips them by name."""
