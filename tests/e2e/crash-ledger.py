#!/usr/bin/python3
"""kill -9 under load, seen by a client that keeps a ledger.

Each round starts the server, sends it writes, trims and zeroes of all shapes over two connections
with many in flight, some with FUA, now and then a FLUSH, kills it at a random moment, sometimes
kills it again while it recovers, and then reads the whole volume and lets the judge in ledger.py
decide whether what it finds may be.

usage: crash-ledger.py ROUNDS [--seed N] [--tight] [--plant KIND|all]

--tight    a pool that runs out of space, so that writes are refused in between
--plant    after each round, put a fault of this kind (see ledger.PLANTS) into the image instead
           and fail unless the judge finds it
"""

import argparse
import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import nbd

sys.dont_write_bytecode = True

from ledger import BLOCK, PLANTS, SECTOR, Ledger, judge, planted, stamped

MIB = 1 << 20
LEAF = 2 * MIB
VOLUME_MIB = 32
IN_FLIGHT_MAX = 16
HOT_BLOCKS = 256
ENOSPC = 28
READY_S = 20


class Failed(Exception):
    """A promise was broken."""


class Server:
    """The process under test."""

    def __init__(self, program, pool, socket):
        self.program, self.pool, self.socket = program, pool, socket
        self.process = None
        self.killed = False
        self.log = open(pool + ".log", "ab")

    def spawn(self):
        self.killed = False
        self.process = subprocess.Popen(
            [self.program, "serve", self.pool, "--nbd", f"unix:{self.socket}"],
            stdout=subprocess.PIPE,
            stderr=self.log,
        )

    def start(self):
        """Starts it and waits until it is ready."""
        self.spawn()
        watchdog = threading.Timer(READY_S, self.kill)
        watchdog.start()
        line = self.process.stdout.readline().decode()
        watchdog.cancel()
        if not line.startswith("ready: "):
            raise Failed(f"the server did not become ready: {line!r}; see {self.log.name}")
        return line.split()[1]

    def kill(self):
        self.killed = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    def end(self):
        """Reaps it after a kill."""
        if self.process is not None:
            self.process.wait()
            self.process.stdout.close()
            self.process = None


class Client:
    """Random requests over two connections, noted in the ledger."""

    def __init__(self, ledger, rng, uri, first_number):
        self.ledger, self.rng = ledger, rng
        self.number = first_number
        self.busy = set()
        self.failure = None
        self.aim = threading.Event()
        self.flush_share = rng.choice([0.0, 0.001, 0.01, 0.05])
        self.fua_share = rng.choice([0.0, 0.03, 0.2])
        self.fua_blocks_max = rng.choice([1, LEAF // BLOCK])
        self.counts = {"answered": 0, "durable": 0, "refused": 0, "flushes": 0, "reads": 0}
        self.connections = []
        for _ in range(2):
            connection = nbd.NBD()
            connection.set_strict_mode(0)
            connection.connect_uri(uri)
            self.connections.append(connection)
        if not self.connections[0].can_multi_conn():
            raise Failed("the server does not allow several connections")

    def run(self, shoot):
        """Until the connections die. Once `aim` is set, calls `shoot` while requests are sent."""
        while not any(c.aio_is_dead() or c.aio_is_closed() for c in self.connections):
            if self.failure is not None:
                raise Failed(self.failure)
            try:
                if self.aim.is_set():
                    self.send_and(shoot)
                for connection in self.connections:
                    while connection.aio_in_flight() < IN_FLIGHT_MAX // 2:
                        self.send(connection)
                    connection.poll(1)
            except nbd.Error:
                pass
        if self.failure is not None:
            raise Failed(self.failure)

    def send_and(self, shoot):
        """Kills the server while it works on a write of many blocks. How long such a write takes
        is measured first."""
        connection = self.connections[0]
        while self.busy:
            for other in self.connections:
                other.poll(1)
        length = self.rng.randrange(8 * BLOCK, 64 * BLOCK, SECTOR)
        offset = self.rng.randrange(0, LEAF - length, SECTOR)
        blocks = range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)
        self.change(connection, offset, length, blocks)
        started = time.perf_counter()
        while self.busy:
            connection.poll(-1)
        took = time.perf_counter() - started
        self.change(connection, offset, length, blocks)
        until = time.perf_counter() + self.rng.uniform(0.0, took)
        while time.perf_counter() < until:
            connection.poll(0)
        shoot()

    def send(self, connection):
        roll = self.rng.random()
        if roll < self.flush_share:
            self.flush(connection)
            return
        offset, length = self.place()
        blocks = range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)
        if any(block in self.busy for block in blocks):
            return
        if roll < self.flush_share + 0.07:
            self.read(connection, offset, length, blocks)
        else:
            self.change(connection, offset, length, blocks)

    def place(self):
        """A range: most in a few hot blocks, some not aligned, never across 2 MiB."""
        rng = self.rng
        blocks = HOT_BLOCKS if rng.random() < 0.7 else self.ledger.size // BLOCK
        offset = rng.randrange(blocks) * BLOCK
        shape = rng.random()
        if shape < 0.4:
            length = BLOCK
        elif shape < 0.6:
            length = rng.choice([512, 1024, 2048])
            offset += rng.randrange(0, BLOCK, 512)
        elif shape < 0.8:
            length = rng.randrange(1, 17) * BLOCK
        elif shape < 0.9:
            offset += rng.randrange(BLOCK)
            length = rng.randrange(1, 300)
        elif shape < 0.99:
            offset += rng.randrange(0, BLOCK, 512)
            length = rng.randrange(512, 65537, 512)
        elif shape < 0.998:
            offset += rng.randrange(0, BLOCK, 512)
            length = rng.randrange(65536, LEAF, 512)
        else:
            offset -= offset % LEAF
            length = LEAF
        return offset, min(length, LEAF - offset % LEAF)

    def change(self, connection, offset, length, blocks):
        rng, self.number = self.rng, self.number + 1
        roll = rng.random()
        kind = "trim" if roll < 0.06 else "zero" if roll < 0.12 else "write"
        fua = len(blocks) <= self.fua_blocks_max and rng.random() < self.fua_share
        flags = nbd.CMD_FLAG_FUA if fua else 0
        data = None
        if length == LEAF and kind == "write":
            kind = "trim"
        if kind == "write":
            data = self.bytes_for(offset, length)
        request = self.ledger.issue(self.number, kind, offset, length, data, fua)
        self.busy.update(blocks)

        def completed(error):
            self.busy.difference_update(blocks)
            if error.value == 0:
                self.ledger.answer(request)
                self.counts["answered"] += 1
                self.counts["durable"] += request.fua
            elif error.value == ENOSPC:
                self.ledger.refuse(request)
                self.counts["refused"] += 1
            elif not self.is_lost(connection, error):
                self.failure = f"{request} failed with error {error.value}"
            return 1

        if kind == "write":
            buffer = nbd.Buffer.from_bytearray(bytearray(data))
            connection.aio_pwrite(buffer, offset, completed, flags)
        elif kind == "trim":
            connection.aio_trim(length, offset, completed, flags)
        else:
            flags |= nbd.CMD_FLAG_NO_HOLE if rng.random() < 0.3 else 0
            connection.aio_zero(length, offset, completed, flags)

    def bytes_for(self, offset, length):
        """New bytes: mostly random, sometimes what is there already with little changed."""
        roll = self.rng.random()
        if roll < 0.7:
            return stamped(self.rng, self.number, offset, length)
        data = bytearray(self.ledger.image[offset : offset + length])
        if roll < 0.97:
            for _ in range(self.rng.randrange(1, 4)):
                at = self.rng.randrange(length)
                piece = self.rng.randbytes(min(self.rng.randrange(1, 100), length - at))
                data[at : at + len(piece)] = piece
        return bytes(data)

    def read(self, connection, offset, length, blocks):
        expected = bytes(self.ledger.image[offset : offset + length])
        buffer = nbd.Buffer(length)
        self.busy.update(blocks)

        def completed(error):
            self.busy.difference_update(blocks)
            if error.value == 0:
                self.counts["reads"] += 1
                if bytes(buffer.to_bytearray()) != expected:
                    self.failure = f"a read of {offset}+{length} does not return what was written"
            elif not self.is_lost(connection, error):
                self.failure = f"a read of {offset}+{length} failed with error {error.value}"
            return 1

        connection.aio_pread(buffer, offset, completed)

    def flush(self, connection):
        issued = self.ledger.tick()

        def completed(error):
            if error.value == 0:
                self.ledger.flushed(issued)
                self.counts["flushes"] += 1
            elif not self.is_lost(connection, error):
                self.failure = f"a flush failed with error {error.value}"
            return 1

        connection.aio_flush(completed)

    @staticmethod
    def is_lost(connection, error):
        """Whether the error says that the server is gone rather than that it refused."""
        gone = {32, 104, 107, 108, 111}
        return error.value in gone or connection.aio_is_dead() or connection.aio_is_closed()


def read_all(uri, size):
    connection = nbd.NBD()
    connection.connect_uri(uri)
    if connection.get_size() != size:
        raise Failed(f"the volume has {connection.get_size()} bytes, not {size}")
    image = b"".join(bytes(connection.pread(LEAF, at)) for at in range(0, size, LEAF))
    connection.shutdown()
    return image


def try_plants(ledger, kinds):
    """Each planted fault must be found, and the image without one accepted."""
    if judge(ledger, bytes(ledger.image)):
        raise Failed("the judge refuses an image in which every request is present")
    found = set()
    for kind in kinds:
        plant = planted(ledger, kind)
        if plant is not None:
            image, word = plant
            if not any(word in fault for fault in judge(ledger, bytes(image))):
                raise Failed(f"the judge missed the planted fault {kind}")
            found.add(kind)
    return found


def one_round(server, ledger, rng, first_number, kinds):
    """Returns the last request number, what was counted and the plants that were tried."""
    client = Client(ledger, rng, server.start(), first_number)
    soon, aimed = rng.random() < 0.2, rng.random() < 0.5
    delay_s = rng.uniform(0.0, 0.03) if soon else rng.uniform(0.05, 1.0)
    timer = threading.Timer(delay_s, client.aim.set if aimed else server.kill)
    timer.start()
    try:
        client.run(server.kill)
        if not server.killed:
            raise Failed("the server ended, or dropped a connection, before it was killed")
    finally:
        timer.cancel()
        timer.join()
        server.kill()
        server.end()
    client.counts["durable"] = sum(request.durable for request in ledger.requests.values())
    tried = try_plants(ledger, kinds)
    while rng.random() < 0.3:
        server.spawn()
        time.sleep(rng.uniform(0.0, 0.03))
        server.kill()
        server.end()
    observed = read_all(server.start(), ledger.size)
    faults = judge(ledger, observed)
    if faults:
        shown = "\n  ".join(faults[:20])
        raise Failed(f"{len(faults)} faults after the crash:\n  {shown}")
    missing = sum(
        observed[block * BLOCK : (block + 1) * BLOCK]
        != ledger.image[block * BLOCK : (block + 1) * BLOCK]
        for block in ledger.on_block
    )
    client.counts["blocks rolled back"] = missing
    ledger.settle(observed)
    server.kill()
    server.end()
    return client.number, client.counts, tried


def find_program():
    program = os.environ.get("EVERBYTE")
    if program is None:
        top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        build = ["cargo", "build", "--quiet", "--release", "-p", "everbyte"]
        subprocess.run(build, cwd=top, check=True)
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(top, "target"))
        program = os.path.join(target, "release", "everbyte")
    return program


def make_pool(program, folder, tight):
    pool = os.path.join(folder, "pool")
    size = f"{VOLUME_MIB // 2}M" if tight else f"{4 * VOLUME_MIB}M"
    log = ["--log-size", "4M"] if tight else []
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([program, "pool", "create", pool, "--size", size], **quiet)
    volume = [program, "volume", "create", pool, "vol", "--size", f"{VOLUME_MIB}M"]
    subprocess.run(volume + log, **quiet)
    return pool


def arguments():
    parser = argparse.ArgumentParser(description="kill -9 under load, with a ledger")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--tight", action="store_true")
    parser.add_argument("--plant", choices=[*PLANTS, "all"])
    return parser.parse_args()


def main():
    options = arguments()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    kinds = PLANTS if options.plant == "all" else [options.plant] if options.plant else []
    run = os.environ.get("EVERBYTE_E2E_RUN", str(os.getpid()))
    folder = tempfile.mkdtemp(prefix=f"everbyte-e2e.{run}.", dir="/dev/shm")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    program = find_program()
    pool = make_pool(program, folder, options.tight)
    server = Server(program, pool, os.path.join(folder, "socket"))
    atexit.register(server.kill)
    ledger, rng, number, tried = Ledger(VOLUME_MIB * MIB), random.Random(seed), 0, set()
    totals = {}
    try:
        for at in range(1, options.rounds + 1):
            number, counts, found = one_round(server, ledger, rng, number, kinds)
            tried |= found
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
            print(f"round {at}: " + ", ".join(f"{v} {k}" for k, v in counts.items()), flush=True)
        if totals["durable"] == 0 or (options.tight and totals["refused"] == 0):
            raise Failed("the rounds were too short to prove anything")
        if set(kinds) - tried:
            raise Failed(f"no place was found for: {sorted(set(kinds) - tried)}")
    except Failed as failure:
        print(f"FAILED - crash-ledger: seed {seed}: {failure}", file=sys.stderr)
        with open(server.log.name, errors="replace") as log:
            sys.stderr.write(log.read()[-2000:])
        return 1
    for kind in kinds:
        print(f"ok - crash-ledger: the judge finds the planted fault {kind}")
    where = " in a pool that runs out" if options.tight else ""
    print(f"ok - crash-ledger: {options.rounds} rounds of kill -9{where}, seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
