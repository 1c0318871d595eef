"""Writes files, notes which of them an fsync has acknowledged, and verifies them later.

The ledger lies outside the file system under test. A line `begin NAME SUM` precedes every change of
a file and `done NAME SUM` follows once the file and its folder are synced; SUM is `-` for a removed
file. After a crash a file must be what its last `done` line says, or what a later `begin` says: all of
its bytes, and so its size; and the name that it was written under must have gone. What was verified
becomes `held NAME SUM`, which demands as much as `done`, so that every `done` is the work of one writer.

usage: fsync_writer.py write DIRECTORY LEDGER              until the file system is gone
       fsync_writer.py verify DIRECTORY LEDGER [--lenient]  checks every file, and prints how many were
                                                           acknowledged since it was verified last

Only a file system that is gone ends the writer well: any other error is a failure, and so is a full one.

--lenient    the name that a file was written under may be there again. Linux's btrfs (6.18) brings back a
             version that was replaced, under the name that it had before it was renamed, when it replays
             its log; it does so on any device, on one of nbdkit's as well.
"""

import errno
import hashlib
import os
import random
import sys

GONE = "-"
# What a file system says whose device, or whose server, is gone.
LOST = {errno.EIO, errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ESHUTDOWN}
# The name of a file until it replaces the one that it is for.
FRESH = ".new"
NAMES = 400


def note(ledger, *words):
    ledger.write(" ".join(words) + "\n")
    ledger.flush()


def sync_folder(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileSystem:
    """The file system that is mounted on `top` now."""

    def __init__(self, top):
        self.top, self.device = top, os.stat(top).st_dev

    def is_there(self):
        """Returns true if it still is: an unmounted directory takes files as well, and keeps no promise."""
        try:
            return os.stat(self.top).st_dev == self.device
        except OSError as error:
            if error.errno in LOST:
                return False
            raise


def change(top, rng, begin, done):
    """Makes, replaces by rename, or removes one file, and waits until that is durable."""
    number = rng.randrange(NAMES)
    folder = os.path.join(top, f"d{number % 8}")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, f"f{number}")
    if rng.random() < 0.1 and os.path.exists(name):
        begin(name, GONE)
        os.unlink(name)
        if os.path.lexists(name + FRESH):
            # A change of this file ended in an earlier crash, before it was renamed.
            os.unlink(name + FRESH)
        sync_folder(folder)
        done(name, GONE)
        return
    data = rng.randbytes(rng.choice([10, 700, 4096, 5000, 20000, 150000]))
    checksum = hashlib.sha256(data).hexdigest()
    begin(name, checksum)
    fresh = name + FRESH
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(fresh, name)
    sync_folder(folder)
    sync_folder(top)
    done(name, checksum)


def write(top, path):
    rng, files = random.Random(), FileSystem(top)
    with open(path, "a", encoding="ascii") as ledger:

        def begin(name, checksum):
            note(ledger, "begin", name, checksum)

        def done(name, checksum):
            # Where it is now, it was all the time.
            if files.is_there():
                note(ledger, "done", name, checksum)

        try:
            while files.is_there():
                change(top, rng, begin, done)
            print("the writer stopped: another file system is there", file=sys.stderr)
        except OSError as error:
            if error.errno not in LOST and files.is_there():
                raise
            print(f"the writer stopped: {error}", file=sys.stderr)


def checksum_of(name):
    try:
        with open(name, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return GONE


def verify(path, is_lenient):
    allowed, acknowledged = {}, set()
    with open(path, encoding="ascii") as ledger:
        for line in ledger:
            what, name, checksum = line.split()
            if what == "begin":
                allowed.setdefault(name, [GONE]).append(checksum)
                continue
            allowed[name] = [checksum]
            if what == "done":
                acknowledged.add(name)
    wrong = [name for name, sums in allowed.items() if checksum_of(name) not in sums]
    # Nothing has begun since the rename or the removal that was acknowledged: the name that a file
    # has before it is renamed has gone.
    settled = [name + FRESH for name, sums in allowed.items() if len(sums) == 1]
    if not is_lenient:
        wrong += [name for name in settled if os.path.lexists(name)]
    for name in wrong:
        print(f"{name} is not what was synced", file=sys.stderr)
    if wrong:
        sys.exit(1)
    with open(path, "w", encoding="ascii") as ledger:
        for name in allowed:
            note(ledger, "held", name, checksum_of(name))
            if os.path.lexists(name + FRESH):
                # Its change ended in the crash, and may have left this.
                note(ledger, "begin", name, checksum_of(name))
    print(len(acknowledged))


if __name__ == "__main__":
    action, directory, ledger_path, *options = sys.argv[1:]
    if action == "write":
        write(directory, ledger_path)
    else:
        verify(ledger_path, "--lenient" in options)
