//! The figures of the cache suite: lines over sizes of the cache.

use super::Settings;
use super::run::{timed, workload};
use super::subject::Front;
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

/// All of them, for each of `places`: streams over devices.
pub(crate) fn figures(places: &[String], settings: &Settings<'_>) -> Vec<Figure> {
    let of_place = |place: &String| {
        let figure = |title: &str, explanation: &str, metric, logarithmic| Figure {
            title: format!("{place}: {title}"),
            explanation: explanation.to_owned(),
            subjects: Front::CACHES.map(Front::name).to_vec(),
            workloads: settings
                .percents
                .iter()
                .map(|&p| (workload(place, p), format!("{p}%")))
                .collect(),
            metric,
            shape: Shape::Lines,
            logarithmic,
        };
        let under = |clients: usize| {
            let mut figure = figure(
                &format!("faster than the backing device alone, timed, {clients} at a time"),
                "With a warm cache and a writer in the background, in real time, logarithmic.",
                metric::TO_BACKING,
                true,
            );
            figure.workloads.iter_mut().for_each(|(name, _)| *name = timed(name, clients));
            figure
        };
        let mut figures = vec![
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
            figure("hits", "Accesses to pages that found them, in percent.", metric::HITS, false),
            figure(
                "bytes written to storage-class memory",
                "For each request: in place, by moving pages, and to make DRAM durable.",
                "scm_bytes",
                false,
            ),
        ];
        if settings.rounds > 0 {
            figures.extend(settings.clients.iter().map(|&clients| under(clients)));
        }
        figures
    };
    places.iter().flat_map(of_place).collect()
}
