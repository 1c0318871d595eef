//! `everbyte-bench swap`: the options of the suite.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::child::Load;
use super::ft::Class;
use super::kernel::machine;
use super::paging::Sizes;
use super::{Settings, direct, fill, ft_suite, full_store_paging, paging, serving};
use crate::driver::{Common, Findings, Pace, Run, Suite};
use crate::rows::Row;

/// Memory of servers in a smoke test.
const QUICK_SERVED_MIB: u64 = 24;
/// Accesses for each page of the footprint.
const ACCESSES_PER_PAGE: u64 = 3;

/// Measures the memory extension: paging by access pattern, FT of the NAS Parallel Benchmarks and public
/// servers in too little memory, and allocators of slots of a swap space.
///
/// The suite verifies all paged memory: contents by the stored values, FT by the published checksums.
#[derive(clap::Args, Clone)]
pub(crate) struct SwapArgs {
    #[command(flatten)]
    common: Common,
    /// Slots of 4 KiB; 8 Mi are a swap space of 32 GiB.
    #[arg(long, default_value_t = 8 << 20, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    slots: u64,
    /// Freed and taken slots at each fill.
    #[arg(long, default_value_t = 1 << 14, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(64..=1 << 32))]
    pairs: u64,
    /// Memory of the access patterns, in MiB. Half of it can be in DRAM. Servers get half as much data.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(2..=65536))]
    footprint: u64,
    /// Classes of FT; B needs 2.6 GiB for memory and store.
    #[arg(long, value_enum, value_name = "CLASS", value_delimiter = ',',
          default_values = ["s", "w", "a", "b"])]
    classes: Vec<Class>,
    /// Seconds of each run of FT at most. The suite kills a longer run and reports it.
    #[arg(long, default_value_t = 900, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    limit: u64,
    /// Measure kernel swap in addition: over a loop device on tmpfs and on zram, with several settings. Needs
    /// root, memory cgroups of version 1, a machine without swap, and 4 GiB of free memory. The work of block
    /// devices for other programs counts as the kernel's.
    #[arg(long)]
    kernel_swap: bool,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Ways to find a free slot.
    Slots,
    /// Access patterns.
    Paging,
    /// Access patterns in a swap space that is nearly full.
    Crowded,
    /// Moves of a page to DRAM, and the touches that pay for one.
    Direct,
    /// FT of the NAS Parallel Benchmarks.
    Ft,
    /// redis-server and memcached under load.
    Serving,
}

impl SwapArgs {
    fn bytes(&self) -> u64 {
        self.footprint << 20
    }

    fn sizes(&self) -> Sizes {
        let bytes = self.bytes();
        let accesses = bytes / super::place::PAGE * ACCESSES_PER_PAGE;
        Sizes { bytes, dram_bytes: bytes / 2, accesses }
    }
}

impl Suite for SwapArgs {
    const NAME: &'static str = "swap";
    const PACE: Pace = Pace { rounds: 3, slice_s: 0.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.0 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.slots, self.pairs) = (1 << 14, 1 << 10);
        (self.footprint, self.classes) = (8, vec![Class::S]);
    }

    fn measure(run: &Run<Self>) -> Result<Findings> {
        let own = &run.own;
        let settings = Settings {
            slots: own.slots,
            pairs: own.pairs,
            with_kernel: own.kernel_swap,
            described: RefCell::default(),
            failures: RefCell::default(),
            run,
        };
        let bytes = own.bytes();
        let served_bytes = if run.quick { QUICK_SERVED_MIB << 20 } else { bytes / 2 };
        if own.kernel_swap {
            let largest = own.classes.iter().map(|class| Load::Ft(*class).bytes()).max();
            let largest = largest.unwrap_or(0).max(bytes).max(serving::bytes_max(served_bytes));
            machine::check(2 * largest)?;
        }
        let mut rows = Vec::new();
        let parts =
            [Part::Slots, Part::Paging, Part::Direct, Part::Crowded, Part::Ft, Part::Serving];
        for part in parts.into_iter().filter(|part| !own.skip.contains(part)) {
            rows.extend(match part {
                Part::Slots => fill::run(&settings)?,
                Part::Paging => paging::run(&settings, own.sizes())?,
                Part::Direct => direct::run(&settings, own.sizes())?,
                Part::Crowded => full_store_paging::run(&settings)?,
                Part::Ft => ft_suite::run(&settings, &own.classes, Duration::from_secs(own.limit))?,
                Part::Serving => serving::run(&settings, served_bytes)?,
            });
        }
        rows.extend(settings_rows(&settings.described.borrow()));
        let medium = format!("DRAM, as tmpfs; {} slots", own.slots);
        let failures = settings.failures.take();
        Ok(Findings { failures, ..Findings::new(rows, medium, bytes) })
    }
}

/// Rows with the settings of each kind of kernel swap.
fn settings_rows(described: &BTreeMap<&'static str, String>) -> Vec<Row> {
    let row = |(name, settings): (&&'static str, &String)| Row {
        metric: "settings",
        ..Row::skipped(name, "settings", settings.clone())
    };
    described.iter().map(row).collect()
}
