"""`twistd` on a system with nothing of Linux's own: run as a program, with `twistd`'s arguments.

What macOS does not have is taken away before anything is imported; what it does otherwise is done
its way: no end of the hard limit of open files, and `sendfile` that calls a lost connection
ENOTCONN.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import socket
import sys
from typing import Any

from twisted.python.runtime import Platform

MOST_FILES = 10240
GONE: dict[Any, tuple[str, ...]] = {
    fcntl: ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"),
    os: ("preadv", "pwritev", "RWF_NOWAIT", "RWF_DSYNC", "posix_fallocate", "fdatasync"),
    select: ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLLHUP", "EPOLLERR", "EPOLLRDHUP"),
    socket: ("MSG_MORE",),
}


def take_away(*more: str) -> None:
    """`more`: names of functions of `os`, such as sendfile."""
    for module, names in {**GONE, os: GONE[os] + more}.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    Platform.isMacOSX = lambda self: True
    Platform.isLinux = lambda self: False
    limits = [256, resource.RLIM_INFINITY]

    def setrlimit(which: int, wanted: tuple[int, int]) -> None:
        if not 0 <= wanted[0] <= MOST_FILES:
            raise ValueError("not allowed to raise maximum limit")
        limits[:] = wanted

    resource.getrlimit = lambda which: (limits[0], limits[1])
    resource.setrlimit = setrlimit
    if hasattr(os, "sendfile"):
        theirs = os.sendfile

        def sendfile(out: int, file: int, offset: int, count: int) -> int:
            try:
                return theirs(out, file, offset, count)
            except (BrokenPipeError, ConnectionError):
                raise OSError(errno.ENOTCONN, "Socket is not connected") from None

        os.sendfile = sendfile  # type: ignore[assignment]


if __name__ == "__main__":
    take_away(*filter(None, os.environ.pop("REPLOG_TEST_GONE", "").split(",")))
    from twisted.scripts.twistd import run

    sys.exit(run())
