"""Runs a program under a kernel that ignores msync and knows no MAP_SYNC.

The planted fault of the machine kills: the program believes that its stores are durable, and they
are not. On a DAX file system they are in the memory, but the file's extents are not; elsewhere
they are in the page cache. A seccomp filter answers msync with success, and mmap with MAP_SYNC
with EOPNOTSUPP.

usage: deaf.py PROGRAM ARGS...
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SYS_MMAP, SYS_MSYNC, MAP_SYNC = 9, 26, 0x80000
# Offsets in struct seccomp_data: the number of the call, the low half of its fourth argument.
NUMBER, FLAGS = 0, 16 + 3 * 8
LOAD, JUMP_IF_EQUAL, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ANSWER = 0x7FFF0000, 0x00050000

FILTER = [
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 4, 0, SYS_MSYNC),
    (JUMP_IF_EQUAL, 0, 2, SYS_MMAP),
    (LOAD, 0, 0, FLAGS),
    (JUMP_IF_SET, 2, 0, MAP_SYNC),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, ANSWER),
    (RETURN, 0, 0, ANSWER | errno.EOPNOTSUPP),
]


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install():
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("=HBBI", *step) for step in FILTER)
    program = Program(len(FILTER), code)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install()
    os.execv(sys.argv[1], sys.argv[1:])
