//! `everbyte sim`: its subcommands, or simulations of the given traces.

use std::process::ExitCode;

use clap::Subcommand;

use super::{sim_generate, sim_info, sim_merge, sim_plan, sim_run, sim_traces};

const EXAMPLES: &str = "\
Examples:
  everbyte sim trace.vscsi                                      all policies, 10% to 100%
  everbyte sim a.csv.zst b.csv --policy hybrid,clock-migration --size 10%,25%,512M
  everbyte sim trace.csv --backing hdd,nvme --csv out.csv --report out.html
  everbyte sim trace.csv --costs my-disk.toml --show hits,same-memory
  blktrace -d /dev/sda -o - | blkparse -i - | everbyte sim -    a trace from standard input
  everbyte sim generate web --out web.csv && everbyte sim web.csv --threshold 256,512
  everbyte sim info trace.csv                                   the contents of a trace
  everbyte sim plan *.csv --out plan && everbyte sim run --plan plan --shard 1/4 --out results
  everbyte sim merge results --report out.html                  see docs/sweeps.md

A trace is a file, compressed with gzip, xz or zstd or not, in one of these formats:
  csv             our own: lines of time_ns,op,file,offset,len with op R, W, F, T or Z, as
                  'everbyte serve --record' and 'everbyte sim generate' write it
  vscsi-v1, -v2   VMware's vscsiStats, as published by CloudPhysics
  msr             Microsoft Research Cambridge
  blkparse        the text that blkparse prints of blktrace's recordings
  fio             fio's I/O logs, versions 2 and 3 (write_iolog)
  spc             Storage Performance Council, as in the UMass repository
  disksim         DiskSim's ASCII form, and MQSim's
  oracle-general  libCacheSim's binary form; it does not separate reads and writes, so it
                  needs --assume-reads, and figures about writes mean nothing
  mobibench       system calls of Android applications
  alibaba         block traces of Alibaba Cloud
  tencent         block traces of Tencent's cloud (CBS); has to be named by --format
  fiu             block traces of Florida International University (SRCMap, IODedup)
  systor          block traces of SYSTOR '17
  twitter         cache traces of Twitter
  kvcache         key-value traces of Meta's CacheLib
  lirs            numbers of blocks of the LIRS paper; has to be named, and needs --assume-reads
  lcs             libCacheSim's binary form with a header; version 1 needs --assume-reads

Any other text is read by --columns, which names its columns in their order: time_ns, time_100ns,
time_us, time_ms, time_s, op, op_1_reads, op_scsi, file, offset, offset_sectors, offset_pages, len,
len_sectors, len_pages, key, count, - for a column without a meaning, and ... at the end for any
further columns.
An offset or a key is needed; docs/traces.md says more, and has the columns of public traces.

Requests are cut into pages of 4 KiB, with exactly the bytes that they touch. Zeroes are written;
flushes and trims are passed over. A trace called like a subcommand is named as ./info.";

/// Simulate caches of DRAM and storage-class memory over traces of requests.
///
/// The command simulates each policy with each size over each trace. It prints a table of policies
/// by size with the hits: the share of accesses to pages in the cache. --show selects other
/// figures. --details prints all of them: writes to storage-class memory (SCM), pages fetched from
/// and written to the backing device, and the time of all steps. A model of costs gives the time,
/// without and with the write-back of dirty pages at the end (WITH DRAIN).
///
/// SAME MEMORY compares policies of one tier with policies of two tiers. A policy of one tier has all
/// of the cache as DRAM, so its memory is faster. SAME MEMORY replaces its memory time with the memory
/// time of everbyte at the same size. The remaining difference comes from the choice of pages. It is
/// "-" if everbyte was not simulated.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES, args_conflicts_with_subcommands = true,
          subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<SimCommand>,
    #[command(flatten)]
    traces: sim_traces::Args,
}

#[derive(Subcommand)]
enum SimCommand {
    Generate(sim_generate::Args),
    Info(sim_info::Args),
    Plan(sim_plan::Args),
    Run(sim_run::Args),
    Merge(sim_merge::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(SimCommand::Generate(args)) => sim_generate::run(args),
        Some(SimCommand::Info(args)) => sim_info::run(args),
        Some(SimCommand::Plan(args)) => sim_plan::run(args),
        Some(SimCommand::Run(args)) => sim_run::run(args),
        Some(SimCommand::Merge(args)) => sim_merge::run(args),
        None => sim_traces::run(&args.traces),
    }
}
