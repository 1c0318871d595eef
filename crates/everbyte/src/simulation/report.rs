//! The report: one page that needs nothing else, with the paper's five figures and what else tells
//! policies apart, for each trace.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use everbyte_policy::sim::Kind;

use super::args::{Backing, Setting};
use super::figure::{Figure, Line};
use super::paper;
use super::results::{Row, as_f64, baseline_of};
use crate::size::show_size;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;\
    padding:0 1rem;color:#1c2430}h1,h2,h3{line-height:1.2}svg{max-width:100%;height:auto}\
    table{border-collapse:collapse;font-size:13px;width:100%}td,th{padding:.15rem .5rem;\
    border-bottom:1px solid #dde3ea;text-align:left}td.n,th.n{text-align:right;\
    font-variant-numeric:tabular-nums}details{margin:.5rem 0}summary{cursor:pointer}.plot{display:flex;align-items:center;gap:1rem}\
    .plot svg{flex:1 1 auto;min-width:0}.plot p{flex:0 0 10rem;margin:0;font-size:13px}";

/// Bytes of a page, as a share of a MiB.
const PAGE_MIB: f64 = 4096.0 / 1_048_576.0;

/// A figure to be drawn: heading, explanation, axes, and the value of a row. Rows without a value
/// are left out.
struct Sketch {
    heading: &'static str,
    explanation: &'static str,
    axes: [&'static str; 2],
    x: fn(&Row) -> f64,
    y: fn(&Row, &[Row]) -> Option<f64>,
}

/// Everything that is the same for the lines of one figure.
fn group_of(row: &Row) -> String {
    let Setting { ratio, small_write_bytes, pseudo_code, backing, .. } = row.setting;
    let code = if pseudo_code { ", hybrid by its pseudo-code" } else { "" };
    format!(
        "{}: DRAM:SCM {ratio}, small writes up to {small_write_bytes} B, on {}{code}",
        row.trace,
        backing.name()
    )
}

/// The page.
///
/// # Errors
/// A figure cannot be drawn.
pub(crate) fn page(rows: &[Row]) -> Result<String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Everbyte: simulated caches\
         </title><style>{STYLE}</style></head><body><h1>Everbyte: simulated caches</h1>\
         <p>Counts are exact; times are counts multiplied by costs, without overlap. Policies of \
         one tier have no SCM. \"Normalised\" is divided by CLOCK with migration at the same \
         size, and left out where that was not simulated. Headings that end in \"as in the paper\" \
         are figures of Kang and Eom, <cite>A Buffer Cache Replacement Algorithm for Considering \
         both Hybrid Main Memory and Storage</cite>, Journal of KIISE 42(8), 2015.</p>"
    );
    // By trace, and there the paper's backing device first.
    let mut groups: BTreeMap<(&str, bool, String), Vec<Row>> = BTreeMap::new();
    for row in rows {
        let is_other = row.setting.backing != Backing::Sd;
        groups.entry((&row.trace, is_other, group_of(row))).or_default().push(row.clone());
    }
    for ((_, _, name), rows) in &groups {
        write!(page, "<h2>{}</h2>", escaped(name))?;
        trace_line(&mut page, &rows[0])?;
        paper::table(&mut page, rows)?;
        for sketch in sketches() {
            if let Some(svg) = sketch.figure(rows).draw()? {
                write!(page, "<h3>{}</h3><p>{}</p>{svg}", sketch.heading, sketch.explanation)?;
            }
        }
        figures_table(&mut page, rows)?;
        reasons(&mut page, rows)?;
        wear(&mut page, rows)?;
    }
    page += "</body></html>\n";
    Ok(page)
}

fn trace_line(page: &mut String, row: &Row) -> std::fmt::Result {
    let outcome = &row.outcome;
    write!(
        page,
        "<p>{} requests, {} accesses to pages, footprint {} pages ({}).</p>",
        outcome.requests,
        outcome.accesses(),
        outcome.footprint_pages,
        show_size(outcome.footprint_pages * 4096)
    )
}

fn percent_of_footprint(row: &Row) -> f64 {
    100.0 * f64::from(row.outcome.spec.pages) / as_f64(row.outcome.footprint_pages.max(1))
}

fn mib(row: &Row) -> f64 {
    f64::from(row.outcome.spec.pages) * PAGE_MIB
}

/// `part` of `whole`, if there is a whole.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| as_f64(part) / as_f64(whole))
}

/// The rows' value as a multiple of the baseline's. Policies of one tier have none.
fn normalised(row: &Row, rows: &[Row], value: fn(&Row) -> u64) -> Option<f64> {
    let baseline = baseline_of(row, rows)?;
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
            axes: [SHARE, "of CLOCK with migration"],
            x: percent_of_footprint,
            y: |row, rows| normalised(row, rows, |row| row.outcome.scm.writes),
        },
        Sketch {
            heading: "Writes to SCM of at most 512 bytes, as in the paper",
            explanation: "Their share of all writes to SCM.",
            axes: [SHARE, "% of writes"],
            x: percent_of_footprint,
            y: |row, _| {
                let scm = &row.outcome.scm;
                ratio(scm.writes_up_to_512_bytes, scm.writes).map(|share| 100.0 * share)
            },
        },
        Sketch {
            heading: "Bytes written to SCM, normalised, as in the paper",
            explanation: "What wears it.",
            axes: [SHARE, "of CLOCK with migration"],
            x: percent_of_footprint,
            y: |row, rows| normalised(row, rows, |row| row.outcome.scm.bytes),
        },
        Sketch {
            heading: "Elapsed time, as in the paper",
            explanation: "Of all steps of DRAM, SCM and the backing device under the costs assumed.",
            axes: [SHARE, "s"],
            x: percent_of_footprint,
            y: |row, _| Some(row.seconds()),
        },
        Sketch {
            heading: "Elapsed time with a drain",
            explanation: "The same and the time to write back what is dirty at the end, in the \
                          order of sectors.",
            axes: [SHARE, "s"],
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
            explanation: "Bytes written to the frame of SCM that was written most, as a multiple \
                          of the average frame's: 1 is perfectly even.",
            axes: [SHARE, "largest / average"],
            x: percent_of_footprint,
            y: |row, _| {
                let wear = &row.outcome.wear;
                (wear.bytes_mean > 0.0).then(|| as_f64(wear.bytes_max) / wear.bytes_mean)
            },
        },
    ]
}

impl Sketch {
    fn figure(&self, rows: &[Row]) -> Figure {
        let mut lines: Vec<Line> = Vec::new();
        for row in rows {
            let Some(y) = (self.y)(row, rows) else { continue };
            let policy = row.setting.policy;
            let point = ((self.x)(row), y);
            match lines.iter_mut().find(|line| line.name == policy.name()) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: policy.name().to_owned(),
                    look: Kind::ALL.iter().position(|kind| *kind == policy).unwrap_or(0),
                    points: vec![point],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Figure { axes: self.axes, lines }
    }
}

fn figures_table(page: &mut String, rows: &[Row]) -> std::fmt::Result {
    *page += "<h3>All figures</h3><table><thead><tr><th>policy<th class=\"n\">size<th class=\"n\">\
              hits<th class=\"n\">SCM writes<th class=\"n\">up to 512 B<th class=\"n\">SCM bytes\
              <th class=\"n\">pages fetched<th class=\"n\">pages written<th class=\"n\">dirty at \
              the end<th class=\"n\">time<th class=\"n\">with drain</tr></thead><tbody>";
    for row in rows {
        let outcome = &row.outcome;
        write!(
            page,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{:.2}%<td class=\"n\">{}<td class=\"n\">\
             {:.1}%<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}\
             <td class=\"n\">{:.3} s<td class=\"n\">{:.3} s</tr>",
            row.setting.policy,
            row.setting.size,
            100.0 * outcome.hit_ratio(),
            outcome.scm.writes,
            100.0 * row.small_share(),
            outcome.scm.bytes,
            outcome.backing.pages_read,
            outcome.backing.pages_written,
            outcome.backing.dirty_at_end,
            row.seconds(),
            row.seconds_with_drain(),
        )?;
    }
    *page += "</tbody></table>";
    Ok(())
}

/// Writes the reasons for which pages were filled, moved and evicted: a table for each size, with a
/// column for each policy.
fn reasons(page: &mut String, rows: &[Row]) -> std::fmt::Result {
    *page += "<h3>Reasons</h3><p>How often pages were filled, moved, dropped and evicted, and \
              why.</p>";
    let mut sizes: Vec<_> = rows.iter().map(|row| row.setting.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let here: Vec<&Row> = rows.iter().filter(|row| row.setting.size == size).collect();
        let mut counts: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        for (column, row) in here.iter().enumerate() {
            for count in &row.outcome.actions {
                let key = (count.action.as_str(), count.reason.as_str());
                counts.entry(key).or_insert_with(|| vec![0; here.len()])[column] += count.count;
            }
        }
        write!(page, "<details><summary>{size}</summary><table><thead><tr><th>action<th>reason")?;
        for row in &here {
            write!(page, "<th class=\"n\">{}", row.setting.policy)?;
        }
        *page += "</tr></thead><tbody>";
        for ((action, reason), counts) in counts {
            write!(page, "<tr><td>{}<td>{}", escaped(action), escaped(reason))?;
            for count in counts {
                write!(page, "<td class=\"n\">{count}")?;
            }
            *page += "</tr>";
        }
        *page += "</tbody></table></details>";
    }
    Ok(())
}

/// Writes a histogram of the bytes written to each frame of SCM.
fn wear(page: &mut String, rows: &[Row]) -> std::fmt::Result {
    *page += "<h3>Wear of each frame</h3><p>Frames of SCM by the bytes that were written to \
              them.</p><details><summary>Table</summary><table><thead><tr><th>policy\
              <th class=\"n\">size<th class=\"n\">average<th class=\"n\">most<th>frames by bytes\
              </tr></thead><tbody>";
    for row in rows.iter().filter(|row| row.outcome.wear.frames > 0) {
        let wear = &row.outcome.wear;
        write!(
            page,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{:.0}<td class=\"n\">{}<td>",
            row.setting.policy, row.setting.size, wear.bytes_mean, wear.bytes_max
        )?;
        for (class, frames) in wear.histogram.iter().enumerate().filter(|(_, n)| **n > 0) {
            match class {
                0 => write!(page, "{frames} unused; ")?,
                _ => write!(page, "{frames} below {}; ", show_size(1 << class.min(63)))?,
            }
        }
        *page += "</tr>";
    }
    *page += "</tbody></table></details>";
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
