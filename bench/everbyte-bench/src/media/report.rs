//! The figures of the suite of single requests: lines over the size of a request.

use everbyte_media::Technology;

use super::{Access, PAPER, SIMULATOR, SIZES, TO_LARGEST, size, title};
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

/// All of them.
pub(super) fn figures() -> Vec<Figure> {
    let figure =
        |access: Access, metric, heading: &str, explanation: &str, others: &[&str]| Figure {
            title: heading.to_owned(),
            explanation: explanation.to_owned(),
            subjects: Technology::ALL
                .into_iter()
                .map(|technology| technology.name().to_owned())
                .chain(others.iter().map(|name| (*name).to_owned()))
                .collect(),
            workloads: SIZES.map(|bytes| (title(access, bytes), size(bytes))).to_vec(),
            metric,
            shape: Shape::Lines,
            logarithmic: true,
        };
    vec![
        figure(
            Access::Write,
            TO_LARGEST,
            "A write as a share of one of 4 KiB (Figure 1 of the paper)",
            "Time of a durable write by its size, logarithmic. The paper measured a board with PRAM: \
             writes smaller than 4 KiB are 2 times cheaper at 2 KiB and 32 times at 2 bytes. The \
             simulator charges an operation and its lines. Left out: the board's bus and controller.",
            &[SIMULATOR, PAPER],
        ),
        figure(
            Access::Read,
            TO_LARGEST,
            "A read as a share of one of 4 KiB (Figure 1 of the paper)",
            "Time of a read by its size, logarithmic; no number of the paper is known here.",
            &[SIMULATOR],
        ),
        figure(
            Access::Write,
            metric::TIME,
            "Time of a write",
            "Nanoseconds of a write that is durable when it returns, logarithmic.",
            &[SIMULATOR],
        ),
        figure(
            Access::Read,
            metric::TIME,
            "Time of a read",
            "Nanoseconds, logarithmic. Reads of one thread that do not wait for each other overlap on \
             real memory; the emulation adds up what each costs.",
            &[SIMULATOR],
        ),
    ]
}
