//! The figures of the suite of wear.

use super::placement::Rule;
use super::{CENTILE, IN_PLACE, MOST, UNUSED};
use crate::report::figure::{Figure, Shape};

/// All of them, for each of `traces`.
pub(super) fn figures(traces: &[&str]) -> Vec<Figure> {
    let figure = |title: &str, explanation: &str, metric, shape| Figure {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        subjects: Rule::ALL.map(|rule| rule.name().to_owned()).to_vec(),
        workloads: traces.iter().map(|name| ((*name).to_owned(), (*name).to_owned())).collect(),
        metric,
        shape,
        logarithmic: shape == Shape::Bars,
    };
    vec![
        figure(
            "Wear of the frame that is written most",
            "Lines written to it as a multiple of the average frame's, logarithmic: 1 is perfectly even, and \
             the medium lasts that much shorter.",
            MOST,
            Shape::Bars,
        ),
        figure(
            "The same without the worst hundredth",
            "Of the frame that one of a hundred exceeds, logarithmic.",
            CENTILE,
            Shape::Bars,
        ),
        figure(
            "Frames without any write, and what is stored in place",
            "Percent of all frames; percent of the lines of the frame that is written most. No placement of \
             new blocks evens what is stored in place.",
            UNUSED,
            Shape::Table(&[UNUSED, IN_PLACE]),
        ),
    ]
}
