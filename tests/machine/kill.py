#!/usr/bin/python3
"""Machine kills: a pool on real media in a guest, the power cut in the midst of writes.

A client on the host writes to `everbyte serve` in the guest and keeps a ledger; QEMU is killed at a
random moment, sometimes again while the guest comes up; the next guest replays ext4's journal,
recovers the pool, and the judge of ledger.py decides whether what it serves may be. The media:

dax      ext4 with DAX on an emulated NVDIMM; the pool must be mapped with MAP_SYNC
eadr     the same on an NVDIMM whose platform counts the processor's cache as persistent
devdax   the whole NVDIMM as a DAX device
file     ext4 on a disk; the pool lies behind the guest's page cache, and fences are msync

usage: kill.py ROUNDS [--medium dax|eadr|devdax|file] [--seed N] [--mount] [--plant]

--mount    the pool has a file system, which `everbyte mount` serves in the guest; there a writer notes
           in a ledger outside of it what fsync acknowledged, beside others who write
--plant    then prove that losses are seen, by media that lose what was promised: an NVDIMM that
           forgets, and a kernel that ignores msync and MAP_SYNC (deaf.py)
"""

import argparse
import json
import random
import shutil
import sys
import threading
import time

import nbd

sys.dont_write_bytecode = True

from machine import Failed, Machine, end_cleanly, find_everbyte, need, scratch_folder

from ledger import BLOCK, Ledger, judge
from ledger_client import Client, read_all

MIB = 1 << 20
MEDIUM_MIB, POOL_MIB, VOLUME_MIB = 256, 128, 16
WRITING_S_MAX = 4.0
# For rounds that must make something durable.
FLUSH_SHARE = 0.05
KILL_AGAIN = 0.2
LOST = "lost a durable write"
MOUNT_WRITING_S = (1.0, 6.0)
MOUNT_LOST = "the mount lost what fsync had acknowledged"
# Before each kill.
ACKNOWLEDGED_MIN = 2


class Media:
    """One medium of a guest, and what the client knows of the volume on it."""

    def __init__(self, machine, kind, rng):
        self.machine, self.kind, self.rng = machine, kind, rng
        self.path = machine.path("medium")
        with open(self.path, "wb") as file:
            file.truncate(MEDIUM_MIB * MIB)
        self.ledger = Ledger(VOLUME_MIB * MIB)
        self.fresh = True
        self.number = 0
        self.boot_s = 0.0

    def devices(self, forgets):
        if self.kind == "file":
            drive = f"file={self.path},format=raw,if=none,id=disk,cache=writeback"
            return ["-machine", "q35", "-drive", drive, "-device", "virtio-blk-pci,drive=disk"]
        domain = "cpu" if self.kind == "eadr" else "mem-ctrl"
        share = "off" if forgets else "on"
        memory = f"memory-backend-file,id=memory,share={share},mem-path={self.path}"
        return [
            "-machine", f"q35,nvdimm=on,nvdimm-persistence={domain}",
            "-object", f"{memory},size={MEDIUM_MIB}M", "-device", "nvdimm,memdev=memory",
        ]  # fmt: skip

    task = "serve_pool"

    def boot(self, deaf=False, forgets=False):
        self.machine.start(
            self.task,
            self.devices(forgets),
            MEDIUM=self.kind,
            FRESH="yes" if self.fresh else "no",
            DEAF="yes" if deaf else "no",
            POOL_SIZE=f"{POOL_MIB}M",
            VOLUME_SIZE=f"{VOLUME_MIB}M",
        )

    def serve(self, **faults):
        """Boots and returns the server's address."""
        started = time.monotonic()
        self.boot(**faults)
        self.machine.wait_for("ready")
        self.boot_s = time.monotonic() - started
        self.fresh = False
        return f"nbd://127.0.0.1:{self.machine.port}/vol"

    def check_promise(self):
        """The pool must say what it survives, and the kernel how it is mapped."""
        info, flags = json.loads(self.machine.told("info.json")), self.machine.told("mapping")
        medium, dax = info["medium"], self.kind != "file"
        flushes = self.kind in ("dax", "devdax")
        if (
            info["survives"] != "power"
            or medium["kind"] != ("dax" if dax else "file")
            or (medium["flush"] != "none") != flushes
            or (medium["sync"] is None) != dax
        ):
            raise Failed(f"the pool survives {info['survives']}, on {medium}")
        if ("sf" in flags.split()) != dax:
            raise Failed(f"MAP_SYNC is not as it should be; the mapping's {flags}")
        return f"{medium['kind']}, flush {medium['flush']}, sync {medium['sync']}"

    def write_and_kill(self, uri, delay_s, aimed, flush_share=None):
        """Writes until the power is cut, after `delay_s`, or soon after that in the midst of a
        large write. Returns what was counted."""
        try:
            client = Client(self.ledger, self.rng, uri, self.number)
        except nbd.Error as error:
            raise self.machine.failed(f"its server refuses us: {error}") from error
        if flush_share is not None:
            client.flush_share = flush_share
        timer = threading.Timer(delay_s, client.aim.set if aimed else self.machine.kill)
        timer.start()
        try:
            client.run(self.machine.kill)
            if not self.machine.killed:
                raise self.machine.failed("the connection broke before the kill")
        finally:
            timer.cancel()
            timer.join()
            self.machine.end()
            self.number = client.number
        client.counts["durable"] = sum(r.durable for r in self.ledger.requests.values())
        return client.counts

    def recover(self):
        """Boots after a kill and holds the volume to the ledger. Returns the server's address and
        how many blocks were rolled back."""
        expected = None if self.fresh else "0\n"
        uri = self.serve()
        self.check_promise()
        self.check_clean(expected)
        observed, ledger = self.read_all(uri), self.ledger
        faults = judge(ledger, observed)
        if faults:
            shown = "\n  ".join(faults[:20])
            raise Failed(f"{len(faults)} faults after the kill:\n  {shown}")
        spans = [slice(block * BLOCK, (block + 1) * BLOCK) for block in ledger.on_block]
        rolled_back = sum(observed[span] != ledger.image[span] for span in spans)
        ledger.settle(observed)
        return uri, rolled_back

    def read_all(self, uri):
        try:
            return read_all(uri, self.ledger.size)
        except nbd.Error as error:
            raise self.machine.failed(f"its volume cannot be read: {error}") from error

    def check_clean(self, expected):
        if self.machine.told("check") != expected:
            raise self.machine.failed("its pool is not clean")

    def kill_while_it_recovers(self):
        while self.rng.random() < KILL_AGAIN:
            self.boot()
            time.sleep(self.rng.uniform(0.3, 1.0) * self.boot_s)
            self.machine.kill()
            self.machine.end()


class MountedMedia(Media):
    """The same with a file system that is mounted in the guest, where its writer and its judge are."""

    task = "write_to_mount_until_killed"

    def __init__(self, machine, kind, rng):
        super().__init__(machine, kind, rng)
        with open(machine.path("share/ledger"), "w", encoding="ascii"):
            pass

    def recover(self, **faults):
        """Boots a guest that holds the mount to the ledger and goes on writing. Returns how many files
        were acknowledged in the guest before it."""
        expected = None if self.fresh else "0\n"
        self.serve(**faults)
        self.check_promise()
        self.check_clean(expected)
        return int(self.machine.told("verified"))

    def write_and_kill(self, seconds):
        time.sleep(seconds)
        self.machine.wait_until_acknowledged(ACKNOWLEDGED_MIN)
        if self.machine.process.poll() is not None:
            raise self.machine.failed("it ended before it was killed")
        self.machine.kill()
        self.machine.end()


def mount_rounds(machine, kind, rounds, rng):
    media, acknowledged = MountedMedia(machine, kind, rng), 0
    media.recover()
    print(f"the pool: {media.check_promise()}; ready after {media.boot_s:.1f} s", flush=True)
    for at in range(1, rounds + 1):
        media.write_and_kill(rng.uniform(*MOUNT_WRITING_S))
        media.kill_while_it_recovers()
        found = media.recover()
        acknowledged += found
        print(f"round {at}: {found} files acknowledged meanwhile, all intact, clean", flush=True)
    machine.end()
    # A guest that was killed as soon as it had verified them told nobody.
    if acknowledged < rounds:
        raise Failed("the writers acknowledged next to nothing")
    print(
        f"ok - machine-kill: {rounds} rounds and {machine.kills} kills of a machine with a mount of "
        f"a pool on {kind}: all {acknowledged} acknowledged files were intact"
    )


def plant_under_mount(machine, kind, rng, what, **faults):
    """As `plant`, for a mount."""
    media = MountedMedia(machine, kind, rng)
    media.recover()
    machine.end()
    media.recover(**faults)
    media.write_and_kill(MOUNT_WRITING_S[1])
    try:
        media.recover()
    except Failed as failure:
        if MOUNT_LOST not in str(failure):
            raise
    else:
        raise Failed(f"nobody noticed {what} under a mount on {kind}")
    finally:
        machine.end()
    print(f"ok - machine-kill: {what} under a mount on {kind} is noticed", flush=True)


def kill_rounds(machine, kind, rounds, rng):
    media, totals = Media(machine, kind, rng), {"answered": 0, "durable": 0, "rolled back": 0}
    uri, _ = media.recover()
    print(f"the pool: {media.check_promise()}; ready after {media.boot_s:.1f} s", flush=True)
    for at in range(1, rounds + 1):
        delay_s, aimed = rng.uniform(0.0, WRITING_S_MAX), rng.random() < 0.5
        if at == 1:
            counts = media.write_and_kill(uri, WRITING_S_MAX, aimed, FLUSH_SHARE)
        else:
            counts = media.write_and_kill(uri, delay_s, aimed)
        media.kill_while_it_recovers()
        uri, counts["rolled back"] = media.recover()
        for name in totals:
            totals[name] += counts[name]
        print(f"round {at}: " + ", ".join(f"{v} {k}" for k, v in counts.items()), flush=True)
    machine.end()
    if totals["durable"] == 0:
        raise Failed("the rounds were too short to prove anything")
    print(
        f"ok - machine-kill: {rounds} rounds and {machine.kills} kills of a machine with a pool on "
        f"{kind}: {totals['answered']} requests answered, {totals['durable']} of them durable and "
        f"there, {totals['rolled back']} blocks rolled back"
    )


def plant(machine, kind, rng, what, **faults):
    """A medium that does not keep what the program was told it would: the judge must notice."""
    media = Media(machine, kind, rng)
    media.serve()
    machine.end()
    counts = media.write_and_kill(media.serve(**faults), WRITING_S_MAX, False, FLUSH_SHARE)
    if counts["flushes"] == 0:
        raise Failed("nothing was flushed that could be lost")
    found = judge(media.ledger, media.read_all(media.serve()))
    machine.end()
    lost = sum(LOST in fault for fault in found)
    if lost == 0:
        raise Failed(f"nobody noticed {what} on {kind}")
    print(f"ok - machine-kill: {what} on {kind} is noticed: {lost} blocks {LOST}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="machine kills, with a ledger")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--medium", choices=["dax", "eadr", "devdax", "file"], default="dax")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--mount", action="store_true")
    parser.add_argument("--plant", action="store_true")
    return parser.parse_args()


def run_mounted(machine, options, rng):
    mount_rounds(machine, options.medium, options.rounds, rng)
    if options.plant and options.medium != "file":
        plant_under_mount(machine, options.medium, rng, "an NVDIMM that forgets", forgets=True)


def main():
    options = arguments()
    end_cleanly()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    rng, folder, machine = random.Random(seed), scratch_folder(), None
    try:
        need("mkfs.ext4", "e2fsck", "ndctl")
        machine = Machine(folder, find_everbyte())
        if options.mount:
            run_mounted(machine, options, rng)
            return 0
        kill_rounds(machine, options.medium, options.rounds, rng)
        if options.plant and options.medium in ("dax", "file"):
            what = "a kernel that ignores msync and MAP_SYNC"
            plant(machine, options.medium, rng, what, deaf=True)
        if options.plant and options.medium != "file":
            plant(machine, options.medium, rng, "an NVDIMM that forgets", forgets=True)
    except Failed as failure:
        print(f"FAILED - machine-kill: seed {seed}: {failure}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            machine.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
