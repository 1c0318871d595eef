//! Policies beside the best fixed one, from the rows of the example `judge`.
//!
//! A row is a trace, a size and a backing device. A candidate's time is its drained time, divided
//! by that of the best fixed policy of the row. *Same memory* charges policies of one tier, which
//! have every frame as DRAM, the candidate's memory time instead of theirs; *raw* does not.

use anyhow::{Result, bail};

use super::cell::{Cell, Line, heading};
use super::results::{Results, RowNo};

const ONE_TIER: [&str; 6] = ["lru", "clock", "sieve", "s3-fifo", "arc", "w-tinylfu"];
/// Policies with two tiers that do not choose modes.
const TWO_TIERS: [&str; 9] = [
    "hybrid",
    "hybrid-drop",
    "hybrid-drop-unused",
    "clock-migration",
    "clock-dwf",
    "m-clock",
    "four-queue",
    "pdram",
    "spitfire",
];
const HIT_RIVALS: [&str; 5] = ["lru", "sieve", "s3-fifo", "arc", "w-tinylfu"];
/// Policies of the table; `everbyte` and the paper's first.
const SHOWN: [&str; 10] = [
    "everbyte",
    "hybrid",
    "hybrid-drop",
    "hybrid-drop-unused",
    "clock-migration",
    "clock-dwf",
    "m-clock",
    "four-queue",
    "pdram",
    "spitfire",
];
/// Beginning of the names of traces that are not of the list: they stand in a table of their own.
const ASIDE: &str = "aside-";
/// Beginnings of the names of generated traces.
const GENERATED: [&str; 6] = ["web", "mixed", "webserver", "zipf", "loop", "scan"];
const DEVICES: [&str; 3] = ["sd", "hdd", "ssd"];
/// Rows of the table of the worst.
const WORST: usize = 12;

/// The view of a name.
///
/// # Errors
/// There is none.
pub(crate) fn view(name: &str, results: &Results) -> Result<Vec<Line>> {
    let rows = Judged::new(results, |place| place.is_listed());
    Ok(match name {
        "aside" => Judged::new(results, |place| !place.is_listed()).aside(),
        "worst" => rows.worst(),
        "summary" => rows.summary(),
        "traces" => rows.by_trace(),
        "rules" => rows.rules(),
        _ => bail!("no view {}/{name}", results.suite),
    })
}

/// A trace, a size and a backing device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place<'a> {
    trace: &'a str,
    size: &'a str,
    device: &'a str,
}

struct Judged<'a> {
    results: &'a Results,
    places: Vec<Place<'a>>,
}

/// A candidate's time as a multiple of the best one's.
struct Verdict<'a> {
    ratio: f64,
    place: Place<'a>,
    best: &'static str,
    rows: [RowNo; 2],
}

impl Place<'_> {
    fn is_listed(&self) -> bool {
        !self.trace.starts_with(ASIDE)
    }

    fn is_real(self) -> bool {
        !GENERATED.contains(&self.trace.split('-').next().unwrap_or(""))
    }
}

impl<'a> Judged<'a> {
    fn new(results: &'a Results, wanted: impl Fn(&Place) -> bool) -> Self {
        let mut places: Vec<Place<'a>> = Vec::new();
        for row in 0..results.rows.len() {
            let word = |column| results.word(row, column);
            let place = Place { trace: word("trace"), size: word("size"), device: word("backing") };
            if word("policy") == results.word(0, "policy") && wanted(&place) {
                places.push(place);
            }
        }
        Self { results, places }
    }

    fn row(&self, place: Place, policy: &str) -> Option<RowNo> {
        self.results.row(&format!("{}|{policy}|{}|{}", place.trace, place.size, place.device))
    }

    fn number(&self, row: RowNo, column: &str) -> f64 {
        self.results.number(row, column).unwrap_or(f64::NAN)
    }

    fn time(&self, row: RowNo) -> f64 {
        self.number(row, "elapsed_with_drain_ns")
    }

    fn memory(&self, row: RowNo) -> f64 {
        self.time(row) - self.number(row, "backing_with_drain_ns")
    }

    fn hits(&self, row: RowNo) -> f64 {
        100.0 * self.number(row, "hits") / self.number(row, "accesses").max(1.0)
    }

    /// Verdicts over the places that are wanted, the worst first.
    fn verdicts(
        &self,
        candidate: &str,
        raw: bool,
        wanted: impl Fn(Place) -> bool,
    ) -> Vec<Verdict<'a>> {
        let mut found: Vec<Verdict> = Vec::new();
        for &place in self.places.iter().filter(|&&place| wanted(place)) {
            let Some(ours) = self.row(place, candidate) else { continue };
            let fixed = TWO_TIERS.iter().chain(&ONE_TIER).filter(|&&name| name != candidate);
            let times = fixed.filter_map(|name| {
                let row = self.row(place, name)?;
                let time = match ONE_TIER.contains(name) && !raw {
                    true => self.number(row, "backing_with_drain_ns") + self.memory(ours),
                    false => self.time(row),
                };
                Some((time, *name, row))
            });
            if let Some((time, best, row)) = times.min_by(|a, b| a.0.total_cmp(&b.0)) {
                let ratio = self.time(ours) / time;
                found.push(Verdict { ratio, place, best, rows: [ours, row] });
            }
        }
        found.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        found
    }

    /// Rows within a twentieth of the best, mean and worst.
    fn cell(&self, verdicts: &[Verdict]) -> Cell {
        let within = verdicts.iter().filter(|one| one.ratio <= 1.05).count();
        let mean = mean(verdicts.iter().map(|one| one.ratio));
        let share = 100.0 * count(within) / count(verdicts.len().max(1));
        let worst = verdicts.first().map_or(0.0, |one| one.ratio);
        let rows: Vec<RowNo> = verdicts.iter().flat_map(|one| one.rows).collect();
        self.of(format!("{share:.1}% / {mean:.3} / {worst:.2}"), &rows)
    }

    fn of(&self, text: String, rows: &[RowNo]) -> Cell {
        Cell::of(&self.results.suite, text, rows)
    }

    /// Points of hits less than the best of one tier, a value for each trace, size and device: policies that
    /// weigh costs have other hits on another device.
    fn gap(&self, candidate: &str, wanted: impl Fn(Place) -> bool) -> Cell {
        let (mut gaps, mut rows) = (Vec::new(), Vec::new());
        for &place in self.places.iter().filter(|&&place| wanted(place)) {
            let rivals = HIT_RIVALS.iter().filter_map(|name| self.row(place, name));
            let best = rivals.max_by(|&a, &b| self.hits(a).total_cmp(&self.hits(b)));
            if let (Some(ours), Some(best)) = (self.row(place, candidate), best) {
                gaps.push(self.hits(ours) - self.hits(best));
                rows.extend([ours, best]);
            }
        }
        self.of(format!("{:+.2}", mean(gaps.into_iter())), &rows)
    }

    /// Bytes written to SCM as a share of `hybrid`'s: mean and worst.
    fn bytes(&self, candidate: &str, wanted: impl Fn(Place) -> bool) -> [Cell; 2] {
        let (mut shares, mut rows) = (Vec::new(), Vec::new());
        for &place in self.places.iter().filter(|&&place| wanted(place)) {
            if let (Some(ours), Some(theirs)) =
                (self.row(place, candidate), self.row(place, "hybrid"))
                && self.number(theirs, "scm_bytes") > 0.0
            {
                shares.push(self.number(ours, "scm_bytes") / self.number(theirs, "scm_bytes"));
                rows.extend([ours, theirs]);
            }
        }
        let worst = shares.iter().copied().fold(0.0, f64::max);
        let mean = mean(shares.into_iter());
        [self.of(format!("{mean:.3}"), &rows), self.of(format!("{worst:.3}"), &rows)]
    }

    /// Rows in which LRU has more than three points of hits more, and takes less time.
    fn beaten_by_lru(&self, candidate: &str) -> Cell {
        let mut rows = Vec::new();
        for &place in &self.places {
            if let (Some(ours), Some(lru)) = (self.row(place, candidate), self.row(place, "lru")) {
                let charged = self.number(lru, "backing_with_drain_ns") + self.memory(ours);
                if self.hits(lru) - self.hits(ours) > 3.0 && self.time(ours) > charged {
                    rows.push(ours);
                }
            }
        }
        self.of(rows.len().to_string(), &rows)
    }

    fn worst(&self) -> Vec<Line> {
        let mut lines = heading(&["trace", "size", "device", "of the best", "which is"]);
        for one in self.verdicts("everbyte", false, |_| true).iter().take(WORST) {
            lines.push(Line::table(vec![
                Cell::plain(one.place.trace),
                Cell::plain(one.place.size),
                Cell::plain(one.place.device),
                self.of(format!("{:.2}", one.ratio), &one.rows),
                Cell::plain(one.best),
            ]));
        }
        lines
    }

    fn summary(&self) -> Vec<Line> {
        let mut lines = heading(&[
            "policy",
            "same memory",
            "real traces",
            "raw, hdd and sd",
            "hits, points",
            "SCM bytes",
            "worst",
            "real traces",
            "LRU beats it",
        ]);
        for candidate in SHOWN {
            let [bytes, worst] = self.bytes(candidate, |_| true);
            let [real, _] = self.bytes(candidate, |place| place.is_real());
            lines.push(Line::table(vec![
                Cell::plain(candidate),
                self.cell(&self.verdicts(candidate, false, |_| true)),
                self.cell(&self.verdicts(candidate, false, |place| place.is_real())),
                self.cell(&self.verdicts(candidate, true, |place| place.device != "ssd")),
                self.gap(candidate, |_| true),
                bytes,
                worst,
                real,
                self.beaten_by_lru(candidate),
            ]));
        }
        lines
    }

    fn aside(&self) -> Vec<Line> {
        let mut lines = heading(&[
            "policy",
            "same memory",
            "sd",
            "hdd",
            "ssd",
            "raw, hdd and sd",
            "hits, points",
            "SCM bytes",
        ]);
        for candidate in SHOWN {
            let mut cells =
                vec![Cell::plain(candidate), self.cell(&self.verdicts(candidate, false, |_| true))];
            for device in DEVICES {
                let here = |place: Place| place.device == device;
                cells.push(self.cell(&self.verdicts(candidate, false, here)));
            }
            cells.push(self.cell(&self.verdicts(candidate, true, |place| place.device != "ssd")));
            cells.push(self.gap(candidate, |_| true));
            let [bytes, _] = self.bytes(candidate, |_| true);
            cells.push(bytes);
            lines.push(Line::table(cells));
        }
        lines
    }

    /// A line for each trace, the worst mean first.
    fn by_trace(&self) -> Vec<Line> {
        let mut found = Vec::new();
        let mut traces: Vec<&str> = self.places.iter().map(|place| place.trace).collect();
        traces.dedup();
        for trace in traces {
            let here = |place: Place| place.trace == trace;
            let all = self.verdicts("everbyte", false, here);
            let mut cells = vec![Cell::plain(trace), self.cell(&all)];
            for device in DEVICES {
                let some = |place: Place| here(place) && place.device == device;
                cells.push(self.cell(&self.verdicts("everbyte", false, some)));
            }
            cells.push(self.gap("everbyte", here));
            let [bytes, _] = self.bytes("everbyte", here);
            cells.push(bytes);
            found.push((mean(all.iter().map(|one| one.ratio)), Line::table(cells)));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let names = ["trace", "all", "sd", "hdd", "ssd", "hits, points", "SCM bytes"];
        heading(&names).into_iter().chain(found.into_iter().map(|(_, line)| line)).collect()
    }

    /// Modes alone and rules changed or left out, each beside `soon`: drained time, hits, bytes.
    fn rules(&self) -> Vec<Line> {
        const BASE: &str = "soon";
        let names = ["rules", "time, generated", "worst", "time, real", "worst", "hits", "bytes"];
        let mut lines = heading(&names);
        for policy in self.results.words("policy") {
            let mut cells = vec![Cell::plain(policy)];
            for real in [false, true] {
                let [mean, worst] = self.beside(policy, BASE, real, |this, row| this.time(row));
                cells.extend([mean, worst]);
            }
            cells.push(self.points(policy, BASE));
            let bytes = |this: &Self, row| this.number(row, "scm_bytes");
            let [of_all, _] = self.beside(policy, BASE, true, bytes);
            cells.push(of_all);
            lines.push(Line::table(cells));
        }
        lines
    }

    /// Mean and worst of a figure as a multiple of another policy's.
    fn beside(
        &self,
        policy: &str,
        base: &str,
        real: bool,
        figure: impl Fn(&Self, RowNo) -> f64,
    ) -> [Cell; 2] {
        let (mut all, mut rows) = (Vec::new(), Vec::new());
        for &place in self.places.iter().filter(|place| place.is_real() == real) {
            if let (Some(a), Some(b)) = (self.row(place, policy), self.row(place, base))
                && figure(self, b) > 0.0
            {
                all.push(figure(self, a) / figure(self, b));
                rows.extend([a, b]);
            }
        }
        let worst = all.iter().copied().fold(0.0, f64::max);
        let mean = mean(all.into_iter());
        [self.of(format!("{mean:.3}"), &rows), self.of(format!("{worst:.2}"), &rows)]
    }

    /// Points of hits more than another policy.
    fn points(&self, policy: &str, base: &str) -> Cell {
        let (mut all, mut rows) = (Vec::new(), Vec::new());
        for &place in &self.places {
            if let (Some(a), Some(b)) = (self.row(place, policy), self.row(place, base)) {
                all.push(self.hits(a) - self.hits(b));
                rows.extend([a, b]);
            }
        }
        self.of(format!("{:+.2}", mean(all.into_iter())), &rows)
    }
}

fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::NAN, f64::from)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / count(values.len().max(1))
}
