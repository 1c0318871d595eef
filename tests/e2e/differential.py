#!/usr/bin/python3
"""The same random system calls in two directories; whatever they answer must be the same.

usage: differential.py REFERENCE SUBJECT SEED CALLS

Each call is made in REFERENCE and then in SUBJECT, with the names of files relative to them. A result is
what the call returns, or its error number. After a call that may have changed something, its effect on the
file's attributes and times is compared as well, and in the end the trees are.

Not compared, since POSIX leaves them open: sizes and blocks of directories, access times, device and inode
numbers, the order of names.
"""

import ctypes
import ctypes.util
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.readdir.restype = ctypes.c_void_p
LIBC.fdopendir.restype = LIBC.opendir.restype = ctypes.c_void_p
LIBC.opendir.argtypes = [ctypes.c_char_p]
LIBC.readdir.argtypes = LIBC.closedir.argtypes = LIBC.telldir.argtypes = [ctypes.c_void_p]
LIBC.telldir.restype = ctypes.c_long
LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
NAME_AT = 19  # of the name in glibc's struct dirent on x86-64

DIFFERENCES_MAX = 10
SEEK_MAX = 1 << 40  # FUSE has no word for the largest size of a file: the kernel lets one seek further
SHIFTING = 0x08 | 0x20 | 0x40 | 0x80  # collapse, insert, unshare, write zeroes
OLD_NS = 1_000_000_000
LIMIT = 1 << 20
OFFSETS = [0, 1, 511, 4095, 4096, 4097, 65536, 100000, 300000, LIMIT, -1, 1 << 40, (1 << 63) - 1, (1 << 63) - 4096]
NAMES = ["a", "b", "c", "d", "e"]
MODES = [0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0o6711, 0, 0o7777]


def checked(value):
    """The value of a C function, whose errors become OSError."""
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value


class Side:
    """One of the two directories, with the files that are open in it."""

    def __init__(self, top, seed):
        # Paths with `..` lead out of the root; what they find there is the same on both sides, too.
        self.root = os.path.join(os.path.realpath(top), f"seed{seed}", *"xxxx")
        os.makedirs(self.root, 0o755)
        self.open = {}

    def perform(self, call, arguments):
        """What the call answers: ("ok", result) or ("error", name)."""
        os.chdir(self.root)
        try:
            return "ok", getattr(self, call)(*arguments)
        except OSError as error:
            return "error", errno.errorcode.get(error.errno, error.errno)
        except OverflowError:
            return "error", "overflow"

    def descriptor(self, slot):
        if slot not in self.open:
            raise OSError(errno.EBADF, "not open")
        return self.open[slot]

    def is_path(self, slot):
        return fcntl.fcntl(self.descriptor(slot), fcntl.F_GETFL) & os.O_PATH != 0

    # --- files ---

    def open_file(self, slot, path, flags, mode):
        if slot in self.open:
            os.close(self.open.pop(slot))
        self.open[slot] = os.open(path, flags, mode)

    def close_file(self, slot):
        os.close(self.descriptor(slot))
        del self.open[slot]

    def read(self, slot, size):
        return digest(os.read(self.descriptor(slot), size))

    def pread(self, slot, size, offset):
        return digest(os.pread(self.descriptor(slot), size, offset))

    def write(self, slot, data):
        return os.write(self.descriptor(slot), data), self.position(slot)

    def pwrite(self, slot, data, offset):
        return os.pwrite(self.descriptor(slot), data, offset), self.position(slot)

    def position(self, slot):
        return os.lseek(self.descriptor(slot), 0, os.SEEK_CUR)

    def seek(self, slot, offset, whence):
        if self.is_path(slot) or stat.S_ISDIR(os.fstat(self.descriptor(slot)).st_mode):
            return "a place in a listing is the file system's own"
        descriptor = self.descriptor(slot)
        if whence in (os.SEEK_DATA, os.SEEK_HOLE) and stat.S_ISREG(os.fstat(descriptor).st_mode):
            # To ext4 reserved space that was read is data as long as zeroes for it are in the page cache.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.lseek(descriptor, offset, whence)

    def ftruncate(self, slot, size):
        return os.ftruncate(self.descriptor(slot), size)

    def truncate(self, path, size):
        return os.truncate(path, size)

    def fallocate(self, slot, mode, offset, size):
        fallocate = LIBC.fallocate64
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        return checked(fallocate(self.descriptor(slot), mode, offset, size))

    def fsync(self, slot):
        return os.fsync(self.descriptor(slot))

    def fstat(self, slot):
        if self.is_path(slot):
            return "the file may have gone: it is not open"
        return attributes(os.fstat(self.descriptor(slot)))

    def copy_range(self, source, target, size, at, to):
        done = 0
        while done < size:
            step = os.copy_file_range(
                self.descriptor(source), self.descriptor(target), size - done, at + done, to + done)
            if step == 0:
                break
            done += step
        return done

    def mapped(self, slot, at, data):
        """Stores through a shared mapping, and reads the same by the file."""
        descriptor = self.descriptor(slot)
        if self.is_path(slot):
            return "not open"
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if size < at + len(data) or size > 4 * LIMIT:
            return "too short"
        with mmap.mmap(descriptor, size) as memory:
            memory[at:at + len(data)] = data
            before = digest(os.pread(descriptor, size, 0))
            memory.flush()
        return before, digest(os.pread(descriptor, size, 0))

    def flock(self, slot, operation):
        return fcntl.flock(self.descriptor(slot), operation | fcntl.LOCK_NB)

    def lock_range(self, slot, kind, start, size):
        """A lock of an open file description, which conflicts with others of this process."""
        lock = struct.pack("hhqqi", kind, 0, start, size, 0)
        fcntl.fcntl(self.descriptor(slot), 37, lock)  # F_OFD_SETLK

    def append_by_two(self, path, rounds):
        """Two processes append to one file: nothing may be lost."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            child = os.fork()
            try:
                if child == 0:
                    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
                for _ in range(rounds):
                    os.write(descriptor, b"1234567")
            finally:
                if child == 0:
                    os._exit(0)
            os.waitpid(child, 0)
            return os.fstat(descriptor).st_size - before
        finally:
            os.close(descriptor)

    # --- names ---

    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    def rmdir(self, path):
        os.rmdir(path)

    def unlink(self, path):
        os.unlink(path)

    def link(self, path, to):
        os.link(path, to, follow_symlinks=False)

    def symlink(self, target, path):
        os.symlink(target, path)

    def readlink(self, path):
        return os.readlink(path)

    def mknod(self, path, mode, device):
        os.mknod(path, mode, device)

    def rename(self, path, to, flags):
        checked(LIBC.renameat2(-100, path.encode(), -100, to.encode(), flags))

    def listed(self, path):
        return sorted(os.listdir(path))

    def listed_from_places(self, path):
        """The names, read one by one, each from the place that was told before it."""
        stream = LIBC.opendir(path.encode())
        if not stream:
            checked(-1)
        try:
            places, names = [], []
            while True:
                places.append(LIBC.telldir(stream))
                entry = LIBC.readdir(stream)
                if not entry:
                    break
                names.append(ctypes.string_at(entry + NAME_AT))
            again = []
            for place in places[:-1]:
                LIBC.seekdir(stream, place)
                again.append(ctypes.string_at(LIBC.readdir(stream) + NAME_AT))
            return sorted(names), names == again, len(set(places)) == len(places)
        finally:
            LIBC.closedir(stream)

    # --- attributes ---

    def stat(self, path):
        return attributes(os.stat(path))

    def lstat(self, path):
        return attributes(os.lstat(path))

    def chmod(self, path, mode):
        os.chmod(path, mode)

    def chown(self, path, uid, gid):
        os.chown(path, uid, gid, follow_symlinks=False)

    def utime(self, path, accessed, modified):
        os.utime(path, ns=(accessed, modified), follow_symlinks=False)
        found = os.lstat(path)
        return found.st_mtime_ns, found.st_atime_ns

    def setxattr(self, path, name, value, flags):
        os.setxattr(path, name, value, flags)

    def getxattr(self, path, name):
        return os.getxattr(path, name)

    def listxattr(self, path):
        return sorted(os.listxattr(path))

    def removexattr(self, path, name):
        os.removexattr(path, name)

    def access(self, path, mode):
        return os.access(path, mode)

    def statfs(self, path):
        found = os.statvfs(path)
        return found.f_bsize, found.f_namemax

    def in_removed_directory(self, name):
        """What can be done in a working directory that has gone."""
        os.mkdir(name)
        os.chdir(name)
        os.rmdir(f"{self.root}/{name}")
        answers = []
        for call in [os.getcwd, lambda: os.listdir("."), lambda: os.mkdir("x"),
                     lambda: os.close(os.open("x", os.O_CREAT | os.O_WRONLY)), lambda: os.stat("x"),
                     lambda: attributes(os.stat(".")), lambda: os.chmod(".", 0o700),
                     lambda: os.close(os.open(".", os.O_RDONLY)), lambda: os.rmdir("../" + name)]:
            try:
                answers.append(call())
            except OSError as error:
                answers.append(errno.errorcode[error.errno])
        return answers

    # --- what a call has done ---

    def make_old(self, path):
        """Sets the times of a file and its directory to ones that no change leaves."""
        os.chdir(self.root)
        for name in (path, os.path.dirname(path) or "."):
            try:
                os.utime(name, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
            except OSError:
                pass

    def effects(self, path):
        """Attributes of a file and its directory, and whether they are modified since make_old.

        Of a pipe on FUSE the kernel changes no times."""
        os.chdir(self.root)
        found = []
        for name in (path, os.path.dirname(path) or "."):
            try:
                status = os.lstat(name)
                is_old = None if stat.S_ISFIFO(status.st_mode) else status.st_mtime_ns == OLD_NS
                found.append((attributes(status), is_old))
            except OSError as error:
                found.append(errno.errorcode[error.errno])
        return found

    def tree(self):
        os.chdir(self.root)
        found = []
        for directory, names, files in os.walk("."):
            for name in sorted(names + files):
                path = os.path.join(directory, name)
                status = os.lstat(path)
                entry = [path, attributes(status)]
                if stat.S_ISREG(status.st_mode) and status.st_size <= 64 * LIMIT:
                    with open(path, "rb") as file:
                        entry.append(hashlib.sha256(file.read()).hexdigest())
                if not stat.S_ISLNK(status.st_mode):
                    entry.append(sorted((key, os.getxattr(path, key)) for key in os.listxattr(path)))
                found.append(entry)
        return sorted(found)


def digest(data):
    """Bytes, short enough to be shown."""
    return (len(data), data if len(data) <= 16 else hashlib.sha256(data).hexdigest()[:16])


def attributes(status):
    size = None if stat.S_ISDIR(status.st_mode) else status.st_size
    return (oct(status.st_mode), status.st_nlink, status.st_uid, status.st_gid, size, status.st_rdev)


class Calls:
    """Random calls. Few names, so that they meet."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def path(self):
        pick = self.random
        path = "/".join(pick.choice(["d", "e"]) for _ in range(pick.choice([0, 0, 0, 1, 1, 2])))
        path = os.path.join(path, pick.choice(NAMES))
        return path + pick.choice([""] * 24 + ["/", "/.", "/..", "n" * 255, "n" * 256])

    def data(self):
        size = self.random.choice([0, 1, 7, 512, 4096, 4097, 12288, 70000])
        return self.random.randbytes(1) * size

    def flags(self):
        pick = self.random
        flags = pick.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        for flag, share in [(os.O_CREAT, .6), (os.O_EXCL, .15), (os.O_TRUNC, .2), (os.O_APPEND, .2),
                            (os.O_DIRECTORY, .08), (os.O_NOFOLLOW, .1), (os.O_SYNC, .05),
                            (os.O_DSYNC, .05), (os.O_PATH, .04), (os.O_NONBLOCK, 1)]:
            if pick.random() < share:
                flags |= flag
        return flags

    def attribute(self):
        return self.random.choice(["user.x", "user.y", "trusted.z", "user.", "wrong", "user." + "n" * 250,
                                   "user." + "n" * 251, "security.w"])

    def next(self):
        """A call, its arguments, and the path whose attributes it may change."""
        pick, slot = self.random, self.random.randrange(6)
        path, to = self.path(), self.path()
        offset, size = pick.choice(OFFSETS), pick.choice([0, 1, 4096, 5000, 70000, -1])
        kinds = {
            "open_file": (12, [slot, path, self.flags(), pick.choice(MODES)]),
            "close_file": (3, [slot]),
            "read": (3, [slot, pick.choice([0, 1, 5000, 100000])]),
            "pread": (3, [slot, pick.choice([0, 1, 5000, 100000]), offset]),
            "write": (5, [slot, self.data()]),
            "pwrite": (5, [slot, self.data(), offset]),
            "seek": (5, [slot, min(offset, SEEK_MAX), pick.randrange(6)]),
            "ftruncate": (3, [slot, offset]),
            "truncate": (2, [path, offset]),
            "fallocate": (4, [slot, pick.choice([0, 0, 1, 2, 3, 3, 0x10, 0x11, 8, 0x20, 0x40, 0x80]),
                              offset, size]),
            "fsync": (1, [slot]),
            "fstat": (2, [slot]),
            "copy_range": (2, [slot, pick.randrange(6), pick.choice([0, 1, 5000, 70000]),
                               pick.choice([0, 100, 4096]), pick.choice([0, 50, 8192])]),
            "mapped": (3, [slot, pick.choice([0, 1, 4000, 8192]), b"mapped" * 20]),
            "flock": (2, [slot, pick.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN])]),
            "lock_range": (3, [slot, pick.choice([fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK]),
                               pick.choice([0, 10, 100]), pick.choice([0, 5, 50])]),
            "append_by_two": (.3, [path, 20]),
            "mkdir": (5, [path, pick.choice(MODES) | 0o700]),
            "rmdir": (2, [path]),
            "unlink": (2, [path]),
            "link": (4, [path, to]),
            "symlink": (3, [pick.choice([self.path(), "", "a/../b", "x" * 4095, "x" * 4096]), path]),
            "readlink": (2, [path]),
            "mknod": (2, [path, pick.choice([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG, stat.S_IFCHR,
                                             stat.S_IFBLK, 0, stat.S_IFDIR]) | 0o644, os.makedev(9, 300)]),
            "rename": (8, [path, to, pick.choice([0, 0, 0, 1, 2, 2, 3, 8])]),
            "listed": (2, [path]),
            "listed_from_places": (2, [path]),
            "stat": (3, [path]),
            "lstat": (3, [path]),
            "chmod": (3, [path, pick.choice(MODES) | 0o700]),
            "chown": (2, [path, pick.choice([-1, 0, 65534]), pick.choice([-1, 0, 65534])]),
            "utime": (1, [path, pick.choice([0, 1, 10**18 + 7, 4 * 10**18]), pick.choice([5, 10**18 + 1])]),
            "setxattr": (4, [path, self.attribute(), bytes(pick.choice([0, 1, 100, 1000, 65536, 65537])),
                             pick.choice([0, 0, 1, 2, 3])]),
            "getxattr": (2, [path, self.attribute()]),
            "listxattr": (2, [path]),
            "removexattr": (2, [path, self.attribute()]),
            "access": (1, [path, pick.randrange(8)]),
            "statfs": (.5, [path]),
            "in_removed_directory": (.3, ["f"]),
        }
        call = pick.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        arguments = kinds[call][1]
        if call == "fallocate" and arguments[1] & SHIFTING:
            arguments[3] |= 1  # else ext4 would do it, and the files would differ from then on
        changed = next((value for value in arguments if isinstance(value, str) and len(value) < 100), None)
        return call, arguments, changed


def is_known(call, arguments, reference, subject):
    """True for an answer that may differ.

    - What shifts the bytes of a file is not supported, whatever is wrong with the request besides.
    - Attributes of a file share one block here and the inode as well on ext4, so both may be full, at
      different times.
    """
    if call == "fallocate":
        return arguments[1] & SHIFTING != 0 and subject == ("error", "ENOTSUP")
    if call == "setxattr":
        return ("error", "ENOSPC") in (reference, subject) and len(arguments[2]) >= 1000
    return False


def main():
    seed, count = int(sys.argv[3]), int(sys.argv[4])
    os.umask(0o022)
    sides = reference, subject = [Side(path, seed) for path in sys.argv[1:3]]
    calls = Calls(seed)
    answered, differences = {}, 0
    for side in sides:
        for name in ("d", "e", "d/d", "e/e"):
            side.perform("mkdir", (name, 0o755))
    for number in range(count):
        call, arguments, changed = calls.next()
        if changed:
            for side in sides:
                side.make_old(changed)
        answers = [side.perform(call, arguments) for side in sides]
        answered[call, answers[0][0]] = answered.get((call, answers[0][0]), 0) + 1
        effects = [side.effects(changed) if changed else None for side in sides]
        shown = [value if not isinstance(value, (bytes, str)) or len(value) < 40 else f"{len(value)} bytes"
                 for value in arguments]
        if answers[0] != answers[1] and not is_known(call, arguments, *answers):
            print(f"seed {seed}, call {number}: {call} {shown}: {answers[0]}, here {answers[1]}")
            differences += 1
        elif effects[0] != effects[1]:
            print(f"seed {seed}, call {number}: {call} {shown} answers {answers[0]} and leaves {effects[0]}, "
                  f"here {effects[1]}")
            differences += 1
        if differences >= DIFFERENCES_MAX:
            break
    if differences == 0:
        for one, other in zip(reference.tree(), subject.tree(), strict=True):
            if one != other:
                print(f"seed {seed}, in the end: {one}, here {other}")
                differences += 1
    good = sum(times for (_, how), times in answered.items() if how == "ok")
    print(f"{count} calls, {good} of them successful: {differences} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
