//! One figure of the report: lines over the cache's size, one for each policy.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 360);
/// Colours that stay apart for most people with weak colour vision: half as many as there are policies, as each comes
/// twice.
const COLOURS: [RGBColor; 9] = [
    RGBColor(31, 78, 121),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(160, 140, 20),
    RGBColor(0, 0, 0),
];

/// A policy's line.
pub(super) struct Line {
    pub(super) name: String,
    /// Which look: the same number looks the same in every figure.
    pub(super) look: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// Contents of a figure.
pub(super) struct Figure {
    /// Titles of the axes: to the right, and up.
    pub(super) axes: [&'static str; 2],
    pub(super) lines: Vec<Line>,
}

impl Line {
    fn colour(&self) -> RGBColor {
        COLOURS[self.look % COLOURS.len()]
    }

    /// Colours come round again: the first time with points, then without.
    fn has_points(&self) -> bool {
        self.look < COLOURS.len()
    }
}

impl Figure {
    /// The figure as SVG and its legend, which stands beside it and so hides no line; `None` if there
    /// is nothing to show.
    pub(super) fn draw(&self) -> Result<Option<String>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|point| point.0).fold(0.0, f64::max);
        let top = points().map(|point| point.1).fold(0.0, f64::max);
        if points().next().is_none() || !(right > 0.0 && right.is_finite() && top.is_finite()) {
            return Ok(None);
        }
        let top = if top > 0.0 { top * 1.08 } else { 1.0 };
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let drawn = self.draw_on(&area, right * 1.02, top);
            drawn.map_err(|error| anyhow!("cannot draw {:?}: {error}", self.axes[1]))?;
        }
        svg = format!("<div class=\"plot\">{svg}<p>");
        for line in &self.lines {
            let RGBColor(red, green, blue) = line.colour();
            let sign = if line.has_points() { "&#9679;" } else { "&#8212;" };
            svg += &format!(
                "<span style=\"color:rgb({red},{green},{blue})\">{sign}</span>&nbsp;{}<br>",
                line.name
            );
        }
        Ok(Some(svg + "</p></div>"))
    }

    fn draw_on<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        right: f64,
        top: f64,
    ) -> Result<(), String> {
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(RGBColor(240, 243, 246))
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .draw()
            .map_err(failed)?;
        for line in &self.lines {
            let style = line.colour().stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), style);
            chart.draw_series(series).map_err(failed)?;
            if line.has_points() {
                let dots = line.points.iter().map(|at| Circle::new(*at, 3, line.colour().filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
        }
        area.present().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use everbyte_policy::sim::Kind;

    use super::*;

    #[test]
    fn no_two_policies_look_alike() {
        let mut looks = Vec::new();
        for (look, kind) in Kind::ALL.into_iter().enumerate() {
            let line = Line { name: String::new(), look, points: Vec::new() };
            let RGBColor(red, green, blue) = line.colour();
            let seen = (red, green, blue, line.has_points());
            assert!(!looks.contains(&seen), "{kind} looks like another policy");
            looks.push(seen);
        }
    }
}
