#!/usr/bin/env python3
"""Tables of docs/benchmarks.md from a JSON document of `everbyte-bench consistency`.

usage: consistency-tables.py results.json
"""

import json
import sys

MODES = [(medium, mode) for medium in ("dram", "pcm", "pcm-banks") for mode in ("checkpoint", "request")]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main():
    results = json.load(open(sys.argv[1], encoding="utf-8"))
    values = {(r["subject"], r["workload"], r["metric"]): r["value"] for r in results["rows"]}
    subjects = list(dict.fromkeys(r["subject"] for r in results["rows"]))

    def ratios(base, subject):
        cells = []
        for medium, mode in MODES:
            workload = f"{medium}: all IOzone-like writes, {mode}"
            three = [values.get((subject, workload, f"{base}_{part}")) for part in ("min", "mean", "max")]
            cells.append(" / ".join(f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in three)
                         if None not in three else "")
        return cells

    head = [f"{medium}, {mode}" for medium, mode in MODES]
    for base, of in (("time_to_rollback", "rollback"), ("time_to_rollback_published", "rollback-published")):
        print(f"Time as a multiple of {of}'s, least / mean / most:\n")
        rows = [[subject, *ratios(base, subject)] for subject in subjects]
        table(["scheme", *head], [row for row in rows if any(row[1:])])

    groups = [("1 KiB", "random write 1K in 4M"), ("4 KiB", "random write 4K in 4M"),
              ("100 KiB", "random write 100K in 4M"), ("append", "append"), ("metadata", "metadata")]
    named = {w for _, w, _ in values if w.startswith("dram: ") and w.endswith("checkpoint")}
    print("Log bytes, and all bytes stored, for each byte written, dram, checkpoint:\n")
    rows = []
    for subject in subjects:
        cells = []
        for _, words in groups:
            workload = next((w for w in named if words in w), None)
            log = values.get((subject, workload, "log_bytes_per_byte"))
            stored = values.get((subject, workload, "media_bytes_per_byte"))
            cells.append("" if log is None or stored is None else f"{log:.2f} ({stored:.2f})")
        if any(cells):
            rows.append([subject, *cells])
    table(["scheme", *(name for name, _ in groups)], rows)


main()
