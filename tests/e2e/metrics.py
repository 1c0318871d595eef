#!/usr/bin/python3
"""Metrics of a server under load, for a scraper and for a terminal.

The page is read over HTTP while a client works, and its counts only grow. Slow clients hold
connections. `everbyte top` runs in a terminal: this script interprets its output as a terminal of
24 lines does, and presses q.

usage: metrics.py [--show]

--show    print the screen
"""

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.dont_write_bytecode = True

import nbd

ROWS, COLUMNS = 24, 100
WAIT_MAX_S = 60
HERE = os.path.dirname(os.path.abspath(__file__))
EVERBYTE = os.environ.get("EVERBYTE", os.path.join(HERE, "../../target/release/everbyte"))


class Terminal:
    """The screen of a terminal with the few sequences that `top` uses."""

    def __init__(self):
        self.rows, self.row, self.column = [""] * ROWS, 0, 0
        self.is_second, self.has_cursor, self.left = False, True, ""

    def receive(self, text):
        text, self.left = self.left + text, ""
        while text:
            if text[0] == "\x1b":
                found = re.match(r"\x1b\[(\??)(\d*)([A-Za-z])", text)
                if not found:
                    self.left = text
                    return
                self.control(*found.groups())
                text = text[found.end():]
                continue
            self.put(text[0])
            text = text[1:]

    def control(self, private, number, command):
        if private:
            assert (number, command) in {("1049", "h"), ("1049", "l"), ("25", "h"), ("25", "l")}
            if number == "1049":
                self.is_second = command == "h"
            else:
                self.has_cursor = command == "h"
        elif command == "H":
            self.row, self.column = 0, 0
        elif command == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif command == "J":
            self.control("", "", "K")
            self.rows[self.row + 1:] = [""] * (ROWS - self.row - 1)
        else:
            raise AssertionError(f"unknown sequence {number}{command}")

    def put(self, char):
        if char == "\n":
            self.row += 1
            assert self.row < ROWS, "the screen scrolls"
        elif char == "\r":
            self.column = 0
        else:
            assert self.column < COLUMNS, f"a line is too long: {self.rows[self.row]!r}"
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + char + line[self.column + 1:]
            self.column += 1


def run(*arguments):
    subprocess.run([EVERBYTE, *arguments], check=True, stdout=subprocess.DEVNULL)


def scrape(url):
    with urllib.request.urlopen(url, timeout=WAIT_MAX_S) as page:
        lines = page.read().decode().splitlines()
    assert lines[-1] == "# EOF"
    return {name: float(value) for name, value in (l.rsplit(" ", 1) for l in lines if l[0] != "#")}


def work(socket_path, is_over):
    client = nbd.NBD()
    client.connect_uri(f"nbd+unix:///disk?socket={socket_path}")
    block = 0
    while not is_over.is_set():
        client.pwrite(b"\x07" * 4096, block % 1024 * 4096)
        client.pread(4096, block % 1024 * 4096)
        block += 1
    client.shutdown()


def watch(pool):
    """The terminal with `top` in it, after its third screen and after `q`."""
    terminal, screens = Terminal(), 0
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm")
        size = f"stty rows {ROWS} columns {COLUMNS}; exec \"$0\" top \"$1\" --interval 200ms"
        os.execv("/bin/sh", ["sh", "-c", size, EVERBYTE, pool])
    deadline, shown = time.monotonic() + WAIT_MAX_S, None
    while True:
        assert time.monotonic() < deadline, "top neither shows anything nor ends"
        if not select.select([descriptor], [], [], 1)[0]:
            continue
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        terminal.receive(data.decode())
        screens += data.count(b"\x1b[J")
        if screens >= 3 and shown is None:
            assert terminal.is_second and not terminal.has_cursor
            shown = list(terminal.rows)
            os.write(descriptor, b"q")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not terminal.is_second and terminal.has_cursor, "the terminal is not restored"
    return shown


def main():
    folder = tempfile.mkdtemp(prefix="everbyte-e2e-", dir="/dev/shm")
    pool, path = f"{folder}/pool", f"{folder}/nbd.sock"
    server, worker, is_over = None, None, threading.Event()
    try:
        run("pool", "create", pool, "--size", "64M")
        run("volume", "create", pool, "disk", "--size", "16M")
        command = [EVERBYTE, "serve", pool, "--nbd", f"unix:{path}", "--metrics", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = [server.stdout.readline(), server.stdout.readline()]
        url = lines[1].split()[1]
        worker = threading.Thread(target=work, args=(path, is_over), daemon=True)
        worker.start()

        host, port = url.split("/")[2].rsplit(":", 1)
        slow = [socket.create_connection((host, int(port))) for _ in range(40)]
        for stream in slow:
            stream.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
        pages = []
        for _ in range(5):
            pages.append(scrape(url))
            time.sleep(0.1)
        for name in pages[0]:
            if name.split("{")[0].endswith(("_total", "_count", "_bucket", "_sum")):
                values = [page[name] for page in pages]
                assert values == sorted(values), (name, values)
        writes = 'everbyte_requests_total{volume="disk",face="nbd",operation="write"}'
        assert pages[-1][writes] > pages[0][writes]
        print("ok - counts of a working server grow beside slow clients", flush=True)

        shown = watch(pool)
        row = next(line for line in shown if line.startswith("disk"))
        assert int(row.split()[4]) > 0 and int(row.split()[5]) > 0, row
        assert any(line.startswith("VOLUME") for line in shown), shown
        print("ok - top shows rates in a terminal, and restores it", flush=True)
        if "--show" in sys.argv:
            print("\n".join(shown))
    finally:
        is_over.set()
        if worker:
            # A client without a server would print its failure into the log of a test that passed.
            worker.join(WAIT_MAX_S)
        if server:
            server.terminate()
            server.wait(timeout=WAIT_MAX_S)
        shutil.rmtree(folder)


main()
