#!/bin/sh
# A sweep on one machine with GNU parallel: one process for each simulation.
# usage: sweep-parallel.sh PLAN RESULTS
set -eu
plan=$1 results=$2
last=$(($(wc -l <"$plan") - 1))
seq 0 "$last" | parallel --halt soon,fail=1 \
    everbyte sim run --plan "$plan" --task-index '{}' --threads 1 --out "$results"
everbyte sim merge "$results" --plan "$plan" --csv "$results/all.csv" --report "$results/all.html"
