"""`everbyte serve` on the host, for guests that reach it through their network.

Owns a pool in a folder of the test's, and at most one server of it.
"""

import subprocess
import threading

from machine import Failed, run, tail

READY_S = 20


class Server:
    """`everbyte serve` on the host, with a pool of its own."""

    def __init__(self, program, folder, size):
        self.program, self.pool = program, f"{folder}/pool"
        self.log = f"{folder}/host-server.log"
        self.process = None
        run(program, "pool", "create", self.pool, "--size", size)

    def create(self, name, *options):
        """Makes a volume."""
        run(self.program, "volume", "create", self.pool, name, *options)

    def start(self):
        """Starts it; returns its port."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                # Only a FLUSH makes anything durable soon.
                [self.program, "serve", self.pool, "--nbd", "tcp:127.0.0.1:0"]
                + ["--checkpoint-interval", "600s"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        watchdog = threading.Timer(READY_S, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline().decode()
        watchdog.cancel()
        if not line.startswith("ready: nbd://127.0.0.1:"):
            raise Failed(f"the server did not become ready\n{tail(self.log)}")
        return line.split(":")[3].split("/")[0]

    def stop(self):
        """Ends it cleanly."""
        self.process.terminate()
        if self.process.wait(60) != 0:
            status = self.process.returncode
            raise Failed(f"the server ended with status {status}\n{tail(self.log)}")
        self.kill()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None
