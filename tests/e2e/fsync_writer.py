"""Writes files, notes which of them an fsync has acknowledged, and verifies them later.

The ledger lies outside the file system under test. A line `begin NAME SUM` precedes every change of
a file and `done NAME SUM` follows once the file and its folder are synced; SUM is `-` for a removed
file. After a crash a file must be what its last `done` line says, or what a later `begin` says: all of
its bytes, and so its size; and the name that it was written under must have gone.

usage: fsync_writer.py write DIRECTORY LEDGER              until the file system fails
       fsync_writer.py verify DIRECTORY LEDGER [--lenient]  prints how many acknowledged files it checked

--lenient    the name that a file was written under may be there again. Linux's btrfs (6.18) brings back a
             version that was replaced, under the name that it had before it was renamed, when it replays
             its log; it does so on any device, on one of nbdkit's as well.
"""

import hashlib
import os
import random
import sys

GONE = "-"
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


def change(top, ledger, rng):
    """Makes, replaces by rename, or removes one file, and waits until that is durable."""
    number = rng.randrange(NAMES)
    folder = os.path.join(top, f"d{number % 8}")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, f"f{number}")
    if rng.random() < 0.1 and os.path.exists(name):
        note(ledger, "begin", name, GONE)
        os.unlink(name)
        if os.path.lexists(name + FRESH):
            # A change of this file ended in an earlier crash, before it was renamed.
            os.unlink(name + FRESH)
        sync_folder(folder)
        note(ledger, "done", name, GONE)
        return
    data = rng.randbytes(rng.choice([10, 700, 4096, 5000, 20000, 150000]))
    checksum = hashlib.sha256(data).hexdigest()
    note(ledger, "begin", name, checksum)
    fresh = name + FRESH
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(fresh, name)
    sync_folder(folder)
    sync_folder(top)
    note(ledger, "done", name, checksum)


def write(top, path):
    rng = random.Random()
    with open(path, "a", encoding="ascii") as ledger:
        try:
            while True:
                change(top, ledger, rng)
        except OSError as error:
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
            if what == "done":
                allowed[name] = [checksum]
                acknowledged.add(name)
            else:
                allowed.setdefault(name, [GONE]).append(checksum)
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
            note(ledger, "done", name, checksum_of(name))
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
