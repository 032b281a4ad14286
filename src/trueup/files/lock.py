"""Advisory locks between processes; the operating system drops them when a process dies."""

from __future__ import annotations

import errno
from typing import IO, Any

try:
    import fcntl
except ImportError:  # no advisory locks on this platform
    fcntl = None  # type: ignore[assignment]

_WITHOUT_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)  # what such file systems answer


def take_lock(handle: IO[Any], *, shared: bool = False, wait: bool = True) -> bool:
    """Take the lock of an open file, or change the one it has. False where the place has no locks: go on with
    what is right without one.

    Raises BlockingIOError where another holds it and `wait` is false."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return False
    return True
