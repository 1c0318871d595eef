#!/usr/bin/python3
"""A server of others at half of its memory by `everbyte run`, loaded, with every value compared.

usage: loaded.py redis-server|memcached POOL/VOLUME KEYS SECONDS

The server is filled without a limit first, which tells how much memory it takes. Under `everbyte run`,
clients then read and store values for so long. redis-server saves in a forked child meanwhile, and is loaded by
redis-benchmark, too. EVERBYTE is the program. Prints "ok - ..." or ends with status 1.
"""

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

VALUE = 1024
CLIENTS = 2
READY_S = 30
PAGED = re.compile(r"in (\d+) MiB, out (\d+) MiB")


def value(key, turn):
    """Half of it compresses, as a rule."""
    return random.Random(key << 20 | turn).randbytes(VALUE // 2) + b"v" * (VALUE // 2)


class Connection:
    """Requests in the protocol of the server, one at a time."""

    def __init__(self, server, path):
        self.is_redis = server == "redis-server"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(path)
        self.answers = self.socket.makefile("rb")

    def line(self, request):
        self.socket.sendall(request)
        return self.answers.readline()

    def store(self, key, data):
        if self.is_redis:
            head = b"*3\r\n$3\r\nSET\r\n$12\r\nour:%08d\r\n$%d\r\n" % (key, len(data))
            expected = b"+OK\r\n"
        else:
            head = b"set our:%08d 0 0 %d\r\n" % (key, len(data))
            expected = b"STORED\r\n"
        said = self.line(head + data + b"\r\n")
        if said != expected:
            raise AssertionError(f"key {key} cannot be stored: {said!r}")

    def load(self, key):
        if self.is_redis:
            head = self.line(b"*2\r\n$3\r\nGET\r\n$12\r\nour:%08d\r\n" % key)
            size, end = int(head[1:]), b""
        else:
            head = self.line(b"get our:%08d\r\n" % key)
            size, end = int(head.split()[3]) if head.startswith(b"VALUE") else -1, b"END\r\n"
        if size < 0:
            return None
        data = self.answers.read(size + 2)[:-2]
        if self.answers.read(len(end)) != end:
            raise AssertionError(f"key {key} has no end")
        return data

    def say(self, *words):
        """A command of redis-server's with a plain answer."""
        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words)]
        said = self.line(b"*%d\r\n" % len(parts) + b"".join(parts))
        return self.answers.read(int(said[1:]) + 2).decode() if said[:1] == b"$" else said.decode()


class Server:
    """One that runs in a folder of its own."""

    def __init__(self, name, keys, before):
        self.name, self.folder = name, tempfile.TemporaryDirectory(prefix="everbyte-loaded.")
        self.path = os.path.join(self.folder.name, "socket")
        arguments = {
            "redis-server": ["--port", "0", "--unixsocket", self.path, "--loglevel", "warning"],
            "memcached": ["-s", self.path, "-m", str(64 + keys // 256), "-t", "2", "-u", "root"],
        }[name]
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [*before, name, *arguments], cwd=self.folder.name, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.connect()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError(f"{name} does not answer: {self.said()}") from None
                time.sleep(0.05)

    def connect(self):
        return Connection(self.name, self.path)

    def said(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


class Client(threading.Thread):
    """Stores and reads the keys that are its own, and compares what it reads."""

    def __init__(self, server, number, keys, turns):
        super().__init__()
        self.connection, self.random = server.connect(), random.Random(number)
        self.own, self.turns = range(number, keys, CLIENTS), turns
        self.times_us, self.failure, self.end = [], None, 0.0

    def run(self):
        try:
            while time.monotonic() < self.end:
                key = self.random.choice(self.own)
                is_store = self.random.random() < 0.1
                turn = self.turns.get(key, 0) + is_store
                data, started = value(key, turn), time.perf_counter()
                if is_store:
                    self.connection.store(key, data)
                    self.turns[key] = turn
                elif self.connection.load(key) != data:
                    raise AssertionError(f"key {key} has another value than what was stored")
                self.times_us.append((time.perf_counter() - started) * 1e6)
        except (AssertionError, OSError, ValueError) as failure:
            self.failure = failure


def fill(server, keys):
    connection = server.connect()
    for key in range(keys):
        connection.store(key, value(key, 0))


def load(server, keys, seconds):
    """Loads the server and returns how long each request took. Nothing of what was stored may be missing."""
    turns = {}
    clients = [Client(server, number, keys, turns) for number in range(CLIENTS)]
    for client in clients:
        client.end = time.monotonic() + seconds
        client.start()
    if server.name == "redis-server":
        command = ["redis-benchmark", "-s", server.path, "-t", "set,get", "-c", "4", "-q"]
        command += ["-r", str(keys // 10), "-n", str(keys), "-d", str(VALUE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode or "requests per second" not in done.stdout:
            raise AssertionError(f"redis-benchmark: {done.stdout[-300:]} {done.stderr[-300:]}")
    for client in clients:
        client.join()
        if client.failure is not None:
            raise AssertionError(f"{client.failure}: {server.said()}")
    connection = server.connect()
    for key in range(keys):
        if connection.load(key) != value(key, turns.get(key, 0)):
            raise AssertionError(f"key {key} has another value at the end")
    return sorted(us for client in clients for us in client.times_us)


def save(server):
    """Has redis-server save in a forked child, and waits until that is done."""
    connection = server.connect()
    connection.say("BGSAVE")
    deadline = time.monotonic() + 120
    while "rdb_bgsave_in_progress:0" not in (found := connection.say("INFO", "persistence")):
        if time.monotonic() > deadline:
            raise AssertionError(f"redis-server does not come to an end with saving: {server.said()}")
        time.sleep(0.1)
    if "rdb_last_bgsave_status:ok" not in found or not connection.say("LASTSAVE").startswith(":"):
        raise AssertionError(f"redis-server cannot save: {found} {server.said()}")


def main():
    name, volume, keys, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    server = None
    try:
        server = Server(name, keys, [])
        fill(server, keys)
        most_kib = server.resident_kib()
        server.end()
        half = f"{most_kib // 2}K"
        run = [os.environ["EVERBYTE"], "run", "--stats", "--dram", half, "--pool", volume, "--"]
        server = Server(name, keys, run)
        fill(server, keys)
        if name == "redis-server":
            save(server)
        times = load(server, keys, seconds)
        if name == "redis-server":
            save(server)
        server.end()
        back, out = max((tuple(map(int, found)) for found in PAGED.findall(server.said())), default=(0, 0))
        if out == 0:
            raise AssertionError(f"nothing was paged: {server.said()}")
    except (AssertionError, OSError, subprocess.SubprocessError) as failure:
        sys.exit(f"{name}: {failure}")
    finally:
        if server is not None:
            server.process.kill()
            server.process.wait()
    print(f"ok - programs: {name} under load has every value with {most_kib >> 11} of {most_kib >> 10} MiB "
          f"({out} MiB out, {back} MiB in; {len(times) / seconds:.0f} requests a second, p99 "
          f"{times[len(times) * 99 // 100]:.0f} us)")


if __name__ == "__main__":
    main()
