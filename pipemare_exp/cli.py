"""The `pipemare` command: finds a command's module, runs it, and turns errors into a line and an exit code.

Exit codes: 0 done, 1 a training failed, 2 a mistake that the message explains, 128 + signal interrupted (Ctrl-C: 130).
Commands are imported when they are asked for, so that `pipemare --help` costs no import of torch.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from pipemare_exp import __version__
from pipemare_exp.errors import UserError, printable, suggest
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.paths import PACKAGE

# In the order of --help. A command whose module this checkout does not have is not listed.
COMMANDS = {
    "train": "train one run, or go on with it",
    "eval": "score a run's last checkpoint again",
    "plan": "delays, utilization and memory of every method, without training",
    "runs": "list the runs",
    "compare": "compare methods over seeds",
    "sweep": "run a study",
    "figures": "make the figures and tables from logged runs",
    "report": "one page with all results",
    "demo": "the ablation on bundled data",
    "data": "list or prepare data sets",
    "translate": "translate with a trained run",
    "generate": "write text with a trained language model",
    "track": "mirror runs to MLflow",
    "timeline": "what the ranks of a real pipeline did when",
    "bench": "measure what emulation costs, and what real pipelines reach",
    "completion": "complete commands, settings and names at the Tab key",
    "gpu": "check, time and train on a GPU machine without a network",
}

# What the system says of a path that a user can mend.
USERS = (
    errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ELOOP,
)  # fmt: skip

EXAMPLES = """examples:
  pipemare train task=digits method=pipemare          PipeMare on the bundled digits
  pipemare train task=cifar10 method=t1 seed=3        one cell of the ablation on CIFAR-10
  pipemare plan --model resnet50 --microbatches 32   what a pipeline would cost
  pipemare compare digits                            the methods against each other
"""


def available() -> list[str]:
    """The commands whose module exists."""
    folder = PACKAGE / "commands"
    return [name for name in COMMANDS if (folder / f"{name}.py").is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what fits its line
        _complete(os.environ.get("COMP_LINE", ""))
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    logging.basicConfig(level=logging.WARNING, format="pipemare: %(levelname)s: %(message)s", stream=sys.stderr)
    try:
        _check_text(arguments)
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _mistake(str(error))
    except KeyboardInterrupt:
        print("pipemare: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has left. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in USERS or error.filename is None:
            raise
        return _mistake(f"{error.filename}: {error.strerror}; choose another place or name")
    except SystemExit as end:  # argparse: 0 after --help, 2 after a wrong argument
        return end.code if isinstance(end.code, int) else 2


def _open_streams() -> None:
    """Let no character end a command: one that the terminal's encoding lacks (± in ASCII) is written out."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_text(arguments: Sequence[str]) -> None:
    """Arguments name settings, files and runs: none may hold what a terminal obeys or a UTF-8 file cannot hold."""
    for text in arguments:
        if printable(text) != text or "\n" in text:
            raise UserError(f'"{printable(text)}" holds control characters or bytes that are no UTF-8; rename it')


def _mistake(text: str) -> int:
    print(f"pipemare: error: {printable(hide(text))}", file=sys.stderr)
    return 2


def _run(arguments: list[str]) -> int:
    names = available()
    if not arguments or arguments[0] in ("-h", "--help"):
        _overview(names).print_help()
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"pipemare {__version__}")
        return 0
    name = arguments[0]
    if name not in names:
        raise UserError(f'unknown command "{name}"; there are: {", ".join(names)}{suggest(name, names)}')
    module = _module(name)
    parser = _Parser(
        prog=f"pipemare {name}", description=module.HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    # `train a=1 --runs DIR b=2`: argparse lets options stand between positionals only when asked to.
    parse = parser.parse_intermixed_args if getattr(module, "INTERMIXED", False) else parser.parse_args
    return module.run(parse(arguments[1:]))


class _Parser(argparse.ArgumentParser):
    """Says a wrong argument as every other mistake is said: in a line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _module(name: str) -> ModuleType:
    return import_module(f"pipemare_exp.commands.{name}")


def _complete(line: str) -> None:
    """Answer the shell and end; of the commands only the line's own is imported."""
    from pipemare_exp import completion

    parser = argparse.ArgumentParser(prog="pipemare")
    commands = parser.add_subparsers()
    for name in available():
        command = commands.add_parser(name, help=COMMANDS[name])
        if name in line.split()[1:2]:
            _module(name).add_arguments(command)
    completion.answer(parser)


def _overview(names: list[str]) -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {COMMANDS[name]}" for name in names)
    return argparse.ArgumentParser(
        prog="pipemare",
        usage="pipemare COMMAND [...]    (pipemare COMMAND --help for each)",
        description=f"Asynchronous pipeline-parallel training with PipeMare.\n\ncommands:\n{lines}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


if __name__ == "__main__":
    sys.exit(main())
