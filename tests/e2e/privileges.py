#!/usr/bin/python3
"""Set-user-id bits, set-group-id bits and capabilities after each change of a file, in two directories.

usage: privileges.py REFERENCE SUBJECT

For each mode, change and caller, a child process with the caller's rights makes the change in REFERENCE and in
SUBJECT. The answer, the mode and the presence of capabilities must be the same. The mode is read by path and
through an older descriptor. Needs root.

Two cases of chown with neither user nor group differ, because FUSE sends the same request before a write: for a
caller who may not change the owner it succeeds without an effect, and it keeps the bits of a file with capabilities.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_CAPBSET_DROP, PR_SET_KEEPCAPS, CAP_FSETID = 24, 8, 4
CAPABILITY = "security.capability"
NET_RAW = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
OWNER, OTHER, GROUP = 4001, 4002, 4003
MODES = [0o666, 0o4666, 0o2666, 0o6666, 0o4777, 0o2777, 0o6777, 0o2676, 0o6755, 0o1777]
DIFFERENCES_MAX = 20


def descriptor(change, flags=os.O_RDWR):
    """A change that needs a descriptor of the file."""

    def call(path):
        opened = os.open(path, flags)
        try:
            return change(opened, path)
        finally:
            os.close(opened)

    return call


def allocate(mode):
    def call(opened, _path):
        if LIBC.fallocate(opened, mode, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    return descriptor(call)


def copy(opened, path):
    source = os.open(os.path.join(os.path.dirname(path), "from"), os.O_RDONLY)
    try:
        return os.copy_file_range(source, opened, 9)
    finally:
        os.close(source)


CHANGES = {
    "write": descriptor(lambda fd, _: os.pwrite(fd, b"text", 0)),
    "second write": descriptor(lambda fd, _: (os.pwrite(fd, b"text", 0), os.pwrite(fd, b"text", 9))),
    "append": descriptor(lambda fd, _: os.write(fd, b"text"), os.O_WRONLY | os.O_APPEND),
    "synchronous write": descriptor(lambda fd, _: os.pwrite(fd, b"text", 0), os.O_RDWR | os.O_DSYNC),
    "empty write": descriptor(lambda fd, _: os.pwrite(fd, b"", 0)),
    "truncate": lambda path: os.truncate(path, 100),
    "ftruncate": descriptor(lambda fd, _: os.ftruncate(fd, 20000)),
    "open with O_TRUNC": descriptor(lambda fd, _: None, os.O_WRONLY | os.O_TRUNC),
    "allocate": allocate(0),
    "punch": allocate(3),
    "zero": allocate(16),
    "copy": descriptor(copy),
    "chown to the same": lambda path: os.chown(path, OWNER, -1),
    "chown to nobody": lambda path: os.chown(path, -1, -1),
    "chown": lambda path: os.chown(path, OTHER, GROUP),
    "chgrp": lambda path: os.chown(path, -1, GROUP),
    "chmod": lambda path: os.chmod(path, 0o6777),
    "utime": lambda path: os.utime(path),
    "read": descriptor(lambda fd, _: os.read(fd, 10), os.O_RDONLY),
}

# Name, user, group, further groups, and true if CAP_FSETID is dropped.
CALLERS = [
    ("root", 0, 0, [], False),
    ("root without CAP_FSETID", 0, 0, [], True),
    ("root in the group without CAP_FSETID", 0, 0, [GROUP], True),
    ("owner", OWNER, OWNER, [], False),
    ("owner in the group", OWNER, OWNER, [GROUP], False),
    ("member", OTHER, GROUP, [], False),
    ("stranger", OTHER, OTHER, [], False),
]


def become(user, group, groups, drops):
    os.setgroups(groups)
    if drops and LIBC.prctl(PR_CAPBSET_DROP, CAP_FSETID, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if drops:
        # Root gets the capabilities of the bounding set with the next program alone.
        header, data = struct.pack("<Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        LIBC.capget(header, data)
        effective, permitted, inheritable, *high = struct.unpack("<6I", data.raw)
        mask = ~(1 << CAP_FSETID) & 0xFFFFFFFF
        words = struct.pack("<6I", effective & mask, permitted & mask, inheritable & mask, *high)
        if LIBC.capset(header, words) != 0:
            raise OSError(ctypes.get_errno(), "capset")
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def left(directory, change, caller, mode, has_capability):
    """What a change by a caller answers and leaves of a file."""
    path = os.path.join(directory, "file")
    opened = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(opened, bytes([1]) * 9000)
    os.chown(path, OWNER, GROUP)
    os.chmod(path, mode)
    if has_capability:
        os.setxattr(path, CAPABILITY, NET_RAW)
    os.stat(path)
    child = os.fork()
    if child == 0:
        status = 200
        try:
            become(*caller[1:])
            CHANGES[change](path)
            status = 0
        except OSError as error:
            status = error.errno
        finally:
            os._exit(status)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = stat.S_IMODE(os.stat(path).st_mode), stat.S_IMODE(os.fstat(opened).st_mode)
    kept = CAPABILITY in os.listxattr(path)
    os.close(opened)
    os.unlink(path)
    return answer, [oct(mode) for mode in found], kept


def answer_differs(expected, found):
    """Whether ext4 refuses a change that succeeds on the mount without an effect."""
    return expected[0] == errno.EPERM and found == (0, *expected[1:])


def main():
    reference, subject = sys.argv[1:]
    differences = count = 0
    for directory in (reference, subject):
        os.chmod(directory, 0o777)
        with open(os.path.join(directory, "from"), "wb") as file:
            file.write(bytes([2]) * 100)
    for change in CHANGES:
        for caller in CALLERS:
            for mode in MODES:
                for has_capability in (False, True):
                    expected, found = (
                        left(directory, change, caller, mode, has_capability)
                        for directory in (reference, subject)
                    )
                    if change == "chown to nobody" and (has_capability or answer_differs(expected, found)):
                        continue
                    count += 1
                    if expected != found:
                        differences += 1
                        if differences <= DIFFERENCES_MAX:
                            with_it = " and capabilities" if has_capability else ""
                            print(f"{change} by {caller[0]}, mode {mode:o}{with_it}: {found}, ext4 {expected}")
    print(f"{count} changes, {differences} differences")
    sys.exit(differences != 0)


main()
