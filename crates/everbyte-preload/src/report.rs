//! Statistics, on standard error.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use everbyte_swap::{SlotWear, Statistics, UNIT};

use crate::heap::Heap;
use crate::outside_heap;
use crate::stderr::print;

/// Writes to a cell of phase-change memory before it fails, for the estimate of its life.
const CELL_WRITES: f64 = 1e8;
const SECONDS_A_YEAR: f64 = 365.25 * 86_400.0;

static REPORTED: OnceLock<(&'static Heap, Instant)> = OnceLock::new();

/// Writes statistics at intervals, and at the end; an interval of 0 is only the end.
pub(crate) fn start(heap: &'static Heap, interval: Duration) {
    let since = Instant::now();
    let _first = REPORTED.set((heap, since));
    if interval.is_zero() {
        return;
    }
    let report = move || {
        outside_heap(|| {
            loop {
                std::thread::sleep(interval);
                print(&line(heap, since));
            }
        });
    };
    let named = std::thread::Builder::new().name("everbyte report".into());
    if let Err(error) = named.spawn(report) {
        print(&format!("cannot start the thread for statistics: {error}"));
    }
}

/// Writes the last line, in the region's process.
pub(crate) fn summarise() {
    let Some(&(heap, since)) = REPORTED.get() else { return };
    if heap.is_child() {
        return;
    }
    print(&line(heap, since));
    print(&life(heap, since));
    if let Some(wear) = heap.wear() {
        print(&wear_line(wear));
    }
    if let Err(trouble) = heap.check() {
        print(&trouble.to_string());
    }
}

fn mib(units: u64) -> u64 {
    (units * UNIT as u64) >> 20
}

fn line(heap: &Heap, since: Instant) -> String {
    let Statistics {
        faults_load,
        faults_store,
        faults_protected,
        fault_ns,
        units_in,
        units_out,
        units_resident,
        units_used,
        units_limit,
        slots_free,
        ..
    } = heap.statistics();
    let slots = heap.space_bytes() / UNIT as u64;
    format!(
        "{} s: DRAM {} of {} MiB, slots {} of {} MiB, in {} MiB, out {} MiB, faults {} load {} store \
         {} protected, {} ms in faults; {} MiB in use, {} MiB reserved, {} MiB RssAnon",
        since.elapsed().as_secs(),
        mib(units_resident),
        mib(units_limit),
        mib(slots.saturating_sub(slots_free)),
        mib(slots),
        mib(units_in),
        mib(units_out),
        faults_load,
        faults_store,
        faults_protected,
        fault_ns / 1_000_000,
        mib(units_used),
        heap.bytes_reserved() >> 20,
        anonymous_kib() >> 10,
    )
}

/// RssAnon of this process in KiB; 0 if it is unknown.
fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// How evenly slots were written.
fn wear_line(wear: SlotWear) -> String {
    let SlotWear { slots, slots_written, writes, writes_most } = wear;
    let tenths = writes * 10 / slots.max(1);
    format!(
        "{slots_written} of {slots} slots were written, {}.{} times in the mean of all, {writes_most} times at \
         most",
        tenths / 10,
        tenths % 10
    )
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn life(heap: &Heap, since: Instant) -> String {
    let written = heap.statistics().units_out * UNIT as u64;
    let space = heap.space_bytes();
    let written_text = format!("{} MiB were written to {} MiB", written >> 20, space >> 20);
    if written == 0 {
        return written_text;
    }
    let seconds = since.elapsed().as_secs_f64().max(0.001);
    let years = space as f64 * CELL_WRITES / (written as f64 / seconds) / SECONDS_A_YEAR;
    format!(
        "{written_text}: at that rate, spread evenly, memory that bears 10^8 writes lasts {years:.1} \
         years"
    )
}
