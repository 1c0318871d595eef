#!/usr/bin/python3
"""The client of ledger_client.py as a program: says "writing", writes to an export until it is told to end
or its server is gone, and judges later what the export holds. Between the two the ledger lies in a file.

usage: ledger_writer.py write URI LEDGER SIZE     until SIGTERM, or until the server is gone
       ledger_writer.py verify URI LEDGER pages|requests
                                                  prints how many durable requests it checked

`pages` is the promise of a cache: each block by itself. `requests` is that of a block volume.
"""

import os
import pickle
import random
import signal
import sys

sys.dont_write_bytecode = True

from ledger import Ledger, judge, judge_blocks
from ledger_client import Client, Failed, read_all


def load(path, size):
    if os.path.exists(path):
        with open(path, "rb") as file:
            return pickle.load(file)
    return Ledger(size), 0


def save(path, state):
    with open(path + ".part", "wb") as file:
        pickle.dump(state, file)
    os.rename(path + ".part", path)


def write(uri, path, size):
    ledger, number = load(path, size)
    client = Client(ledger, random.Random(), uri, number)
    signal.signal(signal.SIGTERM, lambda *_: client.aim.set())

    def leave():
        while client.busy:
            for connection in client.connections:
                connection.poll(10)
        for connection in client.connections:
            connection.shutdown()

    print("writing", flush=True)
    client.run(leave)
    # The interpreter gives signals that it handles their defaults back before it ends.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    save(path, (ledger, client.number))


def verify(uri, path, promise):
    ledger, number = load(path, 0)
    observed = read_all(uri, ledger.size)
    faults = judge(ledger, observed) if promise == "requests" else judge_blocks(ledger, observed)[0]
    if faults:
        shown = "\n  ".join(faults[:20])
        raise Failed(f"{len(faults)} faults:\n  {shown}")
    print(sum(request.durable for request in ledger.requests.values()))
    ledger.settle(observed)
    save(path, (ledger, number))


def main():
    action, uri, path, last = sys.argv[1:]
    try:
        if action == "write":
            write(uri, path, int(last))
        else:
            verify(uri, path, last)
    except Failed as failure:
        sys.exit(f"{uri}: {failure}")


if __name__ == "__main__":
    main()
