"""Fills more memory than there is, and finds every byte of it again, in another order each time.

usage: fill_memory.py MIB PASSES FILE

With 0 passes it goes on until it is killed. FILE appears once pages have been written to swap. Says at
the end how many pages went out and came in, and the milliseconds that the passes took.
"""

import mmap
import random
import struct
import sys
import time

PAGE = 4096
WORDS = PAGE // 8
# Pages that are visited in their order; runs of them are not.
RUN = 64


def page(number, turn):
    """The bytes of a page: no two pages have the same, nor has one in two turns."""
    return struct.pack("<Q", (number << 20 | turn) * 0x9E3779B97F4A7C15 % 2**64) * WORDS


def counted(name):
    with open("/proc/vmstat", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + " "))


def main():
    mib, passes, swapping = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    pages = mib * 256
    memory = mmap.mmap(-1, pages * PAGE)
    runs = list(range(0, pages, RUN))
    for number in range(pages):
        memory[number * PAGE : (number + 1) * PAGE] = page(number, 0)
        if number == pages - 1 and counted("pswpout") == 0:
            sys.exit("nothing was swapped out")
    with open(swapping, "w", encoding="ascii"):
        pass
    turn, started = 0, time.monotonic()
    while passes == 0 or turn < passes:
        random.shuffle(runs)
        for number in (first + nth for first in runs for nth in range(RUN)):
            at = number * PAGE
            if memory[at : at + PAGE] != page(number, turn):
                sys.exit(f"page {number} is wrong in turn {turn}")
            memory[at : at + PAGE] = page(number, turn + 1)
        turn += 1
    print(counted("pswpout"), counted("pswpin"), round((time.monotonic() - started) * 1000))


if __name__ == "__main__":
    main()
