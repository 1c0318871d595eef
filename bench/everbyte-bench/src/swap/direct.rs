//! The break-even number of touches between a move of a page to DRAM and access in place, by medium.
//!
//! A move is measured on a machine with DRAM as medium. Media differ by the cost of a line beyond DRAM ([`Technology`]).
//! The lines of a copied page add to the cost of a move. Each line in place costs as much. A touch is a load of one line, or
//! a load and a store, without a cache hit. Caches make touches cheaper in both places, so they raise the break-even.
//!
//! Two kinds of moves are compared: a page by a fault, with the evicted page, and exchanged parts of a region in direct
//! mode, with each page's share. All pages of a part count as equally hot. Long loads measure the search for hot parts,
//! with its random moves.

use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_media::Technology;

use super::Settings;
use super::access::Pattern;
use super::child::{Load, Outcome};
use super::measure::{Work, measure};
use super::meter::Costs;
use super::paging::{self, Sizes};
use super::subjects::Subject;
use crate::rows::{Row, timed};
use crate::stats::as_f64;

/// Media that a page may be used on.
pub(super) const MEDIA: [Technology; 4] =
    [Technology::Dram, Technology::SttMram, Technology::Reram, Technology::Pcm];
/// Lines of a page.
const PAGE_LINES: f64 = 64.0;
/// Times that each part moves to DRAM and out of it in a round.
const TURNS: u64 = 2;
/// Accesses of long ones, as a multiple of the others': for some dozens of rounds.
const LONG: u64 = 100;
/// The name of the workload of long ones.
pub(super) const LONG_LOADS: &str = "direct: long random loads";
/// The most that a measurement may take.
const LIMIT: Duration = Duration::from_mins(10);

/// Names of metrics.
pub(super) const BREAK_EVEN: &str = "break_even_touches";
const MOVE_COST: &str = "move_cost";
const COPIED_OUT: &str = "pages_out_per_page_in";

/// A use of a page's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Touch {
    Load,
    Store,
}

impl Touch {
    pub(super) const BOTH: [Self; 2] = [Self::Load, Self::Store];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Load => "loads",
            Self::Store => "stores",
        }
    }

    fn title(self) -> String {
        format!("direct: {}", self.words())
    }

    /// Nanoseconds that one costs beyond DRAM. A line is loaded before it is stored to.
    fn beyond_dram_ns(self, medium: Technology) -> f64 {
        let cost = medium.cost();
        let store_ns = if self == Self::Store { cost.write_ns } else { 0 };
        as_f64(cost.read_ns + store_ns)
    }
}

/// The name of a workload: touches of one kind on a medium.
pub(super) fn title(touch: Touch, medium: Technology) -> String {
    format!("{}, {medium}", touch.title())
}

/// The cost of a page that moves to DRAM, with what leaves for it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Move {
    /// Processor time as measured.
    measured_ns: f64,
    /// Pages that are copied to the medium for each that comes from it.
    copied_out: f64,
}

impl Move {
    /// Pages that came in by `paged`'s faults; the same touches of memory that is all in DRAM are `floor`.
    fn by_fault(paged: &Costs, floor: &Costs) -> Option<Self> {
        let pages_in = Some(paged.pages_in).filter(|pages| *pages > 0).map(as_f64)?;
        let measured_ns = as_f64(paged.process_ns.saturating_sub(floor.process_ns)) / pages_in;
        Some(Self { measured_ns, copied_out: as_f64(paged.pages_out) / pages_in })
    }

    /// Pages of parts that moved both ways.
    fn by_exchange(both: &Costs) -> Option<Self> {
        let pages_in = Some(both.pages_in).filter(|pages| *pages > 0).map(as_f64)?;
        let measured_ns = as_f64(both.process_ns) / pages_in;
        Some(Self { measured_ns, copied_out: as_f64(both.pages_out) / pages_in })
    }

    /// Nanoseconds that it costs on a medium.
    fn on_ns(self, medium: Technology) -> f64 {
        let cost = medium.cost();
        let copied_ns = as_f64(cost.read_ns) + self.copied_out * as_f64(cost.write_ns);
        self.measured_ns + PAGE_LINES * copied_ns
    }

    /// Touches that cost in place, beyond DRAM, as much as the move; `None` if no number does.
    fn break_even(self, touch: Touch, medium: Technology) -> Option<f64> {
        let saved_ns = touch.beyond_dram_ns(medium);
        (saved_ns > 0.0).then(|| self.on_ns(medium) / saved_ns)
    }
}

/// Measures both kinds of moves, for pages that are loaded and for those that are stored to.
///
/// # Errors
/// Contents are wrong, a child fails or takes too long, or it is to stop.
pub(super) fn run(settings: &Settings<'_>, sizes: Sizes) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for touch in Touch::BOTH {
        if !settings.wants(&touch.title()) {
            continue;
        }
        let (mut faults, mut exchanges) = (Vec::new(), Vec::new());
        for _ in 0..settings.rounds {
            let touched = |subject| touched(settings, sizes, touch, subject);
            let (floor, paged) = (touched(Subject::Dram)?, touched(Subject::Sigbus)?);
            faults.extend(Move::by_fault(&paged, &floor));
            exchanges.extend(Move::by_exchange(&exchanged(settings, sizes, touch)?));
        }
        rows.extend(rows_of(Subject::Sigbus, touch, &faults));
        rows.extend(rows_of(Subject::Direct, touch, &exchanges));
    }
    if settings.wants(LONG_LOADS) {
        rows.extend(long_loads(settings, sizes)?);
    }
    Ok(rows)
}

/// Loads words at random for long enough that rounds are made: with them, without them, and in DRAM.
fn long_loads(settings: &Settings<'_>, sizes: Sizes) -> Result<Vec<Row>> {
    let sizes = Sizes { accesses: sizes.accesses * LONG, ..sizes };
    let mut samples =
        [Subject::Dram, Subject::DirectStill, Subject::Direct].map(|subject| (subject, Vec::new()));
    for _ in 0..settings.rounds {
        for (subject, samples) in &mut samples {
            samples.push(touched(settings, sizes, Touch::Load, *subject)?);
        }
    }
    let rows = samples.iter().flat_map(|(subject, samples)| {
        paging::rows_of(*subject, LONG_LOADS, samples, sizes.accesses)
    });
    Ok(rows.collect())
}

/// Touches pages at random.
fn touched(settings: &Settings<'_>, sizes: Sizes, touch: Touch, subject: Subject) -> Result<Costs> {
    let Sizes { bytes, accesses: count, .. } = sizes;
    let (pattern, stores) = (Pattern::Random, touch == Touch::Store);
    let load = Load::Touch { pattern, stores, bytes, warm: count / 4, count };
    total(settings, sizes, touch, subject, load)
}

/// Moves parts to DRAM and out of it. They are copied whole, whether they were stored to or not.
fn exchanged(settings: &Settings<'_>, sizes: Sizes, touch: Touch) -> Result<Costs> {
    let load = Load::Move { bytes: sizes.bytes, moved: sizes.dram_bytes, turns: TURNS };
    total(settings, sizes, touch, Subject::DirectStill, load)
}

fn total(
    settings: &Settings<'_>,
    sizes: Sizes,
    touch: Touch,
    subject: Subject,
    load: Load,
) -> Result<Costs> {
    settings.progress.set_message(format!("{}, {}", subject.name(), touch.title()));
    let work = Work { load, threads: 1, dram_bytes: sizes.dram_bytes, limit: LIMIT };
    let outcome = measure(settings, subject, work)?;
    let late = || format!("{} took more than {} s", subject.name(), LIMIT.as_secs());
    outcome.as_ref().map(Outcome::total).with_context(late)
}

/// The rows of one kind of moves.
fn rows_of(subject: Subject, touch: Touch, moves: &[Move]) -> Vec<Row> {
    let (name, title_all) = (subject.name(), touch.title());
    let each = |figure: fn(&Move) -> f64| moves.iter().map(figure).collect::<Vec<f64>>();
    let mut rows = Vec::new();
    rows.extend(timed(name, &title_all, MOVE_COST, "ns", &each(|by| by.measured_ns)));
    rows.extend(timed(name, &title_all, COPIED_OUT, "", &each(|by| by.copied_out)));
    for medium in MEDIA {
        let touches: Option<Vec<f64>> =
            moves.iter().map(|by| by.break_even(touch, medium)).collect();
        let workload = title(touch, medium);
        rows.push(match touches.and_then(|all| timed(name, &workload, BREAK_EVEN, "", &all)) {
            Some(row) => row,
            None => Row {
                metric: BREAK_EVEN,
                ..Row::skipped(name, &workload, never(touch, medium).to_owned())
            },
        });
    }
    rows
}

fn never(touch: Touch, medium: Technology) -> &'static str {
    if touch.beyond_dram_ns(medium) > 0.0 {
        "no page moved"
    } else {
        "never: a touch costs no more than in DRAM"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    #[test]
    fn move_cost_is_time_plus_copied_lines() {
        let clean = Move { measured_ns: 1000.0, copied_out: 0.0 };
        let dirty = Move { copied_out: 1.0, ..clean };
        let pcm = Technology::Pcm.cost();
        let (read, write) = (64.0 * as_f64(pcm.read_ns), 64.0 * as_f64(pcm.write_ns));
        assert!(is_near(Some(clean.on_ns(Technology::Pcm)), 1000.0 + read));
        assert!(is_near(Some(dirty.on_ns(Technology::Pcm)), 1000.0 + read + write));
        assert!(is_near(Some(dirty.on_ns(Technology::Dram)), 1000.0));
        let touches = (1000.0 + read) / as_f64(pcm.read_ns);
        assert!(is_near(clean.break_even(Touch::Load, Technology::Pcm), touches));
        let touches = (1000.0 + read + write) / as_f64(pcm.read_ns + pcm.write_ns);
        assert!(is_near(dirty.break_even(Touch::Store, Technology::Pcm), touches));
    }

    #[test]
    fn cheap_touches_never_pay_a_move() {
        let by = Move { measured_ns: 1.0, copied_out: 1.0 };
        for touch in Touch::BOTH {
            assert_eq!(by.break_even(touch, Technology::Dram), None);
        }
        assert_eq!(by.break_even(Touch::Load, Technology::SttMram), None);
        assert!(by.break_even(Touch::Store, Technology::SttMram).is_some());
        let rows = rows_of(Subject::Direct, Touch::Load, &[by]);
        let row = rows.iter().find(|row| row.workload == title(Touch::Load, Technology::SttMram));
        let row = row.unwrap();
        assert!(row.value.is_none() && row.note.as_ref().unwrap().starts_with("never"), "{row:?}");
    }

    #[test]
    fn fault_cost_excludes_dram_touches() {
        let floor = Costs { process_ns: 300, ..Costs::default() };
        let paged = Costs { process_ns: 1300, pages_in: 10, pages_out: 5, ..Costs::default() };
        let expected = Move { measured_ns: 100.0, copied_out: 0.5 };
        assert_eq!(Move::by_fault(&paged, &floor), Some(expected));
        assert_eq!(Move::by_fault(&floor, &floor), None, "no page came in");
        let moved = Costs { process_ns: 900, pages_in: 9, pages_out: 9, ..Costs::default() };
        assert_eq!(Move::by_exchange(&moved), Some(Move { measured_ns: 100.0, copied_out: 1.0 }));
    }
}
