//! One figure of the report: lines over the cache's size, one for each policy.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 360);
/// Colours that stay apart for most people with weak colour vision.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 78, 121),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(160, 140, 20),
];

/// What a figure shows.
pub(super) struct Figure {
    /// What goes to the right, and up.
    pub(super) axes: [&'static str; 2],
    /// Names and points of the lines.
    pub(super) lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Figure {
    /// The figure as SVG; `None` if there is nothing to show.
    pub(super) fn draw(&self) -> Result<Option<String>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
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
        Ok(Some(svg))
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
            .right_y_label_area_size(0)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(RGBColor(240, 243, 246))
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .draw()
            .map_err(failed)?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            // Colours come round again: lines of the second round are thinner.
            let width = if number < COLOURS.len() { 2 } else { 1 };
            let style = colour.stroke_width(width);
            let line = LineSeries::new(points.iter().copied(), style).point_size(3);
            let label = chart.draw_series(line).map_err(failed)?.label(name.clone());
            label.legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 205, 210))
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)
    }
}
