//! The report: one page that needs nothing else, with figures and every row. Subjects that lose are
//! drawn and listed like those that win.

pub(crate) mod block;
pub(crate) mod figure;

use std::fmt::Write;

use anyhow::Result;

use crate::rows::{Results, Row};
use figure::Figure;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;\
    padding:0 1rem;color:#1c2430}h1,h2{line-height:1.2}svg{max-width:100%;height:auto}\
    table{border-collapse:collapse;font-size:13px;width:100%}td,th{padding:.15rem .5rem;\
    border-bottom:1px solid #dde3ea;text-align:left}td.n{text-align:right;\
    font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600}\
    .warn{background:#fff3cd;padding:.6rem}";

/// Renders the page, with `figures` of `results`; a figure without results is left out.
///
/// # Errors
/// A figure cannot be drawn.
pub(crate) fn page(title: &str, results: &Results, figures: &[Figure]) -> Result<String> {
    let mut page = String::new();
    let environment = &results.environment;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}\
         </title><style>{STYLE}</style></head><body><h1>{title}</h1>\
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
    if environment.debug_build || environment.quick {
        page += "<p class=\"warn\">A debug build or a smoke test: the figures mean nothing.</p>";
    }
    for figure in figures {
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
    use crate::environment::Environment;

    #[test]
    fn text_is_escaped_and_figures_are_short() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
        assert_eq!(
            [1234.5, 12.345, 1.2345, -0.5].map(short),
            ["1234", "12.3", "1.23", "-0.50"].map(str::to_owned)
        );
    }

    #[test]
    fn a_page_warns_of_smoke_tests_and_not_of_counts_of_one_round() {
        let warns = |quick: bool| {
            let mut environment = Environment::new("/dev/shm".as_ref(), 0, 1, 0.0);
            (environment.debug_build, environment.quick) = (false, quick);
            let results = Results { suite: "wear", environment, rows: Vec::new() };
            page("wear", &results, &[]).unwrap().contains("the figures mean nothing")
        };
        assert_eq!([false, true].map(warns), [false, true]);
    }
}
