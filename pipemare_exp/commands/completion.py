"""`pipemare completion`: the lines with which a shell completes `pipemare` at the Tab key."""

from __future__ import annotations

import argparse

from pipemare_exp.errors import UserError

HELP = "Print what a shell needs to complete commands, settings, values and names of runs at the Tab key."

EXAMPLES = """examples:
  eval "$(pipemare completion bash)"     now; for good, put this line into ~/.bashrc
  eval "$(pipemare completion zsh)"      into ~/.zshrc, after compinit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pipemare completion`."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script. Raises UserError without argcomplete."""
    try:
        from argcomplete import shellcode
    except ModuleNotFoundError as error:
        raise UserError("completion needs the package argcomplete; pip install argcomplete") from error
    print(shellcode(["pipemare"], shell=args.shell))
    return 0
