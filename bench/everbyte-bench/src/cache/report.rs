//! The figures of the cache suite: lines over sizes of the cache.

use super::run::workload;
use super::subject::Front;
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

/// All of them, for each of `streams`.
pub(crate) fn figures(streams: &[&str], percents: &[u32]) -> Vec<Figure> {
    let of_stream = |stream: &&str| {
        let figure = |title: &str, explanation: &str, metric, logarithmic| Figure {
            title: format!("{stream}: {title}"),
            explanation: explanation.to_owned(),
            subjects: Front::CACHES.map(Front::name).to_vec(),
            workloads: percents.iter().map(|&p| (workload(stream, p), format!("{p}%"))).collect(),
            metric,
            shape: Shape::Lines,
            logarithmic,
        };
        [
            figure(
                "faster than the backing device alone, counted",
                "All requests from a cold cache as a multiple of the backing device's rate, logarithmic, by \
                 size in percent of what the workload touches; nothing overlaps.",
                metric::COUNTED_TO_BACKING,
                true,
            ),
            figure(
                "what the misses alone would allow",
                "The same if nothing took time but fetching what was missed.",
                metric::BOUND,
                true,
            ),
            figure(
                "faster than the backing device alone, timed",
                "With a warm cache and a writer in the background, in real time, logarithmic.",
                metric::TO_BACKING,
                true,
            ),
            figure("hits", "Accesses to pages that found them, in percent.", metric::HITS, false),
            figure(
                "bytes written to storage-class memory",
                "For each request: in place, by moving pages, and to make DRAM durable.",
                "scm_bytes",
                false,
            ),
        ]
    };
    streams.iter().flat_map(of_stream).collect()
}
