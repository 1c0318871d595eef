#!/usr/bin/python3
"""The kernel's NBD client in a guest, our server on the host.

First ext4 and NTFS (ntfs3) are made, filled and found again on a new connection. Then machine and
server are killed together under ext4, while a writer in the guest notes in a ledger outside of it
what fsync acknowledged; the next guest must find all of that.

usage: client.py ROUNDS [--small N] [--large-mib N] [--plant]

--small, --large-mib    how much the file systems are filled with, see fill_tree.py
--plant                 then prove that losses are seen, by an ext4 that sends no FLUSH
"""

import argparse
import random
import shutil
import sys
import time

sys.dont_write_bytecode = True

from host_server import Server
from machine import Failed, Machine, end_cleanly, find_everbyte, need, run, scratch_folder

WRITING_S = (1.0, 6.0)
# Before each kill.
ACKNOWLEDGED_MIN = 5
LOST = "ext4 lost what fsync had acknowledged"


def try_file_system(machine, server, module, options):
    machine.start(
        "try_file_system",
        ["-machine", "q35"],
        NBD_PORT=server.start(),
        NBD_VOLUME=module,
        FS_MODULE=module,
        SMALL_FILES=options.small,
        LARGE_MIB=options.large_mib,
    )
    machine.finish()
    server.stop()
    files = machine.told("files").strip()
    print(f"ok - machine-client: {module} through the kernel's nbd: {files} files found again")


def boot_writer(machine, server, fresh=False, barrier=True):
    """Boots a guest that holds ext4 to the ledger and goes on writing. Returns how many files were
    acknowledged in the guest before it."""
    machine.start(
        "write_until_killed",
        ["-machine", "q35"],
        NBD_PORT=server.start(),
        NBD_VOLUME="killed",
        FRESH="yes" if fresh else "no",
        BARRIER="yes" if barrier else "no",
    )
    machine.wait_for("ready")
    return int(machine.told("verified"))


def kill_rounds(machine, server, rounds, rng):
    """Guest and server die together, so that what only one of them had is gone."""
    with open(machine.path("share/ledger"), "w", encoding="ascii"):
        pass
    boot_writer(machine, server, fresh=True)
    acknowledged = 0
    for at in range(1, rounds + 1):
        write_and_kill(machine, server, rng.uniform(*WRITING_S))
        found = boot_writer(machine, server)
        acknowledged += found
        print(f"round {at}: {found} files acknowledged meanwhile, all intact, clean", flush=True)
    machine.end()
    server.kill()
    if acknowledged < ACKNOWLEDGED_MIN * rounds:
        raise Failed("the writers acknowledged next to nothing")
    print(
        f"ok - machine-client: {rounds} kills of machine and server under ext4 through the "
        f"kernel's nbd: all {acknowledged} acknowledged files were intact"
    )


def write_and_kill(machine, server, seconds):
    time.sleep(seconds)
    machine.wait_until_acknowledged(ACKNOWLEDGED_MIN)
    if machine.process.poll() is not None:
        raise machine.failed("it ended before it was killed")
    machine.kill()
    server.kill()


def plant(machine, server):
    boot_writer(machine, server, barrier=False)
    write_and_kill(machine, server, WRITING_S[1])
    try:
        boot_writer(machine, server)
    except Failed as failure:
        if LOST not in str(failure):
            raise
    else:
        raise Failed("nobody noticed an ext4 that sends no FLUSH")
    finally:
        machine.end()
        server.kill()
    print("ok - machine-client: an ext4 that sends no FLUSH is noticed")


def arguments():
    parser = argparse.ArgumentParser(description="the kernel's NBD client, and machine kills")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--small", type=int, default=300)
    parser.add_argument("--large-mib", type=int, default=4)
    parser.add_argument("--plant", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    end_cleanly()
    folder, machine, server = scratch_folder(), None, None
    try:
        need("nbd-client", "mkfs.ext4", "e2fsck", "mkfs.ntfs", "ntfsfix")
        program = find_everbyte()
        machine, server = Machine(folder, program), Server(program, folder, "448M")
        for name in ("ext4", "ntfs3", "killed"):
            server.create(name, "--size", "128M")
        for module in ("ext4", "ntfs3"):
            try_file_system(machine, server, module, options)
        if options.rounds:
            kill_rounds(machine, server, options.rounds, random.Random())
            if options.plant:
                plant(machine, server)
        run(program, "pool", "check", server.pool)
        print("ok - machine-client: the pool is clean after all of it")
    except Failed as failure:
        print(f"FAILED - machine-client: {failure}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            machine.end()
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
