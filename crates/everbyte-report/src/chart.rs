//! Charts: lines over numbers or over groups, and bars in groups.
//!
//! Invariants: places along the width are shares of it and heights are pixels, so a narrow window
//! moves points together and keeps the size of letters. A pointer over a point shows its value.

use crate::axis::{Axis, Scale, short};
use crate::escape::escaped;
use crate::look;

/// Pixels of rows of a chart of bars.
const HEADING_PX: u32 = 24;
const BAR_PX: u32 = 18;
const BAR_THICKNESS_PX: u32 = 12;
/// Share of the width that the longest bar takes: its value stands behind it.
const BAR_SHARE: f64 = 0.86;
/// Longest name before a bar, in characters. The words for a pointer have the whole name.
const NAME_CHARS: usize = 22;
/// Pixels of a character of a label, and of the plot in a narrow and in a wide window.
const CHARACTER_PX: usize = 7;
const NARROW_PX: usize = 290;
const WIDE_PX: usize = 860;

/// Pixels of a chart as a file: its width, the space above the plot, the plot of lines, and the names of bars.
const SVG_PX: u32 = 860;
const SVG_TOP_PX: u32 = 60;
const SVG_LINES_PX: u32 = 320;
const SVG_NAMES_PX: u32 = 180;
const SVG_STYLE: &str = include_str!("chart.css");

/// Values of some series.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The heading, for readers that do not see the drawing.
    pub title: String,
    /// The axis to the right of lines, and the groups of bars.
    pub across: HorizontalAxis,
    /// Title of the axis of values, with its unit.
    pub up: String,
    /// Scale of the axis of values.
    pub scale: Scale,
    /// Shape of the values.
    pub shape: Shape,
    /// Series in the order of the legend.
    pub series: Vec<Series>,
}

/// The horizontal axis.
#[derive(Clone, PartialEq, Debug)]
pub enum HorizontalAxis {
    /// Numbers from zero on, with the title of their axis.
    Numbers(String),
    /// Groups of these names; a point's `x` is the number of its group.
    Groups(Vec<String>),
}

/// Shape of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A line for each series, with a marker at each point.
    Lines,
    /// A bar for each point, in groups.
    Bars,
}

/// Values of one subject.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Number of its look. Charts of a page give a subject the same look.
    pub look: usize,
    /// Its points, ascending.
    pub points: Vec<Point>,
}

/// One value.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Its place to the right.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Words for a pointer behind the name of the series; the value if empty.
    pub words: String,
}

impl Chart {
    /// The number of looks that the chart needs.
    pub(crate) fn looks(&self) -> usize {
        self.series.iter().map(|series| series.look + 1).max().unwrap_or(0)
    }

    /// Returns the chart as HTML; `None` if it has no value.
    pub(crate) fn html(&self) -> Option<String> {
        let values = self.values()?;
        let label = escaped(&format!("{}: {}", self.title, self.up));
        let (class, height, body) = match self.shape {
            Shape::Lines => ("lines", String::new(), self.lines(&values)),
            Shape::Bars => {
                let (body, height) = self.bars(&values);
                ("bars", format!(" height=\"{height}\""), body)
            }
        };
        let mut html = format!(
            "<figure><p class=\"axis\">{}</p><svg class=\"{class}\"{height} role=\"img\" \
             aria-label=\"{label}\">{body}</svg>",
            escaped(&self.up)
        );
        if self.shape == Shape::Lines {
            if let HorizontalAxis::Numbers(title) = &self.across {
                html += &format!("<p class=\"axis right\">{}</p>", escaped(title));
            }
            html += &self.legend();
        }
        Some(html + "</figure>")
    }

    /// Returns the chart as an SVG file with its title and the title of its values; `None` if it has no value.
    #[must_use]
    pub fn svg(&self) -> Option<String> {
        let values = self.values()?;
        // Bars have their names on the left, and lines their numbers, which are shorter.
        let (body, left, height, legend) = match self.shape {
            Shape::Lines => {
                let (legend, below) = self.drawn_legend(SVG_TOP_PX + SVG_LINES_PX + 48);
                (self.lines(&values), 56, SVG_LINES_PX, (legend, 40 + below))
            }
            Shape::Bars => {
                let (body, height) = self.bars(&values);
                (body, SVG_NAMES_PX, height, (String::new(), 0))
            }
        };
        let (legend, below) = legend;
        let all = SVG_TOP_PX + height + below + 12;
        // The nested image gives the percentages of lines and bars their own width.
        let width = SVG_PX - left - 24;
        Some(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{SVG_PX}\" height=\"{all}\" \
             role=\"img\" aria-label=\"{title}\"><style>{SVG_STYLE}{}</style>\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\
             <text class=\"group\" x=\"12\" y=\"24\">{title}</text>\
             <text x=\"12\" y=\"44\">{}</text>\
             <svg x=\"{left}\" y=\"{SVG_TOP_PX}\" width=\"{width}\" height=\"{height}\">{body}</svg>\
             {legend}</svg>\n",
            look::style(self.looks()),
            match &self.across {
                HorizontalAxis::Numbers(across) => escaped(&format!("{}, by {across}", self.up)),
                HorizontalAxis::Groups(_) => escaped(&self.up),
            },
            title = escaped(&self.title),
        ))
    }

    fn values(&self) -> Option<Axis> {
        let values = self.points().map(|(_, point)| point.y);
        Axis::over(self.scale, self.shape == Shape::Bars, values)
    }

    fn points(&self) -> impl Iterator<Item = (&Series, &Point)> {
        let points = |series: &'_ Series| 0..series.points.len();
        self.series
            .iter()
            .flat_map(move |series| points(series).map(move |at| (series, &series.points[at])))
            // A value that is not a number would spoil the whole attribute of an SVG element.
            .filter(|(_, point)| point.x.is_finite() && point.y.is_finite())
    }

    fn words(&self, series: &Series, point: &Point) -> String {
        let words = match point.words.is_empty() {
            true => short(point.y),
            false => point.words.clone(),
        };
        escaped(&format!("{}: {words}", series.name))
    }

    fn lines(&self, values: &Axis) -> String {
        let places = self.points().map(|(_, point)| point.x);
        let axis = match &self.across {
            HorizontalAxis::Numbers(_) => Axis::over(Scale::Linear, true, places),
            // Groups have places, not values: the middle of each group's share.
            HorizontalAxis::Groups(_) => None,
        };
        let place = |x: f64| match (&axis, &self.across) {
            (Some(axis), _) => axis.percent(x).unwrap_or(0.0),
            (None, HorizontalAxis::Groups(groups)) => {
                100.0 * (x + 0.5) / as_f64(groups.len().max(1))
            }
            (None, HorizontalAxis::Numbers(_)) => 0.0,
        };
        let mut svg = String::new();
        for (at, words) in values.ticks() {
            let y = 100.0 - at;
            svg += &format!(
                "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.2}%\" y2=\"{y:.2}%\"/>\
                 <text class=\"up\" x=\"-8\" y=\"{y:.2}%\" dy=\".35em\">{words}</text>"
            );
        }
        for (at, words, class) in self.labels_across(axis.as_ref()) {
            svg += &format!(
                "<text class=\"across{class}\" x=\"{at:.2}%\" y=\"100%\" dy=\"1.5em\">{words}</text>"
            );
        }
        for series in &self.series {
            svg += &self.line(series, &place, values);
        }
        svg
    }

    fn line(&self, series: &Series, place: &impl Fn(f64) -> f64, values: &Axis) -> String {
        let look = series.look;
        let mut svg = format!("<g class=\"s{look} d{}\">", look::dash(look));
        let at = |point: &Point| Some((place(point.x), 100.0 - values.percent(point.y)?));
        for pair in series.points.windows(2) {
            if let (Some((x1, y1)), Some((x2, y2))) = (at(&pair[0]), at(&pair[1])) {
                svg += &format!(
                    "<line x1=\"{x1:.2}%\" y1=\"{y1:.2}%\" x2=\"{x2:.2}%\" y2=\"{y2:.2}%\"/>"
                );
            }
        }
        // After the lines: markers lie above them.
        for point in &series.points {
            if let Some((x, y)) = at(point) {
                svg += &format!(
                    "<g style=\"transform:translate({x:.2}%,{y:.2}%)\"><title>{}</title>{}</g>",
                    self.words(series, point),
                    look::marker_svg(look)
                );
            }
        }
        svg + "</g>"
    }

    /// Labels below the plot: their places, words, and a class for those that need a wide window.
    fn labels_across(&self, axis: Option<&Axis>) -> Vec<(f64, String, &'static str)> {
        let groups = match (axis, &self.across) {
            (Some(axis), _) => {
                return axis.ticks().map(|(at, words)| (at, escaped(words), "")).collect();
            }
            (None, HorizontalAxis::Groups(groups)) => groups,
            (None, HorizontalAxis::Numbers(_)) => return Vec::new(),
        };
        let longest = groups.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        // Estimated: a page without a script cannot measure text.
        let needed = (longest + 1) * CHARACTER_PX * groups.len();
        let [narrow, wide] = [NARROW_PX, WIDE_PX].map(|width| needed.div_ceil(width).max(1));
        // The labels of a narrow window are a subset of those of a wide one.
        let narrow = narrow.next_multiple_of(wide);
        let chosen = groups.iter().enumerate().filter(|(at, _)| at % wide == 0);
        let labels = chosen.map(|(at, name)| {
            let place = 100.0 * (as_f64(at) + 0.5) / as_f64(groups.len());
            (place, escaped(name), if at % narrow == 0 { "" } else { " wide" })
        });
        labels.collect()
    }

    fn legend(&self) -> String {
        let mut html = "<ul class=\"legend\">".to_owned();
        for series in &self.series {
            let look = series.look;
            let (dash, marker) = (look::dash(look), look::marker(look));
            let name = escaped(&series.name);
            html += &format!("<li><i class=\"d{dash} m{marker} s{look}\"></i>{name}");
        }
        html + "</ul>"
    }

    /// Names and markers of the series as a drawing that begins at `top`, and its height in pixels.
    fn drawn_legend(&self, top: u32) -> (String, u32) {
        let (mut svg, mut left, mut row) = (String::new(), 12, 0);
        for series in &self.series {
            // Estimated: an image without a script cannot measure text.
            let width = 32 + CHARACTER_PX * (series.name.chars().count() + 1);
            // An entry beyond the right edge begins the next row.
            if left + width > SVG_PX as usize {
                (left, row) = (12, row + BAR_PX);
            }
            let (look, y) = (series.look, top + row);
            svg += &format!(
                "<g class=\"s{look} d{}\" transform=\"translate({left} {y})\">\
                 <line x1=\"0\" x2=\"24\" y1=\"0\" y2=\"0\"/><g transform=\"translate(12 0)\">{}</g>\
                 <text x=\"30\" dy=\".35em\">{}</text></g>",
                look::dash(look),
                look::marker_svg(look),
                escaped(&series.name)
            );
            left += width;
        }
        (svg, row + BAR_PX)
    }

    /// The drawing and its height in pixels.
    fn bars(&self, values: &Axis) -> (String, u32) {
        let names = match &self.across {
            HorizontalAxis::Groups(names) => names.as_slice(),
            HorizontalAxis::Numbers(_) => &[],
        };
        let (mut body, mut top) = (String::new(), HEADING_PX);
        for (group, name) in names.iter().enumerate() {
            let is_here = |point: &Point| (point.x - as_f64(group)).abs() < 0.5;
            let here: Vec<_> = self.points().filter(|(_, point)| is_here(point)).collect();
            let places = here.iter().filter_map(|(s, p)| Some((*s, *p, values.percent(p.y)?)));
            let places: Vec<_> = places.collect();
            // A group without a value has no heading.
            if places.is_empty() {
                continue;
            }
            let y = top + HEADING_PX - 8;
            body += &format!("<text class=\"group\" x=\"0\" y=\"{y}\">{}</text>", escaped(name));
            top += HEADING_PX;
            for (series, point, percent) in places {
                body += &self.bar(series, point, BAR_SHARE * percent, top);
                top += BAR_PX;
            }
        }
        let mut svg = String::new();
        for (at, words) in values.ticks() {
            let x = BAR_SHARE * at;
            svg += &format!(
                "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"18\" y2=\"100%\"/>\
                 <text class=\"across\" x=\"{x:.2}%\" y=\"12\">{words}</text>"
            );
        }
        (svg + &body, top)
    }

    fn bar(&self, series: &Series, point: &Point, percent: f64, top: u32) -> String {
        let mut name: String = series.name.chars().take(NAME_CHARS).collect();
        // One character makes place for the ellipsis. The title has the whole name.
        if name.len() < series.name.len() {
            name.pop();
            name.push('\u{2026}');
        }
        let look = series.look;
        let (top_px, middle) = (top + (BAR_PX - BAR_THICKNESS_PX) / 2, top + BAR_PX / 2);
        format!(
            "<g class=\"s{look}\"><title>{}</title>\
             <text class=\"name\" x=\"-20\" y=\"{middle}\" dy=\".35em\">{}</text>\
             <g transform=\"translate(-10 {middle})\">{}</g>\
             <rect y=\"{top_px}\" width=\"{percent:.2}%\" height=\"{BAR_THICKNESS_PX}\"/>\
             <text class=\"value\" x=\"{percent:.2}%\" y=\"{middle}\" dx=\"5\" dy=\".35em\">{}</text></g>",
            self.words(series, point),
            escaped(&name),
            look::marker_svg(look),
            short(point.y)
        )
    }
}

/// A small count as a fraction's part.
fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, words: String::new() }
    }

    fn chart(shape: Shape, across: HorizontalAxis, series: &[(&str, &[(f64, f64)])]) -> Chart {
        let series = series.iter().enumerate().map(|(look, (name, points))| Series {
            name: (*name).to_owned(),
            look,
            points: points.iter().map(|(x, y)| point(*x, *y)).collect(),
        });
        Chart {
            title: "<t>".to_owned(),
            across,
            up: "a & b".to_owned(),
            scale: Scale::Linear,
            shape,
            series: series.collect(),
        }
    }

    #[test]
    fn lines_tell_values_and_names() {
        let across = HorizontalAxis::Numbers("size, MiB".to_owned());
        let series = [("lru", &[(0.0, 1.0), (10.0, 7.0)][..]), ("<i>", &[(5.0, 4.0)])];
        let html = chart(Shape::Lines, across, &series).html().unwrap();
        assert_eq!(html.matches("<svg").count(), 1);
        assert_eq!(html.matches("<title>").count(), 3);
        assert!(html.contains("<title>lru: 7.00</title>") && html.contains("&lt;i&gt;"), "{html}");
        assert!(!html.contains("<i>") && html.contains("a &amp; b"), "{html}");
        assert_eq!(html.matches("class=\"grid\"").count(), 5, "{html}");
    }

    #[test]
    fn bars_begin_at_zero_and_name_their_series() {
        let across = HorizontalAxis::Groups(vec!["one".to_owned(), "two".to_owned()]);
        let series = [("a", &[(0.0, 90.0), (1.0, 100.0)][..]), ("b", &[(1.0, 50.0)])];
        let html = chart(Shape::Bars, across, &series).html().unwrap();
        let half = format!("width=\"{:.2}%\"", 50.0 * BAR_SHARE);
        assert!(html.contains(&half), "{html}");
        assert_eq!(html.matches("<rect").count(), 3);
        assert!(html.contains(">two</text>"), "{html}");
    }

    #[test]
    fn svg_file_has_titles_and_names_of_series() {
        let series = [("lru", &[(0.0, 1.0), (10.0, 7.0)][..]), ("<i>", &[(5.0, 4.0)])];
        for (shape, across) in [
            (Shape::Lines, HorizontalAxis::Numbers("size, MiB".to_owned())),
            (Shape::Bars, HorizontalAxis::Groups((0..11).map(|at| at.to_string()).collect())),
        ] {
            let svg = chart(shape, across, &series).svg().unwrap();
            assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\""));
            assert!(svg.contains(">&lt;t&gt;</text>") && svg.contains(">a &amp; b"), "{svg}");
            assert!(svg.contains(">lru</text>") && svg.contains(">&lt;i&gt;</text>"), "{svg}");
            assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        }
        assert_eq!(chart(Shape::Bars, HorizontalAxis::Groups(Vec::new()), &[]).svg(), None);
    }

    #[test]
    fn charts_without_values_are_left_out() {
        let across = || HorizontalAxis::Groups(vec!["one".to_owned()]);
        for shape in [Shape::Lines, Shape::Bars] {
            assert_eq!(chart(shape, across(), &[]).html(), None);
            let series = [("a", &[(0.0, f64::NAN)][..])];
            assert_eq!(chart(shape, across(), &series).html(), None);
        }
    }

    #[test]
    fn labels_thin_out_in_narrow_windows() {
        let names: Vec<String> = (0..40).map(|at| format!("{at} threads")).collect();
        let points: Vec<(f64, f64)> = (0..40).map(|at| (f64::from(at), 1.0)).collect();
        let chart = chart(Shape::Lines, HorizontalAxis::Groups(names), &[("a", &points)]);
        let labels = chart.labels_across(None);
        let narrow = labels.iter().filter(|(_, _, class)| class.is_empty()).count();
        assert!(labels.len() * 12 * CHARACTER_PX <= WIDE_PX * 2, "{}", labels.len());
        assert!(narrow >= 2 && narrow * 11 * CHARACTER_PX <= NARROW_PX * 2, "{narrow}");
    }
}
