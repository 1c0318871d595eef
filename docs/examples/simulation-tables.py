#!/usr/bin/env python3
"""Tables of docs/simulation.md from the CSV of `everbyte sim`.

usage: simulation-tables.py RESULTS.csv

The results have the policies hybrid and clock-migration, any sizes and traces, and the backing devices
that was simulated. Ratios are means of the single ratios over sizes, not ratios of sums.
"""

import csv
import os
import sys

# Figures of the paper: writes to its PRAM (our SCM) on average and at best, elapsed time at best, in percent. The paper's
# 12.6% is of its two mobile traces together.
PAPER = {
    "web": ("-11.4", "-27.0", "-12.6"),
    "mixed": ("-10.8", "-40.7", ""),
    "webserver": ("-42.6", "-92.3", "-62.0"),
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], newline="") as file:
        rows = list(csv.DictReader(file))
    results, traces, sizes = {}, [], []
    for row in rows:
        trace = os.path.basename(row["trace"]).split(".")[0]
        results[trace, row["policy"], row["size"], row["backing"]] = row
        traces += [trace] if trace not in traces else []
        sizes += [row["size"]] if row["size"] not in sizes else []
    devices = list(dict.fromkeys(row["backing"] for row in rows))

    def changes(trace, ours, theirs, field, device):
        """What `ours` changes, in percent of `theirs`, for each size; none where theirs is 0."""
        for size in sizes:
            a = float(results[trace, ours, size, device][field])
            b = float(results[trace, theirs, size, device][field])
            if b > 0:
                yield 100 * (a / b - 1)
            elif a == 0:
                yield 0.0

    def points(trace, ours, theirs):
        """The same of the hit ratio, in points."""
        for size in sizes:
            ratio = [float(results[trace, p, size, devices[0]]["hit_ratio"]) for p in (ours, theirs)]
            yield 100 * (ratio[0] - ratio[1])

    papers_table(traces, devices, changes, points)
    by_size(traces, sizes, devices[0], changes)


def heading(*cells):
    print("\n| " + " | ".join(cells) + " |")
    print("|" + " --- |" * len(cells))


def line(*cells):
    print("| " + " | ".join(cells) + " |")


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def percent(value):
    return f"{value:+.1f}"


def papers_table(traces, devices, changes, points):
    print("Hybrid against clock-migration, in percent; hits in points. Elapsed: best / mean.")
    heading("trace", "SCM writes, mean", "(paper)", "best", "(paper)", "worst", "SCM bytes, mean", "worst",
            "hits, least..most", *(f"elapsed, {s}" for s in devices), "(paper, best)")
    for trace in traces:
        writes = list(changes(trace, "hybrid", "clock-migration", "scm_writes", devices[0]))
        size = list(changes(trace, "hybrid", "clock-migration", "scm_bytes", devices[0]))
        hits = list(points(trace, "hybrid", "clock-migration"))
        paper = PAPER.get(trace, ("", "", ""))
        times = [list(changes(trace, "hybrid", "clock-migration", "elapsed_ns", s)) for s in devices]
        line(trace, percent(mean(writes)), paper[0], percent(min(writes)), paper[1], percent(max(writes)),
             percent(mean(size)), percent(max(size)), f"{min(hits):+.2f}..{max(hits):+.2f}",
             *(f"{percent(min(t))} / {percent(mean(t))}" for t in times), paper[2])


def by_size(traces, sizes, device, changes):
    for field, name in (("scm_writes", "SCM writes"), ("scm_bytes", "SCM bytes")):
        print(f"\n{name} of hybrid by size, in percent of clock-migration's.")
        heading("trace", *sizes)
        for trace in traces:
            line(trace, *map(percent, changes(trace, "hybrid", "clock-migration", field, device)))


main()
