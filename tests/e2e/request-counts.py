#!/usr/bin/python3
"""Counts of what a request does that depend on no clock: they are as request-counts.json has them.

Valgrind runs the example `requests` of the crate `everbyte`. Of each kind of request to a block volume, and of
hits of a cache, are counted, by the request and exactly:

  instructions   all of them, by callgrind, as for a processor with AVX2
  locked         those that lock a line of memory, by their addresses
  shared lines   lines that a request writes and that another thread's requests write as well, to blocks of
                 its own, by lackey's trace of memory; and the times that it does

Fails where a count is beyond its limit by more than a fiftieth, or where instructions are so much fewer that
the limit is out of date.

usage: request-counts.py [--print] [--program PATH]

--print      only print what is counted, as a table
--program    the example, if it is built already
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
LINE = 64
FEW, MANY = 32, 96
# Fewer hits than a cache collects before its policy hears of them: what the policy stores to then is not counted.
TRACED = 32
SLACK = 1 / 50

# Kinds, and what a request takes: instructions, those that lock a line, stores to shared lines.
COUNTS = os.path.join(TOP, "tests", "e2e", "request-counts.json")
with open(COUNTS, encoding="utf-8") as counts:
    LIMITS = json.load(counts)


def build():
    """Returns the path of the example."""
    command = ["cargo", "build", "--quiet", "--release", "-p", "everbyte",
               "--example", "requests"]
    subprocess.run(command, cwd=TOP, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target"))
    return os.path.join(target, "release", "examples", "requests")


def locked_addresses(program):
    """The addresses of the instructions of the program that lock a line."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", program]
    found = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        for line in listing.stdout:
            address, _, rest = line.partition(":\t")
            # An exchange with memory locks without being told to.
            if rest.startswith("lock ") or (rest.startswith("xchg") and "(" in rest):
                found.add(int(address, 16))
    if not found:
        sys.exit("no instruction of the program locks anything")
    return found


def profile(program, kind, count, folder):
    """Times that each instruction was executed while requests were made, by object and address."""
    out = os.path.join(folder, f"{kind}-{count}")
    command = ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no",
               "--compress-strings=no", "--collect-atstart=no",
               "--toggle-collect=*make_requests*", f"--callgrind-out-file={out}",
               program, kind, str(count), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    executed, name, is_call = {}, "", False
    with open(out, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("ob="):
                name = line[3:].strip()
            elif line.startswith("calls="):
                is_call = True
            elif line.startswith("0x"):
                # The line after a call tells what was executed within it, which is told elsewhere.
                if not is_call:
                    address, _, times = line.split()
                    place = (name, int(address, 16))
                    executed[place] = executed.get(place, 0) + int(times)
                is_call = False
    return executed


def executed_by(program, kind, locked, folder):
    """Instructions and locked instructions of a request."""
    sums = []
    for count in (FEW, MANY):
        executed = profile(program, kind, count, folder)
        own = {at: times for (name, at), times in executed.items()
               if os.path.realpath(name) == os.path.realpath(program)}
        sums.append((sum(executed.values()),
                     sum(times for at, times in own.items() if at in locked)))
    # Two turns each. What is done once is the same in both.
    requests = 2 * (MANY - FEW)
    return [(many - few) / requests for few, many in zip(*sums)]


def shared_stores(program):
    """By kind: stores of a request to lines that both of two threads store to."""
    kinds = list(LIMITS)
    command = (f"valgrind --tool=lackey --trace-mem=yes --log-fd=1 '{program}' {','.join(kinds)} {TRACED} 2 |"
               " grep -a -e '^ [SM]' -e '^mark'")
    mark, marks, stores = None, 0, []
    with subprocess.Popen(["bash", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, text=True) as trace:
        for line in trace.stdout:
            if line.startswith("mark "):
                mark = int(line.split()[1], 16)
                continue
            address, size = line[3:].split(",")
            address = int(address, 16)
            if address == mark:
                marks += 1
                stores.append({})
            elif marks % 2 == 1:
                for place in range(address // LINE, (address + int(size) - 1) // LINE + 1):
                    stores[-1][place] = stores[-1].get(place, 0) + 1
    if trace.returncode != 0 or marks != 4 * len(kinds):
        sys.exit(f"{command}: ended with {trace.returncode} after {marks} marks")
    turns = stores[::2]
    found = {}
    for kind, first, second in zip(kinds, turns[::2], turns[1::2]):
        found[kind] = sum(first[line] for line in first.keys() & second.keys()) / TRACED
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--program")
    arguments = parser.parse_args()
    program = arguments.program or build()
    locked = locked_addresses(program)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as threads:
        shared = threads.submit(shared_stores, program)
        counted = {kind: threads.submit(executed_by, program, kind, locked, folder)
                   for kind in LIMITS}
        for kind, executed in counted.items():
            found = (*executed.result(), shared.result()[kind])
            if arguments.print:
                print(f"| {kind} | {found[0]:.1f} | {found[1]:.2f} | {found[2]:.2f} |")
                continue
            names = ("instructions", "locked instructions", "stores to shared lines")
            for name, count, limit in zip(names, found, LIMITS[kind].values()):
                is_stale = name == "instructions" and count < limit * (1 - SLACK)
                if count > limit * (1 + SLACK) or is_stale:
                    print(f"FAILED - a {kind} takes {count:.2f} {name}, not {limit}", file=sys.stderr)
                    failed += 1
                else:
                    print(f"ok - counts: a {kind} takes {count:.2f} {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
