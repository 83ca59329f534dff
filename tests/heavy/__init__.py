"""Tests that need heavy tools (buildah, promtool, kustomize, helm, chromium): `make test-all` runs them, `make test` names and skips them."""
