//! One figure: a group for each workload, with a bar for each subject, or a line for each subject
//! over all groups.

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::{escaped, short};
use crate::rows::Results;
use crate::stats::as_f64;

/// Pixels of a figure, and of the part of it that the legend takes, right of the plot.
const SIZE: (u32, u32) = (1080, 400);
const LEGEND_WIDTH: u32 = 230;
/// Pixels from one name of the legend to the next.
const LEGEND_STEP: i32 = 17;
/// Share of a group's width that its bars take.
const GROUP_SHARE: f64 = 0.86;
/// Colours that stay apart for most people with weak colour vision.
const COLOURS: [RGBColor; 12] = [
    RGBColor(31, 78, 121),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(160, 140, 20),
    RGBColor(0, 0, 0),
    RGBColor(140, 86, 75),
    RGBColor(240, 228, 66),
    RGBColor(110, 60, 160),
];

/// Drawing of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Bars,
    Lines,
    /// A table with a line for each workload, and for each of these metrics a column for each subject.
    Table(&'static [&'static str]),
    /// A table with a line for each workload: the value of the first subject, and its note.
    Verdicts,
}

/// Title, subjects and values of a figure.
pub(crate) struct Figure {
    pub(crate) title: String,
    /// Shown as it is: words of ours.
    pub(crate) explanation: String,
    pub(crate) subjects: Vec<String>,
    /// Workloads, with the words that stand under their groups.
    pub(crate) workloads: Vec<(String, String)>,
    pub(crate) metric: &'static str,
    pub(crate) shape: Shape,
    pub(crate) logarithmic: bool,
}

/// A bar in its place: group, subject, value.
struct Bar {
    group: usize,
    subject: usize,
    value: f64,
}

impl Figure {
    /// The figure as SVG, or a table as HTML; `None` if there is nothing to show.
    pub(crate) fn draw(&self, results: &Results) -> Result<Option<String>> {
        if let Shape::Table(metrics) = self.shape {
            return Ok(self.table(results, metrics));
        }
        if self.shape == Shape::Verdicts {
            return Ok(self.verdicts(results));
        }
        let bars = self.bars(results);
        let largest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let smallest = bars.iter().map(|bar| bar.value).fold(f64::INFINITY, f64::min);
        if bars.is_empty() || largest <= 0.0 {
            return Ok(None);
        }
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let drawn = if self.logarithmic {
                let bottom = 10_f64.powf(smallest.log10().floor());
                self.draw_on(&area, &bars, bottom, (bottom..largest * 2.0).log_scale())
            } else {
                self.draw_on(&area, &bars, 0.0, 0.0..largest * 1.15)
            };
            drawn.map_err(|error| anyhow!("cannot draw {:?}: {error}", self.title))?;
        }
        Ok(Some(svg))
    }

    fn table(&self, results: &Results, metrics: &[&str]) -> Option<String> {
        let columns = || metrics.iter().flat_map(|m| self.subjects.iter().map(move |s| (*m, s)));
        let mut table = String::from("<table><thead><tr><th>");
        table.extend(columns().map(|(metric, subject)| {
            format!("<th>{} ({})", escaped(&metric.replace('_', " ")), escaped(subject))
        }));
        table += "</tr></thead><tbody>";
        let mut is_empty = true;
        for (workload, label) in &self.workloads {
            table += &format!("<tr><td>{}", escaped(label));
            for (metric, subject) in columns() {
                let value = results.find(subject, workload, metric).and_then(|row| row.value);
                is_empty &= value.is_none();
                let value = value.map_or_else(|| "-".to_owned(), short);
                table += &format!("<td class=\"n\">{value}");
            }
        }
        table += "</tbody></table>";
        (!is_empty).then_some(table)
    }

    fn verdicts(&self, results: &Results) -> Option<String> {
        let mut lines = String::new();
        for (workload, label) in &self.workloads {
            let row = self.subjects.first().and_then(|s| results.find(s, workload, self.metric));
            let Some(row) = row else { continue };
            let value = row.value.map_or_else(|| "-".to_owned(), short);
            let note = escaped(row.note.as_deref().unwrap_or(""));
            lines += &format!("<tr><td>{}<td class=\"n\">{value}<td>{note}", escaped(label));
        }
        (!lines.is_empty()).then(|| format!("<table><tbody>{lines}</tbody></table>"))
    }

    fn bars(&self, results: &Results) -> Vec<Bar> {
        let mut bars = Vec::new();
        for (group, (workload, _)) in self.workloads.iter().enumerate() {
            for (subject, name) in self.subjects.iter().enumerate() {
                let row = results.find(name, workload, self.metric);
                if let Some(value) = row.and_then(|row| row.value).filter(|value| *value > 0.0) {
                    bars.push(Bar { group, subject, value });
                }
            }
        }
        bars
    }

    /// Left and right end of a bar, in groups.
    fn place(&self, bar: &Bar) -> (f64, f64) {
        let width = GROUP_SHARE / as_f64(self.subjects.len() as u64);
        let left = as_f64(bar.group as u64) + (1.0 - GROUP_SHARE) / 2.0;
        let left = left + width * as_f64(bar.subject as u64);
        (left, left + width * 0.92)
    }

    fn draw_on<B: DrawingBackend, Y>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        bars: &[Bar],
        bottom: f64,
        range: Y,
    ) -> Result<(), String>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
        area.fill(&WHITE).map_err(failed)?;
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        self.draw_legend(&legend, bars)?;
        let groups = as_f64(self.workloads.len() as u64);
        let mut chart = ChartBuilder::on(&plot)
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..groups, range)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(RGBColor(240, 243, 246))
            .y_label_formatter(&|value| self.label(*value))
            .draw()
            .map_err(failed)?;
        for subject in 0..self.subjects.len() {
            let colour = COLOURS[subject % COLOURS.len()];
            let own = bars.iter().filter(|bar| bar.subject == subject);
            let drawn = match self.shape {
                Shape::Bars | Shape::Table(_) | Shape::Verdicts => {
                    chart.draw_series(own.map(|bar| {
                        let (left, right) = self.place(bar);
                        Rectangle::new([(left, bottom), (right, bar.value)], colour.filled())
                    }))
                }
                Shape::Lines => {
                    let points = own.map(|bar| (as_f64(bar.group as u64) + 0.5, bar.value));
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))
                }
            };
            drawn.map_err(failed)?;
        }
        for (group, (_, label)) in self.workloads.iter().enumerate() {
            let centre = as_f64(group as u64) + 0.5;
            let at = chart.backend_coord(&(centre, bottom));
            let style = TextStyle::from(("sans-serif", 14)).pos(centred());
            area.draw(&Text::new(label.clone(), (at.0, at.1 + 8), style)).map_err(failed)?;
        }
        area.present().map_err(failed)
    }

    /// Names and colours of the subjects that have something in the plot, one below the other.
    fn draw_legend<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        bars: &[Bar],
    ) -> Result<(), String> {
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
        let mut top = 12;
        for (subject, name) in self.subjects.iter().enumerate() {
            if bars.iter().any(|bar| bar.subject == subject) {
                let colour = COLOURS[subject % COLOURS.len()];
                let sign = Rectangle::new([(4, top), (16, top + 10)], colour.filled());
                area.draw(&sign).map_err(failed)?;
                let words = Text::new(name.clone(), (22, top - 1), ("sans-serif", 13));
                area.draw(&words).map_err(failed)?;
                top += LEGEND_STEP;
            }
        }
        Ok(())
    }

    /// The words at a line of the upward axis; a logarithmic one has them at decades alone.
    fn label(&self, value: f64) -> String {
        let exponent = value.log10();
        let is_decade = (exponent - exponent.round()).abs() < 1e-6;
        if is_decade || !self.logarithmic { short(value) } else { String::new() }
    }
}

fn centred() -> plotters::style::text_anchor::Pos {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    Pos::new(HPos::Center, VPos::Top)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::exact;

    /// Texts of a figure with their places from the left, in pixels.
    fn texts(svg: &str) -> Vec<(f64, String)> {
        let lines: Vec<&str> = svg.lines().collect();
        let text = |pair: &[&str]| {
            let x = pair[0].strip_prefix("<text x=\"")?.split('"').next()?.parse().ok()?;
            Some((x, pair[1].to_owned()))
        };
        lines.windows(2).filter_map(text).collect()
    }

    #[test]
    fn the_legend_stands_beside_the_plot_and_decades_alone_are_labelled() {
        let environment = crate::environment::Environment::new("/dev/shm".as_ref(), 0, 1, 0.0);
        let rows = vec![
            exact("quick", "one", "time", "ns", 3.0),
            exact("slow", "one", "time", "ns", 40_000.0),
            exact("quick", "two", "time", "ns", 50.0),
        ];
        let results = Results { suite: "block", environment, rows };
        let figure = Figure {
            title: "times".to_owned(),
            explanation: String::new(),
            subjects: ["quick", "slow", "absent"].map(str::to_owned).to_vec(),
            workloads: ["one", "two"].map(|name| (name.to_owned(), name.to_owned())).to_vec(),
            metric: "time",
            shape: Shape::Bars,
            logarithmic: true,
        };
        let svg = figure.draw(&results).unwrap().unwrap();
        let texts = texts(&svg);
        let at = |wanted: &str| texts.iter().find(|(_, text)| text == wanted).map(|(x, _)| *x);
        let plot_ends = f64::from(SIZE.0 - LEGEND_WIDTH);
        assert!(at("quick").unwrap() > plot_ends && at("slow").unwrap() > plot_ends, "{texts:?}");
        assert!(at("one").unwrap() < plot_ends);
        assert_eq!(at("absent"), None);
        let numbers = texts.iter().filter_map(|(_, text)| text.parse::<f64>().ok());
        let numbers: Vec<f64> = numbers.collect();
        assert!(numbers.len() >= 4, "{texts:?}");
        assert!(numbers.iter().all(|number| number.log10().fract().abs() < 1e-9), "{numbers:?}");
    }
}
