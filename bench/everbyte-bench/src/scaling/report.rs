//! The figures of the suite of scaling: predicted rates over the number of threads.

use super::{PREDICTED, PREDICTED_LANES, PREDICTED_OPTANE, THREADS, kinds, title};
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

/// All of them.
pub(super) fn figures() -> Vec<Figure> {
    kinds()
        .into_iter()
        .map(|(kind, workload)| Figure {
            title: format!("Predicted: {kind} ({workload})"),
            explanation: "Requests a second, at most, with a processor for each thread: with the default \
                          lanes, with 64, and with 64 on six interleaved Optane DIMMs (published bandwidth)."
                .to_owned(),
            subjects: [PREDICTED, PREDICTED_LANES, PREDICTED_OPTANE].map(str::to_owned).to_vec(),
            workloads: THREADS.map(|n| (title(kind, n), n.to_string())).to_vec(),
            metric: metric::RATE,
            shape: Shape::Lines,
            logarithmic: true,
        })
        .collect()
}
