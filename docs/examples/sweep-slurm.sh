#!/bin/sh
# A sweep as a Slurm array: one array task for each simulation. Submit it with
#   sbatch --array=0-$(($(wc -l <plan) - 1)) sweep-slurm.sh plan results
#SBATCH --job-name=everbyte-sweep
#SBATCH --cpus-per-task=1
#SBATCH --mem=4G
#SBATCH --requeue
set -eu
exec everbyte sim run --plan "$1" --task-index "$SLURM_ARRAY_TASK_ID" --threads 1 --out "$2"
