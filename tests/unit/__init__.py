"""Tests of one piece at a time, without network, kernel or runtime."""
