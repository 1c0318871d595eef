#!/usr/bin/python3
"""Root's commands next to an unprivileged user who replaces files, and with a server that lies.

Swaps: an unprivileged user exchanges files, links and directories by renameat2 all the time, while
root copies a tree into that user's directory and out of it. In each round:

- nothing outside of the target is created, changed or given other permissions;
- no byte of a file that root alone may read gets into the pool;
- no command hangs, panics or is killed.

Lies: the unprivileged user owns a pool and runs a server of its own, which forwards requests to a real
server and changes one field of one answer, each field in turn. Root's commands end with an error or
with an answer, and never write outside of their target.

usage: adversary.py [--rounds N] [--seed N]
"""

import argparse
import atexit
import copy
import ctypes
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

EVERBYTE = os.environ["EVERBYTE"]
USER = 65534
MARK = b"FOR-ROOT-ALONE-"
TIME_MAX = 60
RENAME_EXCHANGE = 2
AT_FDCWD = -100
LIBC = ctypes.CDLL(None, use_errno=True)
ENTRY_TARGET = "t" * 4000


def ok(text):
    print(f"ok - adversary: {text}", flush=True)


def fail(text):
    print(f"FAILED - adversary: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def exchange(one, other):
    done = LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return done == 0


def run(*arguments, allowed=(0, 1), environment=None):
    """Runs a command of root's, which must end by itself."""
    try:
        done = subprocess.run(
            [EVERBYTE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=TIME_MAX,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        fail(f"{arguments} does not end")
    if done.returncode not in allowed:
        fail(f"{arguments}: status {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done


def good(*arguments):
    return run(*arguments, allowed=(0,))


class Attackers:
    """Processes of the unprivileged user, each of which repeats a step until they are ended."""

    def __init__(self, *steps):
        self.pids = []
        for step in steps:
            pid = os.fork()
            if pid == 0:
                try:
                    os.setgroups([])
                    os.setresgid(USER, USER, USER)
                    os.setresuid(USER, USER, USER)
                    while True:
                        step()
                finally:
                    os._exit(1)
            self.pids.append(pid)

    def end(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def swap(one, other):
    """A step that exchanges two names, whatever they lead to now."""

    def step():
        exchange(one, other)
        exchange(one, other)

    return step


def swap_temporary(folder, links):
    """A step that exchanges each temporary file of a copy for a link."""

    def step():
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            if name.startswith(".tmp"):
                exchange(os.path.join(folder, name), random.choice(links))

    return step


def state(folder):
    """Every name below a folder with its attributes and bytes."""
    found = []
    for at, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(at, name)
            status = os.lstat(path)
            with_bytes = None
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    with_bytes = file.read()
            found.append(
                (path, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, with_bytes)
            )
    return sorted(found)


def write(path, data, mode=0o600, owner=0):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
    os.chown(path, owner, owner)


class Place:
    """Directories of root and of the unprivileged user, and a pool of root's."""

    def __init__(self):
        self.top = tempfile.mkdtemp(prefix="everbyte-e2e.", dir="/dev/shm")
        atexit.register(shutil.rmtree, self.top, ignore_errors=True)
        os.chmod(self.top, 0o711)
        self.secret = os.path.join(self.top, "secret")
        self.home = os.path.join(self.top, "home")
        self.pool = os.path.join(self.top, "pool")
        os.mkdir(self.secret, 0o700)
        os.mkdir(self.home, 0o755)
        os.chown(self.home, USER, USER)
        for number in range(8):
            write(os.path.join(self.secret, f"f{number}"), MARK + b"%d" % number * 100)
        good("pool", "create", self.pool, "--size", "128M")
        good("volume", "create", self.pool, "files", "--kind", "fs", "--size", "100M")
        self.secrets = state(self.secret)

    def own(self, *names):
        return os.path.join(self.home, *names)

    def make(self, *names, link=None, directory=False, data=b"public"):
        """Makes a file, link or directory of the unprivileged user's."""
        path = self.own(*names)
        if link is not None:
            os.symlink(link, path)
            os.lchown(path, USER, USER)
        elif directory:
            os.mkdir(path)
            os.chown(path, USER, USER)
        else:
            write(path, data, 0o644, USER)
        return path

    def check_secrets(self, what):
        if state(self.secret) != self.secrets:
            fail(f"{what}: the directory of root alone has changed")

    def clear(self):
        for name in os.listdir(self.home):
            path = self.own(name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def swaps_of_get(place, rounds):
    """Root copies out of a pool into a directory in which names change."""
    tree = os.path.join(place.top, "tree")
    for folder in ["", "d", "d/e"]:
        os.mkdir(os.path.join(tree, folder))
        for number in range(6):
            write(os.path.join(tree, folder, f"f{number}"), b"copied" * 2000, 0o777)
    write(os.path.join(tree, "big"), b"copied" * 300_000, 0o777)
    os.symlink("f0", os.path.join(tree, "l"))
    good("fs", "put", "-rp", tree, f"{place.pool}/files:/tree")
    source = f"{place.pool}/files:/tree"
    statuses = {0: 0, 1: 0}
    per_kind = rounds // 4
    for kind in range(4):
        place.clear()
        place.make("out", directory=True)
        for names in [("tree",), ("tree", "d"), ("tree", "d", "e")]:
            place.make("out", *names, directory=True)
        for name in ["to-secret", "to-secret-too"]:
            place.make(name, link=place.secret)
        links = [place.make(f"to-f{n}", link=os.path.join(place.secret, f"f{n}")) for n in range(4)]
        steps = [
            [swap(place.own("out", "tree", "d"), place.own("to-secret"))],
            [
                swap_temporary(place.own("out"), links),
                swap_temporary(place.own("out", "tree"), links),
                swap_temporary(place.own("out", "tree", "d"), links),
            ],
            [swap(place.own("out"), place.own("to-secret"))],
            [
                swap(place.own("out", "tree", "d", "e"), place.own("to-secret")),
                swap(place.own("out", "tree", "f1"), links[0]),
                swap(place.own("out", "tree", "big"), links[1]),
            ],
        ][kind]
        attackers = Attackers(*steps)
        try:
            for number in range(per_kind):
                options = ["-rp", "-r"][number % 2]
                if kind == 1 and number % 3 == 0:
                    line = ("fs", "get", "-p", f"{source}/big", place.own("out", "big"))
                elif kind == 2 and number % 3 == 0:
                    line = ("fs", "get", "-p", f"{source}/big", place.own("out"))
                else:
                    line = ("fs", "get", options, source, place.own("out"))
                statuses[run(*line).returncode] += 1
                if number % 5 == 0:
                    place.check_secrets(f"get, kind {kind}")
        finally:
            attackers.end()
        place.check_secrets(f"get, kind {kind}")
        shutil.rmtree(place.own("out"), ignore_errors=True)
    if statuses[0] == 0 or statuses[1] == 0:
        fail(f"the swaps of get never or always hit: {statuses}")
    ok(f"{per_kind * 4} copies into a directory whose names change: {statuses}")


def swaps_of_put(place, rounds):
    """Root copies a directory in which names change into a pool."""
    statuses = {0: 0, 1: 0}
    per_kind = rounds // 4
    for kind in range(4):
        place.clear()
        place.make("src", directory=True)
        place.make("src", "d", directory=True)
        for number in range(8):
            place.make("src", f"f{number}")
            place.make("src", "d", f"f{number}")
        place.make("to-secret", link=place.secret)
        links = [place.make(f"to-f{n}", link=os.path.join(place.secret, f"f{n}")) for n in range(8)]
        os.mkfifo(place.own("pipe"))
        os.chown(place.own("pipe"), USER, USER)
        steps = [
            [swap(place.own("src", f"f{number}"), links[number]) for number in (2, 6)],
            [swap(place.own("src", "d"), place.own("to-secret"))],
            [swap(place.own("src", "f3"), place.own("pipe"))],
            [swap(place.own("src"), place.own("to-secret"))],
        ][kind]
        attackers = Attackers(*steps)
        try:
            for number in range(per_kind):
                if kind == 0 and number % 4 == 0:
                    line = ("fs", "put", place.own("src", "f2"), f"{place.pool}/files:/one")
                elif kind == 3 and number % 2 == 0:
                    line = ("fs", "put", place.own("src", "f2"), f"{place.pool}/files:/two")
                else:
                    line = ("fs", "put", "-r", place.own("src"), f"{place.pool}/files:/copy{kind}")
                statuses[run(*line).returncode] += 1
        finally:
            attackers.end()
    with open(place.pool, "rb") as file:
        if MARK in file.read():
            fail("the pool has bytes of a file that root alone may read")
    if statuses[0] == 0 or statuses[1] == 0:
        fail(f"the swaps of put never or always hit: {statuses}")
    place.check_secrets("put")
    ok(f"{per_kind * 4} copies of a directory whose names change: {statuses}")


LIES = [None, -1, 2**64 - 1, "../../../evil", "n\0l", []]
FEW_LIES = [2**64 - 1, "../../../evil"]


def paths_of(value, at=()):
    """Places of all fields in an answer."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield at + (key,)
            yield from paths_of(inner, at + (key,))
    elif isinstance(value, list) and value:
        yield from paths_of(value[0], at + (0,))


def changed(answer, path, lie):
    answer = copy.deepcopy(answer)
    inner = answer
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = lie
    return answer


class Liar(threading.Thread):
    """A server of the unprivileged user's, between root's commands and a real server."""

    def __init__(self, pool, real):
        super().__init__(daemon=True)
        self.real = real
        # The answers of the last command, and the lie of the next: its answer, place and value.
        self.answers = []
        self.lie = None
        # Instead of an answer.
        self.endless = False
        os.setegid(USER)
        os.seteuid(USER)
        try:
            self.lock = open(pool, "wb")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(pool + ".sock")
            os.chmod(pool + ".sock", 0o666)
            self.listener.listen(16)
        finally:
            os.seteuid(0)
            os.setegid(0)

    def run(self):
        while True:
            stream, _ = self.listener.accept()
            try:
                self.serve(stream)
            except (OSError, ValueError):
                pass
            stream.close()

    def serve(self, stream):
        real = socket.socket(socket.AF_UNIX)
        real.connect(self.real)
        ours, theirs = stream.makefile("rb"), real.makefile("rb")
        while line := ours.readline():
            request = json.loads(line)["request"]
            inner = request.get("with", {}).get("request", {}) if isinstance(request, dict) else {}
            attached = b""
            if isinstance(inner, dict) and inner.get("do") == "write":
                attached = ours.read(inner["with"]["len"])
            if self.endless and isinstance(inner, dict) and inner.get("do") == "list":
                stream.sendall(self.listing(inner["with"]["place"]))
                continue
            real.sendall(line + attached)
            answer = json.loads(theirs.readline())
            response = answer.get("response")
            attached = b""
            if isinstance(response, dict) and response.get("answer") == "file-bytes":
                attached = theirs.read(response["with"]["len"])
            number = len(self.answers)
            self.answers.append(answer)
            if self.lie is not None and self.lie[0] == number:
                try:
                    answer = changed(answer, self.lie[1], self.lie[2])
                except (KeyError, IndexError, TypeError):
                    pass
            stream.sendall(json.dumps(answer).encode() + b"\n" + attached)
        real.close()

    def listing(self, place):
        """A part of a directory without an end."""
        file = dict(
            inode=place + 2, generation=1, kind="symlink", permissions=0o777, links=1, uid=0, gid=0,
            size_bytes=4000, used_bytes=0, device=0, accessed_ns=0, modified_ns=0, changed_ns=0,
            created_ns=0, target=ENTRY_TARGET,
        )
        head = json.dumps(file)[1:]
        entries = ",".join(f'{{"name":"{place + n}",{head}' for n in range(3000))
        text = f'{{"entries":[{entries}],"next":{place + 3000}}}'
        answer = f'{{"version":1,"response":{{"answer":"file-entries","with":{text}}}}}\n'
        return answer.encode()


def lies(place):
    """Each field of each answer is changed."""
    real = os.path.join(place.top, "real")
    good("pool", "create", real, "--size", "64M")
    good("volume", "create", real, "files", "--kind", "fs", "--size", "16M")
    good("volume", "create", real, "disk", "--size", "8M")
    tree = os.path.join(place.top, "lied-about")
    os.mkdir(tree)
    os.mkdir(os.path.join(tree, "d"))
    write(os.path.join(tree, "d", "c"), b"three")
    write(os.path.join(tree, "a"), b"one", 0o4755)
    os.symlink("a", os.path.join(tree, "l"))
    good("fs", "put", "-rp", tree, f"{real}/files:/t")
    server = subprocess.Popen(
        [EVERBYTE, "serve", real], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    atexit.register(server.kill)
    deadline = time.monotonic() + 20
    while not os.path.exists(real + ".sock") and time.monotonic() < deadline:
        time.sleep(0.02)
    place.clear()
    fake = place.own("fake")
    liar = Liar(fake, real + ".sock")
    liar.start()
    into = os.path.join(place.top, "into")
    new = os.path.join(place.top, "new")
    write(new, b"new")
    commands = [
        (LIES, ("fs", "get", "-rp", f"{fake}/files:/", f"{into}/sub")),
        (FEW_LIES, ("fs", "get", "-p", f"{fake}/files:/t/a", f"{into}/sub/a")),
        (FEW_LIES, ("fs", "put", new, f"{fake}/files:/new")),
        (FEW_LIES, ("fs", "tree", "--json", f"{fake}/files")),
        (FEW_LIES, ("fs", "ls", "-l", f"{fake}/files:/t/d")),
        (FEW_LIES, ("fs", "stat", f"{fake}/files:/t/l")),
        (FEW_LIES, ("fs", "cat", f"{fake}/files:/t/a")),
        (FEW_LIES, ("volume", "list", fake)),
        (FEW_LIES, ("pool", "info", fake)),
        (FEW_LIES, ("pool", "check", fake)),
        (FEW_LIES, ("pool", "scrub", fake)),
        (FEW_LIES, ("client", "list", fake)),
    ]
    told = 0
    outside = None
    for wrongs, line in commands:
        os.makedirs(f"{into}/sub", exist_ok=True)
        liar.answers, liar.lie = [], None
        run(*line)
        honest = list(liar.answers)
        if not honest:
            fail(f"{line} asked nothing")
        outside = outside or outer_state(place, into)
        seen = set()
        for number, answer in enumerate(honest):
            for path in paths_of(answer):
                # Each sort of answer once.
                kind = ((answer.get("response") or {}).get("answer"), path)
                if kind in seen:
                    continue
                seen.add(kind)
                for lie in wrongs:
                    liar.answers, liar.lie = [], (number, path, lie)
                    run(*line)
                    told += 1
        if outer_state(place, into) != outside:
            fail(f"{line} has written outside of its target")
        shutil.rmtree(into)
    liar.lie, liar.endless = None, True
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    os.makedirs(f"{into}/sub")
    run("fs", "ls", f"{fake}/files:/", allowed=(1,))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if memory > max(before, 2 << 20):
        fail(f"an endless listing took {memory} KiB")
    server.terminate()
    server.wait()
    ok(f"{told} lies of a server, one in each field of its answers")
    ok(f"an endless listing ends with an error after {memory >> 10} MiB")


def outer_state(place, into):
    """Names that no command may change, without those of the target."""
    names = [os.path.join(place.top, name) for name in os.listdir(place.top)]
    names += [os.path.join(into, name) for name in os.listdir(into)]
    return sorted(names) + state(place.secret)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        fail("only root can run commands next to another user")
    random.seed(arguments.seed)
    os.umask(0o022)
    place = Place()
    swaps_of_get(place, arguments.rounds // 2)
    swaps_of_put(place, arguments.rounds // 2)
    lies(place)


main()
