"""What file systems and folders do that code forgets: some cannot sync, and a name may be a pipe or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems answer that do not know fsync, of folders or at all."""


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written, where the file system can do that."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def sync_folder(folder: Path) -> None:
    """Make the renames done in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """The file `path` for reading. Raises OSError where it is none: a pipe would be waited for, a device has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def unwaiting(path: str, flags: int) -> int:
    """An opener (see `open`) that raises OSError in place of waiting at a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
