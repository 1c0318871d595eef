"""Fills a directory with a tree that has a bit of everything: thousands of small files, a few
large ones, a sparse one, overwrites in place, appends, renames and deletions.

usage: fill_tree.py DIRECTORY SEED [SMALL_FILES [LARGE_MIB]]
"""

import os
import random
import sys


def fill(top, seed, small_files, large_mib):
    rng = random.Random(seed)
    names = []
    for number in range(small_files):
        folder = os.path.join(top, f"d{number % 17}", f"e{number % 5}")
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, f"f{number}")
        with open(name, "wb") as file:
            file.write(rng.randbytes(rng.choice([0, 1, 100, 511, 512, 4095, 4096, 4097, 9000])))
        names.append(name)
    for number in range(3):
        name = os.path.join(top, f"large{number}")
        with open(name, "wb") as file:
            for _ in range(large_mib):
                file.write(rng.randbytes(1 << 20))
        with open(name, "r+b") as file:
            for _ in range(200):
                file.seek(rng.randrange(large_mib << 20))
                file.write(rng.randbytes(rng.randrange(1, 5000)))
    with open(os.path.join(top, "sparse"), "wb") as file:
        file.seek(large_mib << 20)
        file.write(b"end")
    rng.shuffle(names)
    quarter = len(names) // 4
    for name in names[:quarter]:
        os.unlink(name)
    for name in names[quarter : 2 * quarter]:
        os.rename(name, name + ".renamed")
    for name in names[2 * quarter : 3 * quarter]:
        with open(name, "ab") as file:
            file.write(rng.randbytes(700))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    fill(
        arguments[0],
        int(arguments[1]),
        int(arguments[2]) if len(arguments) > 2 else 3000,
        int(arguments[3]) if len(arguments) > 3 else 16,
    )
