#!/usr/bin/env python3
"""Judges a policy by rows of `everbyte sim --csv` or of the example `judge`.

usage: policy-tables.py [--candidate NAME]... [--generated TRACE,TRACE...] ROWS.csv...

A row is a trace, a size and a backing device. A candidate's time is its drained time. It is divided by that
of the best fixed policy of the row, Belady left out. *Same memory* charges policies of one tier, which are
simulated with every frame as DRAM, the candidate's own memory time instead of theirs; *raw* does not.
"""

import argparse
import csv
import os
from collections import defaultdict

ONE_TIER = ("lru", "clock", "sieve", "s3-fifo", "arc", "w-tinylfu")
HIT_RIVALS = ("lru", "sieve", "s3-fifo", "arc", "w-tinylfu")
FIXED = ("hybrid", "hybrid-drop", "hybrid-drop-unused", "clock-migration", "clock-dwf", "m-clock", "four-queue",
         "pdram", "spitfire", *ONE_TIER)
GENERATED = ("web", "mixed", "webserver", "zipf", "loop", "scan")


def read(paths):
    rows = defaultdict(dict)
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                trace = os.path.basename(row["trace"]).split(".")[0]
                key = (trace, int(row["size"].rstrip("%").split(".")[0]), row["backing"])
                rows[key][row["policy"]] = row
    return rows


def number(row, field):
    return float(row[field])


def memory(row):
    return number(row, "elapsed_with_drain_ns") - number(row, "backing_with_drain_ns")


def best(policies, candidate, raw):
    """Time and name of the best fixed policy."""
    charged = memory(policies[candidate])
    times = []
    for name in FIXED:
        if name in policies and name != candidate:
            row = policies[name]
            time = number(row, "elapsed_with_drain_ns")
            if name in ONE_TIER and not raw:
                time = number(row, "backing_with_drain_ns") + charged
            times.append((time, name))
    return min(times)


def hits(row):
    return 100 * number(row, "hits") / max(1, number(row, "accesses"))


class Verdict:
    """What is known of a candidate over some rows."""

    def __init__(self, rows, candidate, raw=False):
        self.ratios = []
        for key, policies in rows.items():
            if candidate in policies:
                time, name = best(policies, candidate, raw)
                ratio = number(policies[candidate], "elapsed_with_drain_ns") / time
                self.ratios.append((ratio, key, name))
        self.ratios.sort(reverse=True)

    def cells(self):
        ratios = [ratio for ratio, _, _ in self.ratios]
        within = 100 * sum(ratio <= 1.05 for ratio in ratios) / max(1, len(ratios))
        return f"{within:.1f}% / {sum(ratios) / max(1, len(ratios)):.3f} / {max(ratios, default=0):.2f}"


def residency(rows, candidate):
    """Hits against the best of one tier, and bytes written to SCM against `hybrid`'s; a row each size."""
    gaps, size, broken = [], [], []
    for key, policies in rows.items():
        ours = policies.get(candidate)
        if ours is None:
            continue
        if hits(policies["lru"]) - hits(ours) > 3:
            lru = number(policies["lru"], "backing_with_drain_ns") + memory(ours)
            if number(ours, "elapsed_with_drain_ns") > lru:
                broken.append((hits(policies["lru"]) - hits(ours), key))
        if key[2] != "sd":
            continue
        gaps.append((max(hits(policies[name]) for name in HIT_RIVALS if name in policies) - hits(ours), key))
        theirs = number(policies["hybrid"], "scm_bytes")
        if theirs > 0:
            size.append((number(ours, "scm_bytes") / theirs, key))
    return gaps, size, broken


def is_real(key, generated):
    return not key[0].split("-")[0] in generated


def heading(*cells):
    print("\n| " + " | ".join(cells) + " |")
    print("|" + " --- |" * len(cells))


def line(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def mean(values):
    return sum(value for value, _ in values) / max(1, len(values))


def of_device(rows, device):
    return {key: row for key, row in rows.items() if key[2] == device}


def summary(rows, generated, candidates):
    heading("policy", "same memory", "real traces", "raw, hdd and sd", "hits, points", "SCM bytes", "real traces",
            "worst", "LRU beats it")
    for candidate in candidates:
        real = {key: row for key, row in rows.items() if is_real(key, generated)}
        slow = {key: row for key, row in rows.items() if key[2] != "ssd"}
        gaps, size, broken = residency(rows, candidate)
        of_real = [entry for entry in size if is_real(entry[1], generated)]
        line(candidate, Verdict(rows, candidate).cells(), Verdict(real, candidate).cells(),
             Verdict(slow, candidate, raw=True).cells(), f"{-mean(gaps):+.2f}", f"{mean(size):.3f}",
             f"{mean(of_real):.3f}", f"{max(size, default=(0, 0))[0]:.3f}", len(broken))


def worst_rows(rows, candidate, count):
    heading("trace", "size", "device", "of the best", "which is")
    for ratio, (trace, size, device), name in Verdict(rows, candidate).ratios[:count]:
        line(trace, f"{size}%", device, f"{ratio:.2f}", name)


def by_trace(rows, candidate):
    heading("trace", "all", "sd", "hdd", "ssd", "hits, points", "SCM bytes")
    lines = []
    for trace in sorted({key[0] for key in rows}):
        some = {key: row for key, row in rows.items() if key[0] == trace}
        gaps, size, _ = residency(some, candidate)
        verdict = Verdict(some, candidate)
        cells = [Verdict(of_device(some, device), candidate).cells() for device in ("sd", "hdd", "ssd")]
        order = -sum(ratio for ratio, _, _ in verdict.ratios)
        lines.append((order, trace, verdict.cells(), *cells, f"{-mean(gaps):+.2f}", f"{mean(size):.3f}"))
    for _, *cells in sorted(lines):
        line(*cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", action="append")
    parser.add_argument("--generated", default=",".join(GENERATED))
    parser.add_argument("--worst", type=int, default=0, help="rows of the first candidate to show, the worst first")
    parser.add_argument("--traces", action="store_true", help="a line for each trace, of the first candidate")
    parser.add_argument("rows", nargs="+")
    args = parser.parse_args()
    rows, candidates = read(args.rows), args.candidate or ["everbyte", "hybrid"]
    if args.worst:
        worst_rows(rows, candidates[0], args.worst)
    summary(rows, args.generated.split(","), candidates)
    if args.traces:
        by_trace(rows, candidates[0])


main()
