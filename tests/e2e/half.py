#!/usr/bin/python3
"""Runs a command, and the same by `everbyte run` with half of the memory that it took, and compares.

usage: half.py POOL/VOLUME LABEL COMMAND...

Both get standard input, if it is a file, from its start. What they write to standard output must be the same; the
second must have paged. EVERBYTE is the program. Prints "ok - ..." or ends with status 1.
"""

import os
import re
import subprocess
import sys
import tempfile

PAGED = re.compile(r"in (\d+) MiB, out (\d+) MiB")


def run(command, errors):
    """What the command says, and the most memory that one of its processes had, in KiB."""
    if os.path.isfile("/dev/stdin"):
        os.lseek(0, 0, os.SEEK_SET)
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return process.returncode, out.read(), used.ru_maxrss


def main():
    volume, label, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    status, expected, most_kib = run(command, None)
    if status or not expected:
        sys.exit(f"{label} fails by itself, with status {status}")
    half = f"{most_kib // 2}K"
    options = ["--stats", "--child-stats", "--dram", half, "--pool", volume]
    paged = [os.environ["EVERBYTE"], "run", *options, "--", *command]
    with tempfile.TemporaryFile("w+") as errors:
        status, found, _ = run(paged, errors)
        errors.seek(0)
        said = errors.read()
    if status or found != expected:
        sys.exit(f"{label} with {half} of DRAM: status {status}, {found[-200:]!r}\n{said[-2000:]}")
    moved = [tuple(map(int, found)) for found in PAGED.findall(said)]
    back, out = max(moved, default=(0, 0), key=sum)
    if out == 0:
        sys.exit(f"{label} with {half} of DRAM: nothing was paged\n{said[-2000:]}")
    print(f"ok - programs: {label} has the right result with {most_kib >> 11} of {most_kib >> 10} MiB "
          f"({out} MiB out, {back} MiB in)")


if __name__ == "__main__":
    main()
