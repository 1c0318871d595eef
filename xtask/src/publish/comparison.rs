//! Tables of simulations: a policy compared with others over traces, sizes and backing devices.
//!
//! A place is a trace, a size and a backing device. Ratios are means of the ratios of single places, not ratios of sums.

use std::collections::HashMap;

use serde::Deserialize;

use super::format::{Cell, CellTable, fill};
use super::pattern::selects;
use super::results::{Results, RowNo};

/// Largest ratio of a policy close to the best one.
const WITHIN: f64 = 1.05;

/// A line for each trace or policy, and columns of comparisons.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Comparison {
    /// Column of results for the lines: `trace` or `policy`.
    lines: String,
    /// The compared policy of lines of traces.
    #[serde(default)]
    ours: String,
    /// Policies of lines of policies; empty for all.
    #[serde(default)]
    policies: Vec<String>,
    /// Policies with one tier. A charged comparison adds the memory time of the compared policy to their time.
    #[serde(default)]
    one_tier: Vec<String>,
    /// Patterns of traces; empty for all.
    #[serde(default)]
    traces: Vec<String>,
    #[serde(default)]
    not_traces: Vec<String>,
    compare: Vec<Column>,
}

/// A comparison over some places.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Column {
    title: String,
    /// Column of results; `hits` are in percent of the accesses.
    #[serde(default)]
    of: String,
    /// Policies to compare with; of many, the best one at each place.
    #[serde(default)]
    base: Vec<String>,
    #[serde(default)]
    unit: Unit,
    #[serde(default)]
    is_charged: bool,
    /// Template of `mean`, `least`, `most` and `within`, the percentage of places within a twentieth of the base.
    #[serde(default)]
    show: String,
    #[serde(default)]
    traces: Vec<String>,
    #[serde(default)]
    not_traces: Vec<String>,
    #[serde(default)]
    sizes: Vec<String>,
    #[serde(default)]
    backing: Vec<String>,
    /// Figures of papers, by line.
    #[serde(default)]
    given: Vec<[String; 2]>,
}

/// Unit of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    #[default]
    Ratio,
    /// Change in percent.
    Change,
    /// Difference.
    Points,
}

/// A place of the results.
#[derive(Clone, Copy)]
struct Place<'a> {
    trace: &'a str,
    size: &'a str,
    backing: &'a str,
}

type Places<'a> = HashMap<&'a str, Vec<Place<'a>>>;

/// Values of single places, with their rows.
#[derive(Default)]
struct Values {
    all: Vec<f64>,
    rows: Vec<RowNo>,
}

impl Comparison {
    pub(crate) fn table(&self, results: &Results) -> CellTable {
        let head = std::iter::once(self.lines.clone());
        let head = head.chain(self.compare.iter().map(|column| column.title.clone())).collect();
        let mut table = CellTable { head, rows: Vec::new() };
        let places = places(results);
        for line in self.lines(results) {
            let mut cells = vec![Cell::plain(line)];
            for column in &self.compare {
                cells.push(match column.show.is_empty() {
                    true => {
                        let given = column.given.iter().find(|[name, _]| name == line);
                        Cell::plain(given.map_or("", |[_, figure]| figure))
                    }
                    false => self.values(results, &places, line, column).cell(&column.show),
                });
            }
            table.rows.push(cells);
        }
        table
    }

    /// Lines, titles of columns and means, for a chart.
    pub(crate) fn means(&self, results: &Results) -> (Vec<String>, Vec<(String, Vec<f64>)>) {
        let (lines, places) = (self.lines(results), places(results));
        let series = self.compare.iter().map(|column| {
            let means = lines.iter().map(|line| self.values(results, &places, line, column).mean());
            (column.title.clone(), means.collect())
        });
        (lines.iter().map(|&line| line.to_owned()).collect(), series.collect())
    }

    fn lines<'a>(&self, results: &'a Results) -> Vec<&'a str> {
        let mut lines = results.words(&self.lines);
        match self.lines.as_str() {
            "trace" => lines.retain(|trace| self.is_wanted(trace)),
            _ => lines.retain(|line| selects(line, &self.policies, &[])),
        }
        lines
    }

    fn is_wanted(&self, trace: &str) -> bool {
        selects(trace, &self.traces, &self.not_traces)
    }

    fn values(
        &self,
        results: &Results,
        places: &Places<'_>,
        line: &str,
        column: &Column,
    ) -> Values {
        let (policy, trace) = match self.lines.as_str() {
            "trace" => (self.ours.as_str(), Some(line)),
            _ => (line, None),
        };
        let mut values = Values::default();
        for &place in places.get(policy).into_iter().flatten() {
            // A line of traces compares one policy at one trace, a line of policies at all traces.
            let is_here = trace.is_none_or(|trace| trace == place.trace);
            if is_here && self.is_wanted(place.trace) && column.is_wanted(place) {
                values.add(self.compare(results, place, policy, column));
            }
        }
        values
    }

    /// The value at a place, and its rows.
    fn compare(
        &self,
        results: &Results,
        place: Place<'_>,
        policy: &str,
        column: &Column,
    ) -> Option<(f64, [RowNo; 2])> {
        let row = |policy: &str| {
            let Place { trace, size, backing } = place;
            results.row(&format!("{trace}|{policy}|{size}|{backing}"))
        };
        let our_row = row(policy)?;
        let ours = number(results, our_row, &column.of)?;
        // A single base may be the policy itself: its ratio of 1 shows the reference line. The best of many bases leaves
        // the policy out, so a policy is never its own rival.
        let bases = column.base.iter().filter(|name| column.base.len() == 1 || *name != policy);
        let found = bases.filter_map(|name| {
            let row = row(name)?;
            let value = match column.is_charged && self.one_tier.contains(name) {
                true => {
                    // One-tier policies have all frames as DRAM. With the memory time of ours, only the backing device differs.
                    let memory = ours - number(results, our_row, "backing_with_drain_ns")?;
                    number(results, row, "backing_with_drain_ns")? + memory
                }
                false => number(results, row, &column.of)?,
            };
            Some((value, row))
        });
        let order = |a: &(f64, RowNo), b: &(f64, RowNo)| a.0.total_cmp(&b.0);
        let (base, base_row) = match column.unit {
            // Points compare hits, so the best base has the most.
            Unit::Points => found.max_by(order)?,
            _ => found.min_by(order)?,
        };
        let value = match column.unit {
            Unit::Points => ours - base,
            Unit::Ratio if base > 0.0 => ours / base,
            Unit::Change if base > 0.0 => 100.0 * (ours / base - 1.0),
            // Zero compared with zero is no change; a value compared with zero has no ratio.
            Unit::Change if ours == 0.0 => 0.0,
            _ => return None,
        };
        Some((value, [our_row, base_row]))
    }
}

fn number(results: &Results, row: RowNo, column: &str) -> Option<f64> {
    let value = results.number(row, column)?;
    Some(match column {
        "hits" => 100.0 * value / results.number(row, "accesses")?.max(1.0),
        "hit_ratio" => 100.0 * value,
        _ => value,
    })
}

/// Places of each policy.
fn places(results: &Results) -> Places<'_> {
    let mut places = Places::new();
    for row in 0..results.rows.len() {
        let word = |column| results.word(row, column);
        let place = Place { trace: word("trace"), size: word("size"), backing: word("backing") };
        places.entry(word("policy")).or_default().push(place);
    }
    places
}

impl Column {
    fn is_wanted(&self, place: Place<'_>) -> bool {
        selects(place.trace, &self.traces, &self.not_traces)
            && selects(place.size, &self.sizes, &[])
            && selects(place.backing, &self.backing, &[])
    }
}

impl Values {
    fn add(&mut self, found: Option<(f64, [RowNo; 2])>) {
        if let Some((value, rows)) = found {
            self.all.push(value);
            self.rows.extend(rows);
        }
    }

    fn mean(&self) -> f64 {
        let count = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.all.iter().sum::<f64>() / f64::from(count)
    }

    fn cell(&self, template: &str) -> Cell {
        let all = || self.all.iter().copied();
        let cell = fill(template, |name| {
            let value = match name {
                _ if self.all.is_empty() => return None,
                "mean" => self.mean(),
                "least" => all().fold(f64::INFINITY, f64::min),
                "most" => all().fold(f64::NEG_INFINITY, f64::max),
                "within" => {
                    // A mean of 0 and 100 is a percentage.
                    let share = |value| if value <= WITHIN { 100.0 } else { 0.0 };
                    Self { all: all().map(share).collect(), rows: Vec::new() }.mean()
                }
                _ => return None,
            };
            Some((value, Vec::new()))
        });
        Cell { rows: self.rows.clone(), ..cell }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::of_csv;
    use super::*;

    fn results() -> Results {
        let text = "trace,policy,size,backing,hits,accesses,time,elapsed_with_drain_ns,backing_with_drain_ns\n\
                    web,ours,10%,sd,6,10,30,30,20\nweb,ours,20%,sd,8,10,10,10,5\n\
                    web,lru,10%,sd,5,10,15,15,15\nweb,lru,20%,sd,9,10,10,10,10\n\
                    log,ours,10%,sd,1,10,7,7,6\nlog,lru,10%,sd,1,10,0,0,0\n";
        let (columns, rows) = of_csv(text, &[]).unwrap();
        Results::new("s", ["c", "w", "m", "r"].map(str::to_owned), columns, rows).unwrap()
    }

    fn texts(text: &str) -> Vec<Vec<String>> {
        let comparison: Comparison = toml::from_str(text).unwrap();
        let table = comparison.table(&results());
        table.rows.into_iter().map(|row| row.into_iter().map(|cell| cell.text).collect()).collect()
    }

    #[test]
    fn lines_of_traces_compare_with_base() {
        let text = "lines = 'trace'\nours = 'ours'\ncompare = [\
                    { title = 'a', of = 'time', base = ['lru'], show = '{mean:2}, {most:1}' },\
                    { title = 'b', of = 'time', base = ['lru'], unit = 'change', sizes = ['10%'], show = '{least:+0}' },\
                    { title = 'c', of = 'hits', base = ['lru'], unit = 'points', show = '{mean:+1}' },\
                    { title = 'd', given = [['web', '7']] }]";
        // A base of zero has no ratio.
        assert_eq!(
            texts(text),
            [["log", "", "", "+0.0", ""], ["web", "1.50, 2.0", "+100", "+0.0", "7"]]
        );
    }

    #[test]
    fn charged_base_pays_memory_time_of_ours() {
        let text = "lines = 'policy'\npolicies = ['ours']\none_tier = ['lru']\nnot_traces = ['l*']\ncompare = [\
                    { title = 'a', of = 'elapsed_with_drain_ns', base = ['ours', 'lru'], is_charged = true, show = '{within:0}% {mean:3}' }]";
        // 30 / (15 + 10) and 10 / (10 + 5).
        assert_eq!(texts(text), [["ours", "50% 0.933"]]);
    }
}
