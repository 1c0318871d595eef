//! The report: one page with the paper's five figures, further figures, and the best policies, for
//! each trace.

use std::collections::BTreeMap;

use everbyte_policy::sim::{Costs, Kind, MemoryCosts, SIMULATOR_VERSION};
use everbyte_report::{
    Cell, Chart, HorizontalAxis, Page, Point, Provenance, Scale, Series, Shape, Table,
};

use super::groups::{Group, groups};
use super::paper;
use super::results::{Row, as_f64, baseline_of};
use super::task::Fingerprint;
use super::winners::{self, Contest};
use crate::size::show_size;

/// Bytes of a page, as a share of a MiB.
const PAGE_MIB: f64 = 4096.0 / 1_048_576.0;

/// The traces of a report.
pub(crate) type Traces = BTreeMap<String, Fingerprint>;

/// A figure to be drawn: heading, explanation, axes, and the value of a row. Rows without a value
/// are left out.
struct Sketch {
    heading: &'static str,
    explanation: &'static str,
    /// Title of the axis to the right, and of the axis of values with its unit.
    axes: [&'static str; 2],
    x: fn(&Row) -> f64,
    y: fn(&Row, &[Row]) -> Option<f64>,
}

/// The page of `rows`.
pub(crate) fn page(rows: &[Row], traces: &Traces) -> String {
    let mut page = Page::new("Everbyte: simulated caches");
    page.paragraph(
        "Counts are exact. Times are counts multiplied by costs, without overlap. Policies of one tier \
         have no SCM. \"Normalised\" is divided by CLOCK with migration at the same size, and is left \
         out if that was not simulated. Headings that end in \"as in the paper\" are figures of Kang \
         and Eom, \"A Buffer Cache Replacement Algorithm for Considering both Hybrid Main Memory and \
         Storage\", Journal of KIISE 42(8), 2015.",
    );
    // One set of figures for each group: rows of different ratios or devices cannot share an axis.
    for group in groups(rows) {
        page.heading(2, &group.name);
        page.paragraph(&format!("{}.", group.trace_figures()));
        best_policies(&mut page, &group);
        let rows = &group.rows;
        paper::table(&mut page, rows);
        for sketch in sketches() {
            page.section(3, sketch.heading, sketch.explanation, &sketch.chart(rows));
        }
        figures_table(&mut page, rows);
        reasons(&mut page, rows);
        wear(&mut page, rows);
    }
    page.footer(&provenance(rows, traces));
    page.finish()
}

/// Writes the best policies of each size.
fn best_policies(page: &mut Page, group: &Group) {
    /// Name, contest, and the form of the winning value.
    type Named = (&'static str, Contest, fn(f64) -> String);
    let contests: [Named; 3] = [
        ("most hits", winners::HITS, |share| format!("{:.2}%", 100.0 * share)),
        ("shortest time", winners::TIME, |seconds| format!("{seconds:.3} s")),
        ("fewest bytes to SCM", winners::SCM_BYTES, |bytes| {
            format!("{:.1} MiB", bytes / 1_048_576.0)
        }),
    ];
    let mut head = vec![Cell::number("size")];
    for (name, ..) in &contests {
        head.extend([Cell::words(*name), Cell::number("")]);
    }
    let mut table = Table { head, rows: Vec::new() };
    for size in winners::sizes(&group.rows) {
        let mut cells = vec![Cell::number(size.to_string())];
        for (_, contest, show) in &contests {
            let winners = contest.winners(&group.rows, size);
            let names = winners.as_ref().map_or_else(|| "-".to_owned(), winners::Winners::names);
            let value = winners.map_or_else(String::new, |winners| show(winners.value));
            cells.extend([Cell::words(names), Cell::number(value)]);
        }
        table.rows.push(cells);
    }
    page.heading(3, "Best policies by size");
    page.paragraph(
        "belady knows the future and takes no part. Times include a drain. A policy of one tier is \
         charged for the memory of everbyte, and takes no part in the comparison of times with \
         policies of two tiers if everbyte was not simulated.",
    );
    page.table(&table);
}

fn percent_of_footprint(row: &Row) -> f64 {
    100.0 * f64::from(row.outcome.spec.pages) / as_f64(row.outcome.footprint_pages.max(1))
}

fn mib(row: &Row) -> f64 {
    f64::from(row.outcome.spec.pages) * PAGE_MIB
}

/// `part` of `whole`, if `whole` is not zero.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| as_f64(part) / as_f64(whole))
}

/// The rows' value as a multiple of the baseline's; `None` for policies of one tier.
fn normalised(row: &Row, rows: &[Row], value: fn(&Row) -> u64) -> Option<f64> {
    let baseline = baseline_of(row, rows)?;
    // A policy of one tier has no SCM. Its 0 would look like a perfect result.
    if !row.setting.policy.has_two_tiers() {
        return None;
    }
    ratio(value(row), value(baseline))
}

fn sketches() -> Vec<Sketch> {
    const SHARE: &str = "cache, % of the footprint";
    vec![
        Sketch {
            heading: "Hit ratio, as in the paper",
            explanation: "Accesses whose page was in DRAM or SCM.",
            axes: [SHARE, "hits, %"],
            x: percent_of_footprint,
            y: |row, _| Some(100.0 * row.outcome.hit_ratio()),
        },
        Sketch {
            heading: "Writes to SCM, normalised, as in the paper",
            explanation: "In place, by filling and by moving pages.",
            axes: [SHARE, "writes, multiple of CLOCK with migration"],
            x: percent_of_footprint,
            y: |row, rows| normalised(row, rows, |row| row.outcome.scm.writes),
        },
        Sketch {
            heading: "Writes to SCM of at most 512 bytes, as in the paper",
            explanation: "Their share of all writes to SCM.",
            axes: [SHARE, "small writes, % of all"],
            x: percent_of_footprint,
            y: |row, _| {
                let scm = &row.outcome.scm;
                ratio(scm.writes_up_to_512_bytes, scm.writes).map(|share| 100.0 * share)
            },
        },
        Sketch {
            heading: "Bytes written to SCM, normalised, as in the paper",
            explanation: "These bytes wear SCM.",
            axes: [SHARE, "bytes, multiple of CLOCK with migration"],
            x: percent_of_footprint,
            y: |row, rows| normalised(row, rows, |row| row.outcome.scm.bytes),
        },
        Sketch {
            heading: "Elapsed time, as in the paper",
            explanation: "Of all steps of DRAM, SCM and the backing device under the costs assumed.",
            axes: [SHARE, "time, s"],
            x: percent_of_footprint,
            y: |row, _| Some(row.seconds()),
        },
        Sketch {
            heading: "Elapsed time with a drain",
            explanation: "The same and the time to write back all dirty pages at the end, in the order \
                          of sectors.",
            axes: [SHARE, "time, s"],
            x: percent_of_footprint,
            y: |row, _| Some(row.seconds_with_drain()),
        },
        Sketch {
            heading: "Miss ratio",
            explanation: "Over the cache's absolute size.",
            axes: ["cache, MiB", "misses, %"],
            x: mib,
            y: |row, _| Some(100.0 * (1.0 - row.outcome.hit_ratio())),
        },
        Sketch {
            heading: "Wear",
            explanation: "Bytes written to the frame of SCM that was written most, as a multiple of the \
                          average frame's: 1 is perfectly even.",
            axes: [SHARE, "wear, largest / average"],
            x: percent_of_footprint,
            y: |row, _| {
                let wear = &row.outcome.wear;
                (wear.bytes_mean > 0.0).then(|| as_f64(wear.bytes_max) / wear.bytes_mean)
            },
        },
    ]
}

impl Sketch {
    fn chart(&self, rows: &[Row]) -> Chart {
        let mut series: Vec<Series> = Vec::new();
        for row in rows {
            // A row without a value leaves a gap instead of a point at zero.
            let Some(y) = (self.y)(row, rows) else { continue };
            let policy = row.setting.policy;
            let words = format!("{y:.3} ({}; cache of {})", self.axes[1], row.setting.size);
            let point = Point { x: (self.x)(row), y, words };
            match series.iter_mut().find(|line| line.name == policy.name()) {
                Some(line) => line.points.push(point),
                None => series.push(Series {
                    name: policy.name().to_owned(),
                    // By the list of all policies, so that a policy looks the same in every chart
                    // and report.
                    look: Kind::ALL.iter().position(|kind| *kind == policy).unwrap_or(0),
                    points: vec![point],
                }),
            }
        }
        for line in &mut series {
            // Rows come in the order of options, and a line must run along its axis.
            line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        Chart {
            title: self.heading.to_owned(),
            across: HorizontalAxis::Numbers(self.axes[0].to_owned()),
            up: self.axes[1].to_owned(),
            scale: Scale::Linear,
            shape: Shape::Lines,
            series,
        }
    }
}

fn figures_table(page: &mut Page, rows: &[Row]) {
    let numbers = [
        "size",
        "hits",
        "SCM writes",
        "up to 512 B",
        "SCM bytes",
        "pages fetched",
        "pages written",
        "dirty at the end",
        "time",
        "with drain",
        "same memory",
    ];
    let head = std::iter::once(Cell::words("policy")).chain(numbers.map(Cell::number));
    let mut table = Table { head: head.collect(), rows: Vec::new() };
    for row in rows {
        let outcome = &row.outcome;
        let same_memory = row.seconds_with_same_memory(rows);
        let cells = [
            row.setting.size.to_string(),
            format!("{:.2}%", 100.0 * outcome.hit_ratio()),
            outcome.scm.writes.to_string(),
            format!("{:.1}%", 100.0 * row.small_share()),
            outcome.scm.bytes.to_string(),
            outcome.backing.pages_read.to_string(),
            outcome.backing.pages_written.to_string(),
            outcome.backing.dirty_at_end.to_string(),
            format!("{:.3} s", row.seconds()),
            format!("{:.3} s", row.seconds_with_drain()),
            same_memory.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3} s")),
        ];
        let policy = std::iter::once(Cell::words(row.setting.policy.name()));
        table.rows.push(policy.chain(cells.map(Cell::number)).collect());
    }
    page.heading(3, "All figures");
    page.table(&table);
}

/// Writes the reasons for the fills, moves and evictions of pages: a table for each size, with a
/// column for each policy.
fn reasons(page: &mut Page, rows: &[Row]) {
    page.heading(3, "Reasons");
    page.paragraph("How often pages were filled, moved, dropped and evicted, and why.");
    for size in winners::sizes(rows) {
        let here: Vec<&Row> = rows.iter().filter(|row| row.setting.size == size).collect();
        let mut counts: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        for (column, row) in here.iter().enumerate() {
            for count in &row.outcome.actions {
                let key = (count.action.as_str(), count.reason.as_str());
                counts.entry(key).or_insert_with(|| vec![0; here.len()])[column] += count.count;
            }
        }
        let policies = here.iter().map(|row| Cell::number(row.setting.policy.name()));
        let head = [Cell::words("action"), Cell::words("reason")].into_iter().chain(policies);
        let rows = counts.into_iter().map(|((action, reason), counts)| {
            let counts = counts.into_iter().map(|count| Cell::number(count.to_string()));
            [Cell::words(action), Cell::words(reason)].into_iter().chain(counts).collect()
        });
        let table = Table { head: head.collect(), rows: rows.collect() };
        page.folded(&size.to_string(), &table);
    }
}

/// Writes a histogram of the bytes written to each frame of SCM.
fn wear(page: &mut Page, rows: &[Row]) {
    page.heading(3, "Wear of each frame");
    page.paragraph("Frames of SCM by the bytes that were written to them.");
    let head = vec![
        Cell::words("policy"),
        Cell::number("size"),
        Cell::number("average"),
        Cell::number("most"),
        Cell::words("frames by bytes"),
    ];
    let mut table = Table { head, rows: Vec::new() };
    for row in rows.iter().filter(|row| row.outcome.wear.frames > 0) {
        let wear = &row.outcome.wear;
        let classes = wear.histogram.iter().enumerate().filter(|(_, frames)| **frames > 0);
        let classes = classes.map(|(class, frames)| match class {
            0 => format!("{frames} unused"),
            _ => format!("{frames} below {}", show_size(1 << class.min(63))),
        });
        table.rows.push(vec![
            Cell::words(row.setting.policy.name()),
            Cell::number(row.setting.size.to_string()),
            Cell::number(format!("{:.0}", wear.bytes_mean)),
            Cell::number(wear.bytes_max.to_string()),
            Cell::words(classes.collect::<Vec<_>>().join("; ")),
        ]);
    }
    page.folded("Table", &table);
}

/// The facts of the footer.
fn provenance(rows: &[Row], traces: &Traces) -> Provenance {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let mut facts = vec![("Simulator".to_owned(), format!("version {SIMULATOR_VERSION}"))];
    let mut devices: Vec<(&str, Costs)> = Vec::new();
    for row in rows {
        let device = (row.setting.backing.name(), row.outcome.spec.costs);
        // By costs too: a file of costs can change between two simulations.
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    facts.extend(devices.iter().map(|(name, costs)| (format!("Costs of {name}"), words_of(costs))));
    facts.extend(traces.iter().map(|(path, fingerprint)| {
        let path = if path == "-" { "standard input" } else { path };
        ("Trace".to_owned(), format!("{path}: {fingerprint}"))
    }));
    Provenance {
        unix_s: now,
        version: format!("everbyte {}", env!("CARGO_PKG_VERSION")),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        facts,
    }
}

/// Costs in words.
fn words_of(costs: &Costs) -> String {
    let memory = |name: &str, costs: &MemoryCosts| {
        let MemoryCosts { operation_ns, read_line_ns, write_line_ns } = costs;
        format!(
            "{name}: {operation_ns} ns an operation, {read_line_ns} ns a line read, {write_line_ns} ns \
             a line written"
        )
    };
    let backing = &costs.backing;
    format!(
        "read {} ns a page and {} ns a jump; write {} ns a page and {} ns a jump; turn {} ns in {} \
         writes. {}. {}.",
        backing.read_page_ns,
        backing.read_jump_ns,
        backing.write_page_ns,
        backing.write_jump_ns,
        backing.turn_ns,
        backing.batch_writes,
        memory("DRAM", &costs.dram),
        memory("SCM", &costs.scm)
    )
}
