#!/usr/bin/python3
"""The backing device of a cache fails, hangs or comes back under load.

The backing device is an NBD server of this script, with a volatile write cache: what was not flushed
is lost by a flush that fails, which tells so once, and by a power failure. In each round clients
write, trim, read and flush a cache while the backing device refuses writes or flushes or everything,
has no space, hangs, or loses its power and comes back. One of every three rounds, in each mode of a
cache by turns, ends with kill -9 of the cache's server and a power failure of the backing device. Then:

- nothing that a FLUSH or FUA said to be durable is lost, and no page is torn or foreign;
- an answer without an error is true: what is read is what was written last, or, after a change that
  failed, what was there before or should be;
- no client loses its connection, but to a server that is killed.

In the end the cache is detached, and the same must be true of the backing device alone.

usage: failing-backing.py ROUNDS [--seed N] [--plant]

--plant    the backing device says that it has flushed and has not: fail unless that is found
"""

import argparse
import atexit
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

import nbd

PAGE = 4096
PAGES = 1024
CLIENTS = 3
EIO, ENOSPC, EINVAL = 5, 28, 22
FAULTS = ["writes", "flushes", "everything", "full", "hang", "power", "away"]
MODES = ["write-back", "write-around", "write-through"]
# In the words of a cache that refuses its backing device, for a page that it has itself.
REFUSAL = "has other bytes than the cache read there"
# Exceptions that nobody caught, by which threads ended.
CRASHES = []


class Failed(Exception):
    """A promise was broken."""


class WrongContents(Failed):
    """A page is not what it must be."""


class NotServed(Failed):
    """A cache is not opened, or its server cannot be reached."""


class Backing:
    """A backing device with a volatile write cache, served over NBD."""

    def __init__(self, path):
        self.path = path
        self.shown = bytearray(PAGES * PAGE)
        self.durable = bytearray(PAGES * PAGE)
        self.lock = threading.RLock()
        self.unflushed = []
        self.fault = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.connections = set()
        self.told = 0
        self.lies = False
        self.listener = None

    def start(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.add(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def stop(self):
        """Whoever is connected is cut off."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.unlink(self.path)
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut_power(self):
        with self.lock:
            self.shown[:] = self.durable
            self.unflushed.clear()

    def serve(self, connection):
        try:
            with connection:
                self.negotiate(connection)
                while self.request(connection):
                    pass
        except (OSError, EOFError):
            pass
        self.connections.discard(connection)

    def negotiate(self, connection):
        connection.sendall(struct.pack(">8s8sH", b"NBDMAGIC", b"IHAVEOPT", 3))
        receive(connection, 4)
        flags = 1 | 4 | 32 | 64
        while True:
            _, option, length = struct.unpack(">8sII", receive(connection, 16))
            receive(connection, length)

            def reply(kind, data=b""):
                head = struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data))
                connection.sendall(head + data)

            if option == 7:
                reply(3, struct.pack(">HQH", 0, PAGES * PAGE, flags))
                reply(1)
                return
            if option == 1:
                connection.sendall(struct.pack(">QH", PAGES * PAGE, flags) + bytes(124))
                return
            if option == 2:
                reply(1)
                raise EOFError
            reply(0x80000001)

    def request(self, connection):
        _, _, kind, cookie, offset, length = struct.unpack(">IHHQQI", receive(connection, 28))
        data = receive(connection, length) if kind == 1 else b""
        if kind == 2:
            return False
        self.goes_on.wait()
        with self.lock:
            error, out = self.do(kind, offset, length, data)
        connection.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + out)
        return True

    def do(self, kind, offset, length, data):
        fault = self.fault
        if fault == "everything" or (fault == "writes" and kind in (1, 4, 6)):
            self.told += 1
            return EIO, b""
        if fault == "full" and kind == 1:
            self.told += 1
            return ENOSPC, b""
        if kind == 0:
            return 0, bytes(self.shown[offset : offset + length])
        if kind in (1, 4, 6):
            data = data if kind == 1 else bytes(length)
            self.shown[offset : offset + length] = data
            self.unflushed.append((offset, data))
            return 0, b""
        if kind == 3:
            changes, self.unflushed = self.unflushed, []
            if fault == "flushes":
                # Lost, and told once; what is read still shows it.
                self.told += 1
                return EIO, b""
            for at, data in [] if self.lies else changes:
                self.durable[at : at + len(data)] = data
            return 0, b""
        return EINVAL, b""


def receive(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


class Page:
    """What a page may hold. Each change is (content, whether it was answered without an error);
    the first `durable` ones are behind it."""

    def __init__(self, content):
        self.changes = [(content, True)]
        self.durable = 0

    def from_last_good(self, upto):
        """Contents from the last change on that is known to have been made, up to `upto`."""
        while upto > 0 and not self.changes[upto][1]:
            upto -= 1
        return {content for content, _ in self.changes[upto:]}

    def shown(self):
        return self.from_last_good(len(self.changes) - 1)

    def after_crash(self):
        return self.from_last_good(self.durable)


class Load:
    """Clients that each change pages of their own, and flush for all."""

    def __init__(self, pages, seed):
        self.pages, self.seed = pages, seed
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.failure = None
        self.is_killed = False
        self.counts = {"answers": 0, "errors": 0, "flushes": 0}

    def run(self, uri, seconds, at_half):
        threads = [
            threading.Thread(target=self.client, args=(uri, n), daemon=True) for n in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 2)
        at_half()
        time.sleep(seconds / 2)
        return threads

    def client(self, uri, own):
        rng = random.Random(self.seed * CLIENTS + own)
        try:
            connection = nbd.NBD()
            connection.connect_uri(uri)
            while not self.stopping.is_set() and self.failure is None:
                self.step(connection, rng, own)
        except nbd.Error as error:
            if not self.is_killed:
                self.failure = Failed(f"a client lost its server, which nobody killed: {error}")
        except Failed as failure:
            self.failure = failure

    def step(self, connection, rng, own):
        roll = rng.random()
        hot = rng.random() < 0.5
        at = rng.randrange(40 if hot else PAGES // CLIENTS) * CLIENTS + own
        try:
            if roll < 0.05:
                self.flush(connection)
            elif roll < 0.45:
                self.read(connection, at)
            else:
                self.change(connection, rng, at)
            self.counts["answers"] += 1
        except nbd.Error as error:
            if connection.aio_is_dead() or connection.aio_is_closed():
                raise
            if error.errnum not in (EIO, ENOSPC):
                raise Failed(f"an answer that is no media error: {error}") from error
            self.counts["errors"] += 1

    def flush(self, connection):
        with self.lock:
            seen = [len(page.changes) - 1 for page in self.pages]
            # What is in flight is in the list already, but not answered.
            seen = [n - (page.changes[n][1] is None) for n, page in zip(seen, self.pages)]
        connection.flush()
        with self.lock:
            for page, upto in zip(self.pages, seen):
                page.durable = max(page.durable, upto)
        self.counts["flushes"] += 1

    def read(self, connection, at):
        found = bytes(connection.pread(PAGE, at * PAGE))
        with self.lock:
            page = self.pages[at]
            if found not in page.shown():
                raise WrongContents(f"page {at} is read as {name(found)}, not {names(page.shown())}")
            # From now on it is this.
            page.changes.append((found, True))

    def change(self, connection, rng, at):
        trims, fua = rng.random() < 0.2, rng.random() < 0.1
        content = bytes(PAGE) if trims else struct.pack(">II", at, rng.getrandbits(32)) * (PAGE // 8)
        page = self.pages[at]
        with self.lock:
            page.changes.append((content, None))
            number = len(page.changes) - 1
        flags = nbd.CMD_FLAG_FUA if fua else 0
        is_good = False
        try:
            if trims:
                connection.trim(PAGE, at * PAGE, flags)
            else:
                connection.pwrite(content, at * PAGE, flags)
            is_good = True
        finally:
            with self.lock:
                page.changes[number] = (content, is_good)
                if is_good and fua:
                    page.durable = max(page.durable, number)


def name(content):
    if not any(content):
        return "zeroes"
    whole = content[:8] * (PAGE // 8) == content
    return content[:8].hex() + ("" if whole else " (torn)")


def names(contents):
    return sorted(name(content) for content in contents)


class Server:
    """The cache's server."""

    def __init__(self, program, pool, path):
        self.program, self.pool, self.path = program, pool, path
        self.log = open(pool + ".log", "ab")
        self.process = None

    def start(self, volume):
        self.process = subprocess.Popen(
            [self.program, "serve", self.pool, "--nbd", f"unix:{self.path}"]
            + ["--reconnect-timeout", "1s"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
        )
        # A cache that does not open is never said to be ready.
        lines = select.poll()
        lines.register(self.process.stdout, select.POLLIN)
        for _ in MODES:
            if not lines.poll(30_000):
                raise NotServed("a cache is not ready")
            line = self.process.stdout.readline().decode()
            if not line.startswith("ready: "):
                raise NotServed(f"the server did not become ready: {line!r}")
        return f"nbd+unix:///{volume}?socket={self.path}"

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def verify(uri, pages, allowed):
    """Every page is one of those that `allowed` says; it is what it is from now on."""
    connection = connect(uri)
    for at, page in enumerate(pages):
        found = bytes(once_well(lambda at=at: connection.pread(PAGE, at * PAGE)))
        if found not in allowed(page):
            raise WrongContents(f"page {at} is {name(found)}, not {names(allowed(page))}")
        page.changes, page.durable = [(found, True)], 0
    # From here on what was found is durable.
    once_well(connection.flush)


def once_well(request):
    """What a request gives once the cache has noticed that its backing device is well again."""
    until = time.monotonic() + 30
    while True:
        try:
            return request()
        except nbd.Error as error:
            if time.monotonic() > until:
                raise Failed(f"a cache whose backing device is well: {error}") from None
            time.sleep(0.1)


def connect(uri):
    until = time.monotonic() + 30
    while True:
        try:
            connection = nbd.NBD()
            connection.connect_uri(uri)
            return connection
        except nbd.Error:
            if time.monotonic() > until:
                raise NotServed("nobody can connect") from None
            time.sleep(0.1)


def inflict(backing, fault, rng):
    """One fault, for a while; afterwards the backing device is well."""
    if fault == "hang":
        backing.goes_on.clear()
        time.sleep(rng.uniform(0.3, 2.0))
        backing.goes_on.set()
    elif fault in ("power", "away"):
        backing.stop()
        backing.cut_power()
        time.sleep(rng.uniform(0.1, 0.5) if fault == "power" else 1.5)
        backing.start()
    else:
        backing.fault = fault
        time.sleep(rng.uniform(0.2, 1.0))
        backing.fault = None


def one_round(server, backing, volume, pages, rng, fault, is_killed):
    uri = server.start(volume)
    load = Load(pages, rng.getrandbits(32))
    connect(uri)
    threads = load.run(uri, rng.uniform(0.4, 1.2), lambda: inflict(backing, fault, rng))
    if server.process.poll() is not None:
        raise Failed(f"the server ended by itself, with status {server.process.returncode}")
    if is_killed:
        load.is_killed = True
        server.kill()
    load.stopping.set()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            raise Failed("a client hangs although the backing device is well")
    if load.failure is not None:
        raise load.failure
    if CRASHES:
        raise Failed(f"a thread of this test failed: {CRASHES[0]}")
    if is_killed:
        backing.cut_power()
        uri = server.start(volume)
        verify(uri, pages, Page.after_crash)
    else:
        verify(uri, pages, Page.shown)
    server.kill()
    return load.counts


def detach(program, pool, volume):
    done = subprocess.run(
        [program, "volume", "detach", pool, volume], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotServed(f"{volume} does not detach: {done.stderr}")


def is_noticed(failure, log):
    """Returns true if the failure is one that a backing device which lied about flushes must lead to: wrong contents,
    or a cache that refuses its backing device because it has other contents than the cache."""
    if isinstance(failure, WrongContents):
        return True
    with open(log, errors="replace") as said:
        return isinstance(failure, NotServed) and REFUSAL in str(failure) + said.read()


def find_program():
    program = os.environ.get("EVERBYTE")
    if program is None:
        top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        build = ["cargo", "build", "--quiet", "--release", "-p", "everbyte"]
        subprocess.run(build, cwd=top, check=True)
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(top, "target"))
        program = os.path.join(target, "release", "everbyte")
    return program


def main():
    parser = argparse.ArgumentParser(description="a backing device that fails under load")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--plant", action="store_true")
    options = parser.parse_args()
    run = os.environ.get("EVERBYTE_E2E_RUN", str(os.getpid()))
    folder = tempfile.mkdtemp(prefix=f"everbyte-e2e.{run}.", dir="/dev/shm")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    threading.excepthook = lambda crash: CRASHES.append(repr(crash.exc_value))
    program, rng = find_program(), random.Random(options.seed)
    pool = os.path.join(folder, "pool")
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([program, "pool", "create", pool, "--size", "64M"], **quiet)
    server = Server(program, pool, os.path.join(folder, "nbd"))
    atexit.register(server.kill)
    backings, pages = {}, {}
    for mode in MODES:
        backing = Backing(os.path.join(folder, mode + ".backing"))
        backing.start()
        backing.lies = options.plant
        uri = f"nbd+unix:///?socket={backing.path}"
        create = [program, "volume", "create", pool, mode, "--kind", "cache", "--backing", uri]
        subprocess.run(create + ["--mode", mode, "--scm", "512K", "--dram", "256K"], **quiet)
        backings[mode], pages[mode] = backing, [Page(bytes(PAGE)) for _ in range(PAGES)]
    totals = {}
    try:
        for at in range(options.rounds):
            mode, fault = MODES[at % len(MODES)], FAULTS[at % len(FAULTS)]
            # One in three: the second of the first three, the third of the next, then the first.
            is_killed = at % len(MODES) == (at // len(MODES) + 1) % len(MODES)
            counts = one_round(
                server, backings[mode], mode, pages[mode], rng, fault, is_killed
            )
            told = " and kill -9" if is_killed else ""
            shown = ", ".join(f"{count} {what}" for what, count in counts.items())
            print(f"round {at + 1}: {mode}, {fault}{told}: {shown}", flush=True)
            for what, count in counts.items():
                totals[what] = totals.get(what, 0) + count
        if totals["flushes"] == 0 or sum(backing.told for backing in backings.values()) == 0:
            raise Failed("the rounds were too short to prove anything")
        for mode in MODES:
            detach(program, pool, mode)
            for at, page in enumerate(pages[mode]):
                found = bytes(backings[mode].durable[at * PAGE : (at + 1) * PAGE])
                if found not in page.shown():
                    raise WrongContents(f"detached, page {at} of {mode} is {name(found)}")
    except Failed as failure:
        if options.plant and is_noticed(failure, server.log.name):
            print(f"ok - failing-backing: a flush that was a lie is found: {failure}")
            return 0
        print(f"FAILED - failing-backing: seed {options.seed}: {failure}", file=sys.stderr)
        with open(server.log.name, errors="replace") as log:
            sys.stderr.write(log.read()[-3000:])
        return 1
    if options.plant:
        print(f"FAILED - failing-backing: seed {options.seed}: no lie was found", file=sys.stderr)
        return 1
    print(
        f"ok - failing-backing: {options.rounds} rounds of {', '.join(FAULTS)}, "
        f"{totals['errors']} errors, no lie, seed {options.seed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
