#!/usr/bin/python3
"""kill -9 under load, seen by a client that keeps a ledger.

Each round starts the server, sends it writes, trims and zeroes of all shapes over two connections
with many in flight, some with FUA, now and then a FLUSH, kills it at a random moment, sometimes
kills it again while it recovers, and then reads the whole volume and lets the judge in ledger.py
decide whether what it finds may be. In the end the pool must be sound, and every block of it be used
or free.

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

sys.dont_write_bytecode = True

from ledger import BLOCK, PLANTS, Ledger, judge
from ledger_client import Client, Failed, read_all, try_plants

MIB = 1 << 20
VOLUME_MIB = 32
READY_S = 20


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
        if self.process is not None and self.process.poll() is None:
            self.killed = True
            self.process.kill()

    def end(self):
        """Reaps it after a kill."""
        if self.process is not None:
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def one_round(server, ledger, rng, first_number, kinds, is_tight):
    """Returns the last request number, what was counted and the plants that were tried."""
    client = Client(ledger, rng, server.start(), first_number, is_tight)
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
    log = ["-o", "log-size=4M"] if tight else []
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([program, "pool", "create", pool, "--size", size], **quiet)
    volume = [program, "volume", "create", pool, "vol", "--size", f"{VOLUME_MIB}M"]
    subprocess.run(volume + log, **quiet)
    return pool


def check(program, pool):
    done = subprocess.run([program, "pool", "check", pool], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"the pool is not clean: {done.stdout}{done.stderr}")


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
            number, counts, found = one_round(
                server, ledger, rng, number, kinds, options.tight
            )
            tried |= found
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
            print(f"round {at}: " + ", ".join(f"{v} {k}" for k, v in counts.items()), flush=True)
        check(program, pool)
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
