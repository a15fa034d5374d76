"""How much memory has this process used at most?"""

from __future__ import annotations

import resource
import sys

import torch


def peak_resident() -> int:
    """Largest resident set of this process so far, in bytes.

    On Linux by the kernel's own high-water mark, which begins anew with each program; what getrusage tells includes
    the process that started this one.
    """
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_in_words() -> str:
    """The peak for a progress line: `512 MB`, with a GPU in use `2.1 GB, GPU 3.4 GB`."""
    words = _words(peak_resident())
    return f"{words}, GPU {_words(torch.cuda.max_memory_allocated())}" if torch.cuda.is_initialized() else words


def _words(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"
