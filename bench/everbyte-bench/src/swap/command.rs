//! `everbyte-bench swap`: the command line of the suite.

use std::path::Path;

use anyhow::Result;

use super::allocators::Way;
use super::{Settings, fill};
use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::report::figure::{Figure, Shape};
use crate::rows::{Results, metric};

/// Settings of a smoke test.
const QUICK_SLOTS: u64 = 1 << 14;
const QUICK_PAIRS: u64 = 1 << 10;

/// Compares ways to find a free slot of a swap space: the linear search of Linux 3.14, the tree of
/// order 8 of "Memory extension with a next-generation storage device", ours of order 64, and a stack.
///
/// Slots are freed in random order, at several fills, by one thread and by two.
#[derive(clap::Args)]
pub(crate) struct SwapArgs {
    /// A smoke test of a second. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Slots of 4 KiB; 8 Mi are a swap space of 32 GiB.
    #[arg(long, default_value_t = 8 << 20, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    slots: u64,
    /// Slots that are freed and taken at each fill.
    #[arg(long, default_value_t = 1 << 14, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(64..=1 << 32))]
    pairs: u64,
}

/// Runs the suite.
///
/// # Errors
/// The first failure, or it is to stop.
pub(crate) fn swap(args: &SwapArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let (slots, pairs, rounds) = match args.quick {
        true => (QUICK_SLOTS, QUICK_PAIRS, 1),
        false => (args.slots, args.pairs, usize::from(args.repeats)),
    };
    let settings = Settings { slots, pairs, rounds, stop: &stop, progress: &progress };
    let mut environment = Environment::new(Path::new("/dev/shm"), 0, rounds, 0.0);
    environment.medium = format!("DRAM of this process; {slots} slots");
    let rows = fill::run(&settings)?;
    let results = Results { suite: "swap", environment, rows };
    progress.finish_and_clear();
    args.output.publish("Everbyte: slots of a swap space", &results, &[figure(1), figure(2)])
}

fn figure(threads: usize) -> Figure {
    let label = |permille: u64| format!("{}.{}%", permille / 10, permille % 10);
    Figure {
        title: format!("Time to take a slot, {threads} threads"),
        explanation: "Nanoseconds by how full the space is. Random slots are freed before.".into(),
        subjects: Way::ALL.map(|way| way.name().to_owned()).to_vec(),
        workloads: fill::FILLS.map(|fill| (fill::title(fill, threads), label(fill))).to_vec(),
        metric: metric::TIME,
        shape: Shape::Lines,
        logarithmic: true,
    }
}
