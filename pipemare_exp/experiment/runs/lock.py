"""Who trains a run now? A lock on a file of its folder, which a dead process holds no longer."""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipemare_exp.disk import unwaiting

log = logging.getLogger(__name__)

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems answer that have none (Lustre without -o flock, NFS without its lock server)."""


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock `path`; gives False where another process holds it.

    Where the file system has no locks this is said, and taken as held: the run is trained without that guard.
    """
    with open(path, "ab", opener=unwaiting) as file:
        for _ in range(10):  # a reader's `is_held` holds the lock for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                log.warning(
                    "the file system of %s has no locks (%s): see to it that no second process trains this run",
                    path.parent,
                    error.strerror,
                )
                break
        else:
            yield False
            return
        yield True


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now; False where there are no locks."""
    try:
        with open(path, "rb", opener=unwaiting) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, one that we may not open, or no locks
        return False
    return False
