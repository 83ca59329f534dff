"""Shell completion, generated from the parser: verbs, options and choices. Nothing is asked of the daemon while somebody types.

Ours and not argcomplete or shtab: the grammar is flat (options, a verb, its options), argcomplete starts Python at every Tab, and
the image stays without another package.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spellings, its sentence, its choices, and whether it takes a value."""

    names: tuple[str, ...]
    text: str
    choices: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One verb; `words` are the choices of its positional arguments."""

    name: str
    text: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def commands_of(parser: argparse.ArgumentParser) -> tuple[tuple[Option, ...], tuple[Command, ...]]:
    """Read the options before the verb, and the verbs."""
    (verbs,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    texts = {action.dest: action.help or "" for action in verbs._choices_actions}
    commands = tuple(
        Command(name, texts.get(name, ""), tuple(_options(command)), tuple(_words(command)))
        for name, command in verbs.choices.items()
    )
    return tuple(_options(parser)), commands


def bash(parser: argparse.ArgumentParser) -> str:
    """Write the script for bash; `eval "$(ipamctl completion bash)"`."""
    top, commands = commands_of(parser)
    verbs = " ".join(command.name for command in commands)
    cases = "\n".join(
        f"        {command.name}) words={shlex.quote(' '.join([*_names(command.options), *command.words]))} ;;"
        for command in commands
    )
    choices = "\n".join(
        f"        {'|'.join(option.names)}) words={shlex.quote(' '.join(option.choices))} ;;"
        for option in _with_choices(top, commands)
    )
    valued = "|".join(sorted({name for option in _all(top, commands) if option.takes_value for name in option.names}))
    return f"""\
_ipamctl() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        {valued}) ((i++)) ;;
        -*) ;;
        *) verb=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    case $before in
{choices}
    {valued}) return ;;
    *)
        case $verb in
        "") words={shlex.quote(" ".join([verbs, *_names(top)]))} ;;
{cases}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _ipamctl ipamctl
"""


def zsh(parser: argparse.ArgumentParser) -> str:
    """Write the script for zsh: a file `_ipamctl` in a directory of fpath."""
    top, commands = commands_of(parser)
    verbs = "\n".join(f"        {shlex.quote(f'{command.name}:{_plain(command.text)}')}" for command in commands)
    cases = "\n".join(
        f"    {command.name}) _arguments {' '.join([*_zsh_options(command.options), *_zsh_words(command.words)])} ;;"
        for command in commands
    )
    return f"""\
#compdef ipamctl
_ipamctl() {{
    local context state line
    typeset -A opt_args
    local -a verbs=(
{verbs}
    )
    _arguments -C {" ".join(_zsh_options(top))} '1:command:->verb' '*::argument:->rest'
    case $state in
    verb) _describe command verbs; return ;;
    esac
    case $line[1] in
{cases}
    esac
}}
if [[ $funcstack[1] == _ipamctl ]]; then _ipamctl "$@"; else compdef _ipamctl ipamctl; fi
"""


def fish(parser: argparse.ArgumentParser) -> str:
    """Write the script for fish: `ipamctl completion fish | source`."""
    top, commands = commands_of(parser)
    names = " ".join(command.name for command in commands)
    lines = ["complete -c ipamctl -f"]
    for command in commands:
        condition = f"not __fish_seen_subcommand_from {names}"
        lines.append(f"complete -c ipamctl -n {shlex.quote(condition)} -a {command.name} -d {shlex.quote(_plain(command.text))}")
    lines += [_fish_option("", option) for option in top]
    for command in commands:
        condition = f"-n {shlex.quote(f'__fish_seen_subcommand_from {command.name}')} "
        lines += [_fish_option(condition, option) for option in command.options]
        lines += [f"complete -c ipamctl {condition}-a {shlex.quote(' '.join(command.words))}"] if command.words else []
    return "\n".join(lines) + "\n"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            choices = tuple(map(str, action.choices or ()))
            yield Option(tuple(action.option_strings), action.help or "", choices, action.nargs != 0)


def _words(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            yield from map(str, action.choices or ())


def _names(options: tuple[Option, ...]) -> list[str]:
    return [name for option in options for name in option.names]


def _all(top: tuple[Option, ...], commands: tuple[Command, ...]) -> Iterator[Option]:
    yield from top
    for command in commands:
        yield from command.options


def _with_choices(top: tuple[Option, ...], commands: tuple[Command, ...]) -> list[Option]:
    return list({option.names: option for option in _all(top, commands) if option.choices}.values())


def _plain(text: str) -> str:
    """A sentence without what zsh and fish read as more than text, and with argparse's escapes resolved."""
    return text.replace("%%", "%").replace("`", "'").replace(":", ",").replace("[", "(").replace("]", ")")


def _zsh_options(options: tuple[Option, ...]) -> Iterator[str]:
    for option in options:
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files" if option.takes_value else ""
        yield from (shlex.quote(f"{name}[{_plain(option.text)}]{value}") for name in option.names)


def _zsh_words(words: tuple[str, ...]) -> list[str]:
    return [shlex.quote(f"1:word:({' '.join(words)})")] if words else []


def _fish_option(condition: str, option: Option) -> str:
    names = [f"-s {name[1:]}" if len(name) == 2 else f"-l {name[2:]}" for name in option.names]
    choices = f" -a {shlex.quote(' '.join(option.choices))}" if option.choices else ""
    value = " -x" if option.choices else " -r" if option.takes_value else ""
    return f"complete -c ipamctl {condition}{' '.join(names)}{value}{choices} -d {shlex.quote(_plain(option.text))}"
