//! The report: one page that needs nothing else, with figures and every row.
//!
//! The figures ask the questions of Figures 3, 4 and 6 of the NTL paper of today's rivals: what a
//! block device costs beside the memory it lies on, what a page cache costs where the device is
//! as fast as the cache, and how the translation layer compares with its alternatives. Subjects
//! that lose are drawn and listed like those that win.

mod figure;

use std::fmt::Write;

use anyhow::Result;

use crate::replay;
use crate::rows::{Results, Row, metric};
use crate::subjects::nbd::ServerKind;
use figure::Figure;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;\
    padding:0 1rem;color:#1c2430}h1,h2{line-height:1.2}svg{max-width:100%;height:auto}\
    table{border-collapse:collapse;font-size:13px;width:100%}td,th{padding:.15rem .5rem;\
    border-bottom:1px solid #dde3ea;text-align:left}td.n{text-align:right;\
    font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600}\
    .warn{background:#fff3cd;padding:.6rem}";

const FOUR: [(&str, &str); 4] = [
    ("random read 4K t1", "random read"),
    ("random rewrite 4K checkpoint t1", "random write"),
    ("sequential read 4K t1", "sequential read"),
    ("sequential rewrite 4K checkpoint t1", "sequential write"),
];

/// The page.
///
/// # Errors
/// A figure cannot be drawn.
pub(crate) fn page(results: &Results) -> Result<String> {
    let mut page = String::new();
    let environment = &results.environment;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Everbyte: block benchmarks\
         </title><style>{STYLE}</style></head><body><h1>Everbyte: block benchmarks</h1>\
         <p>{cpu}, {cores} cores, Linux {kernel}. Medium: {medium}. Devices of {size} MiB in \
         {folder}, huge pages {huge}. Medians of {rounds} rounds of {slice} s; load {load} when it \
         began.</p>",
        cpu = escaped(&environment.cpu),
        cores = environment.cores,
        kernel = escaped(&environment.kernel),
        medium = escaped(&environment.medium),
        size = environment.size_bytes >> 20,
        folder = escaped(&environment.folder),
        huge = escaped(&environment.huge_pages),
        rounds = environment.rounds,
        slice = environment.slice_s,
        load = environment.load,
    )?;
    if environment.debug_build || environment.rounds < 3 {
        page += "<p class=\"warn\">A debug build or a smoke test: the figures mean nothing.</p>";
    }
    for figure in figures().into_iter().chain(nbd_figures()) {
        if let Some(svg) = figure.draw(results)? {
            write!(page, "<h2>{}</h2><p>{}</p>{svg}", figure.title, figure.explanation)?;
        }
    }
    page += "<h2>All results</h2><p>Medians, with the first and third quartile in brackets; \
             exact counts have none.</p>";
    table(&mut page, &results.rows)?;
    page += "</body></html>\n";
    Ok(page)
}

fn figures() -> Vec<Figure> {
    let four = || FOUR.map(|(workload, label)| (workload.to_owned(), label.to_owned())).to_vec();
    vec![
        Figure {
            title: "What a block device costs (Figure 3 of the paper)",
            explanation: "Requests of 4 KiB in a second, one thread, logarithmic: raw memory, a \
                          file in memory, and block devices over the same memory.",
            subjects: vec!["floor", "tmpfs", "everbyte-auto", "pmemblk-4096", "ext4-direct"],
            workloads: four(),
            metric: metric::RATE,
            logarithmic: true,
        },
        Figure {
            title: "What a page cache costs (Figure 4 of the paper)",
            explanation: "Requests of 4 KiB in a second, logarithmic: ext4 on a loop device on \
                          tmpfs through the page cache and past it, and the volume, which has \
                          none. A write counts when it is durable.",
            subjects: vec!["ext4-buffered", "ext4-direct", "everbyte-auto"],
            workloads: [
                ("random read 4K t1", "random read"),
                ("random rewrite 4K checkpoint t1", "write, flush at end"),
                ("random rewrite 4K flush/64 t1", "flush each 64"),
                ("random rewrite 4K fua t1", "each durable"),
            ]
            .map(|(workload, label)| (workload.to_owned(), label.to_owned()))
            .to_vec(),
            metric: metric::RATE,
            logarithmic: true,
        },
        Figure {
            title: "The translation layer and its alternatives (Figure 6 of the paper)",
            explanation: "Time of a 4 KiB request as a multiple of raw memory's, logarithmic; \
                          shorter is better. All write durably at the end of a slice at the \
                          latest; libpmemblk and raw memory do with every request.",
            subjects: vec![
                "everbyte-auto",
                "everbyte-off",
                "everbyte-direct",
                "pmemblk-4096",
                "pmemblk-512",
                "tmpfs",
                "ext4-direct",
                "ext4-buffered",
            ],
            workloads: four(),
            metric: metric::TO_FLOOR,
            logarithmic: true,
        },
        Figure {
            title: "What ext4's own traffic stores",
            explanation: "Bytes stored on the medium for each byte that ext4 wrote.",
            subjects: replay::SUBJECTS.to_vec(),
            workloads: replay::traces()
                .into_iter()
                .map(|t| (t.clone(), t.replace("ext4-nojournal", "none:")))
                .collect(),
            metric: metric::MEDIA_BYTES,
            logarithmic: false,
        },
    ]
}

fn nbd_figures() -> [Figure; 2] {
    let figure = |action, title, explanation| Figure {
        title,
        explanation,
        subjects: ServerKind::ALL.map(ServerKind::name).to_vec(),
        workloads: [1, 16, 64]
            .map(|d| (format!("nbd random {action} d{d} t1"), format!("{d} in flight")))
            .to_vec(),
        metric: metric::RATE,
        logarithmic: false,
    };
    [
        figure("read 4K", "Servers over NBD, reading", "Random reads of 4 KiB in a second."),
        figure(
            "rewrite 4K checkpoint",
            "Servers over NBD, writing",
            "Random writes of 4 KiB in a second.",
        ),
    ]
}

fn table(page: &mut String, rows: &[Row]) -> std::fmt::Result {
    *page += "<table><thead><tr><th>workload<th>subject<th>metric<th>value<th>spread<th>unit\
              <th>note</tr></thead><tbody>";
    for row in rows {
        let value = row.value.map_or_else(|| "-".to_owned(), short);
        let spread = row.spread.map_or_else(String::new, |spread| {
            format!("[{}, {}]", short(spread.q1), short(spread.q3))
        });
        write!(
            page,
            "<tr><td>{}<td>{}<td>{}<td class=\"n\">{value}<td class=\"n\">{spread}<td>{}<td>{}",
            escaped(&row.workload),
            escaped(&row.subject),
            row.metric,
            row.unit,
            escaped(row.note.as_deref().unwrap_or("")),
        )?;
    }
    *page += "</tbody></table>";
    Ok(())
}

/// A figure with about three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_figures_are_short() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
        assert_eq!(
            [1234.5, 12.345, 1.2345, -0.5].map(short),
            ["1234", "12.3", "1.23", "-0.50"].map(str::to_owned)
        );
    }

    #[test]
    fn figures_ask_for_workloads_that_there_are() {
        let mut known: Vec<String> = crate::workload::in_process()
            .iter()
            .chain(&crate::workload::over_nbd())
            .map(ToString::to_string)
            .collect();
        known.extend(replay::traces());
        for figure in figures().into_iter().chain(nbd_figures()) {
            for (workload, _) in &figure.workloads {
                assert!(known.contains(workload), "{workload}");
            }
        }
    }
}
