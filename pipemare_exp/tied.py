"""How does a process end with the one that started it, however early that one is killed?

Linux kills a process when its parent ends, if the process has asked for that. One that asks after its imports can be
too late: its parent may be gone by then, and nothing ends it any more. So asking is the first thing that a process of
ours does, before any import that takes time, and it then compares its parent with the one it was told of.

    python -m pipemare_exp.tied PARENT MODULE ARGUMENTS...

runs MODULE as `python -m MODULE ARGUMENTS...` does, tied to the process PARENT. What MODULE starts can tie itself to
that process by `end_with_starter`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

from pipemare_exp.environment import STARTER

_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` tied to this process."""
    return [sys.executable, "-m", "pipemare_exp.tied", str(os.getpid()), module, *arguments]


def end_with(parent: int) -> None:
    """Have this process killed when `parent`, which started it, ends; end it now where that has happened already."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "prctl"):  # Linux
        library.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def end_with_starter() -> None:
    """`end_with` the process that STARTER names; the parent that it finds where nobody has named one."""
    end_with(int(os.environ.pop(STARTER, os.getppid())))


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    end_with(int(parent))
    os.environ[STARTER] = str(os.getpid())
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
