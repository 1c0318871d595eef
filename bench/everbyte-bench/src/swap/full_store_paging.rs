//! Random stores to a region with a nearly full swap space, by allocator.

use std::time::Duration;

use anyhow::Result;

use super::Settings;
use super::access::Pattern;
use super::allocators::Way;
use super::child::{self, Load, Task};
use super::full_store::Crowd;
use super::meter::Costs;
use super::place::{Backing, PAGE, RegionBacking};
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

/// Slots that are left, in thousandths, once the region has what it needs.
pub(super) const FILLS: [u64; 3] = [500, 990, 999];
/// Pages of the region, as a share of the slots; half of them may be in DRAM.
const PAGES_SHARE: u64 = 512;
const ACCESSES_PER_PAGE: u64 = 8;
/// The most that a measurement may take.
const LIMIT: Duration = Duration::from_mins(10);

/// Names of metrics.
pub(super) const SEARCH_SHARE: &str = "slot_search_share";

pub(super) fn title(permille: u64) -> String {
    format!("paging: random stores, swap {}.{}% full", permille / 10, permille % 10)
}

/// Measures every way at every fill, with one thread.
///
/// # Errors
/// Contents are wrong, a child fails, or it is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for permille in FILLS {
        let workload = title(permille);
        if !settings.wants(&workload) {
            continue;
        }
        let mut samples = Way::IN_PAGER.map(|way| (way, Vec::new()));
        for _ in 0..settings.rounds {
            for (way, samples) in &mut samples {
                settings.progress.set_message(format!("{}, {workload}", way.name()));
                let task = task(settings, *way, permille);
                let outcome = child::measure(&task, LIMIT, || settings.should_stop())?;
                samples.extend(outcome.map(|outcome| outcome.total()));
            }
        }
        rows.extend(samples.iter().flat_map(|(way, samples)| rows_of(*way, &workload, samples)));
    }
    Ok(rows)
}

fn task(settings: &Settings<'_>, way: Way, permille: u64) -> Task {
    let pages = (settings.slots / PAGES_SHARE).max(256);
    let (dram_pages, slots) = (pages / 2, settings.slots);
    let backing = Backing::Region(RegionBacking {
        store: settings.folder().join("store"),
        dram_bytes: dram_pages * PAGE,
        handlers: 0,
        tracks_stores: true,
        read_ahead: 16,
        uses_order8: false,
        is_flash: false,
        direct: None,
        crowd: Some(Crowd::around(way, slots, (pages, dram_pages), permille)),
    });
    let count = pages * ACCESSES_PER_PAGE;
    let (pattern, bytes) = (Pattern::Random, pages * PAGE);
    Task {
        backing,
        load: Load::Touch { pattern, stores: true, bytes, warm: count, count },
        threads: 1,
    }
}

fn rows_of(way: Way, workload: &str, samples: &[Costs]) -> Vec<Row> {
    if samples.is_empty() {
        let why = format!("no round ended within {} s", LIMIT.as_secs());
        return vec![Row::skipped(way.name(), workload, why)];
    }
    let paged = || samples.iter().filter(|costs| costs.pages_in > 0 && costs.pages_out > 0);
    let each = |figure: fn(&Costs) -> f64| paged().map(figure).collect::<Vec<f64>>();
    let visits = match way.counts_visits() {
        true => each(|c| as_f64(c.slot_visits) / as_f64(c.pages_out)),
        false => Vec::new(),
    };
    let figures = [
        (metric::TIME, "ns", each(|c| as_f64(c.wall_ns) / as_f64(c.pages_in))),
        (super::paging::CPU_PER_PAGE, "ns", each(|c| as_f64(c.cpu_ns()) / as_f64(c.pages_in))),
        (SEARCH_SHARE, "%", each(|c| 100.0 * as_f64(c.slot_search_ns) / as_f64(c.cpu_ns()))),
        ("slot_search", "ns", each(|c| as_f64(c.slot_search_ns) / as_f64(c.pages_out))),
        ("slot_visits_per_page_out", "", visits),
    ];
    let rows = figures
        .into_iter()
        .filter_map(|(metric, unit, figures)| timed(way.name(), workload, metric, unit, &figures));
    rows.collect()
}
