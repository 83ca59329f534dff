"""Errors that end a command, each with its exit status. The numbers mean the same as those of `ipamctl`."""

from __future__ import annotations

EXIT_ATTENTION = 1
"""The exit status of a command that has an answer which needs a person's attention."""

EXIT_INTERRUPTED = 130
"""The status that shells report for a program that SIGINT ended."""


class PluginError(Exception):
    """A command cannot give an answer. The message is for the operator, `exit_status` for the shell."""

    exit_status: int


class CommandLineError(PluginError):
    """The command line is wrong, or this machine lacks something."""

    exit_status = 2


class NoAnswerError(PluginError):
    """Neither kubectl nor the API server answers, or a node does not run the daemon."""

    exit_status = 3


class RightMissingError(PluginError):
    """The API server refuses: the operator lacks a right."""

    exit_status = 4
