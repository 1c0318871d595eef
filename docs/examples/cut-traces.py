#!/usr/bin/env python3
"""Cuts real traces into windows: by time, by place, by operation, by file.

usage: cut-traces.py FROM TO

FROM has cloudPhysicsIO.vscsi, sqlite_wal.csv, fio_small.iolog, mqsim_tpcc-small.trace and wsrch-small.trace;
what is missing is left out. The windows of one kind have no request in common; those of different
kinds (the quarters and the halves of the same disk) do.
"""

import os
import struct
import sys

VSCSI_BYTES = 32
READS = (0x28, 0x88)


def vscsi(data, name, put):
    records = [data[at:at + VSCSI_BYTES] for at in range(0, len(data), VSCSI_BYTES)]
    fields = [struct.unpack("<IIIHHQQ", record) for record in records]
    quarter = (len(records) + 3) // 4
    for number in range(4):
        put(f"{name}-quarter{number + 1}.vscsi", b"".join(records[number * quarter:(number + 1) * quarter]))
    middle = sorted(field[5] for field in fields)[len(fields) // 2]
    windows = (("low", lambda f: f[5] < middle), ("high", lambda f: f[5] >= middle),
               ("reads", lambda f: f[3] in READS), ("writes", lambda f: f[3] not in READS))
    for window, wanted in windows:
        put(f"{name}-{window}.vscsi", b"".join(r for r, f in zip(records, fields) if wanted(f)))


def lines(data, name, suffix, put, head=lambda line: False):
    heads = [line for line in data.splitlines(True) if head(line)]
    rest = [line for line in data.splitlines(True) if not head(line)]
    middle = len(rest) // 2
    put(f"{name}-half1{suffix}", b"".join(heads + rest[:middle]))
    put(f"{name}-half2{suffix}", b"".join(heads + rest[middle:]))


def by_file(data, name, put):
    files = {}
    for line in data.splitlines(True):
        fields = line.split(b",")
        if len(fields) == 5 and fields[0].isdigit():
            files.setdefault(fields[2], []).append(line)
    largest = sorted(files, key=lambda file: -len(files[file]))[:2]
    for number, file in enumerate(largest):
        put(f"{name}-file{number + 1}.csv", b"".join(files[file]))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = sys.argv[1:]
    os.makedirs(target, exist_ok=True)

    def read(name):
        path = os.path.join(source, name)
        return open(path, "rb").read() if os.path.exists(path) else None

    def put(name, data):
        with open(os.path.join(target, name), "wb") as file:
            file.write(data)

    def fio_head(line):
        return line.startswith(b"fio version") or line.rstrip().endswith((b" add", b" open"))

    if data := read("cloudPhysicsIO.vscsi"):
        vscsi(data, "cloud", put)
    if data := read("sqlite_wal.csv"):
        lines(data, "wal", ".csv", put, lambda line: line.startswith(b"time"))
        by_file(data, "wal", put)
    if data := read("fio_small.iolog"):
        lines(data, "fio", ".iolog", put, fio_head)
    if data := read("mqsim_tpcc-small.trace"):
        lines(data, "tpcc", ".trace", put)
    if data := read("wsrch-small.trace"):
        put("wsrch-small.trace", data)


main()
