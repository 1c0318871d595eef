//! The figures of the mount suite.

use super::calls::Call;
use super::server::Kind;
use super::{Settings, title};
use crate::index;
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

fn subjects(keeping: bool) -> Vec<String> {
    let kinds = Kind::ALL.into_iter().filter(|kind| !keeping || kind.keeps());
    kinds.map(|kind| kind.name().to_owned()).collect()
}

/// All of them.
pub(super) fn figures(settings: &Settings<'_>) -> Vec<Figure> {
    let calls = settings.cachings.iter().flat_map(|&caching| {
        Call::ALL.map(|call| {
            let title = title(call.name(), caching);
            (title.clone(), title)
        })
    });
    let calls: Vec<_> = calls.collect();
    let workloads = settings.cachings.iter().flat_map(|&caching| {
        settings.personalities.iter().flat_map(move |&personality| {
            settings.clients.iter().map(move |&threads| {
                let workload = index::title(personality, settings.files, threads);
                let short = format!("{}, {threads}", personality.name());
                (title(&workload, caching), title(&short, caching))
            })
        })
    });
    let figure = |title: &str, explanation: &str, keeping, workloads, metric| Figure {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        subjects: subjects(keeping),
        workloads,
        metric,
        shape: Shape::Bars,
        logarithmic: true,
    };
    vec![
        figure(
            "System calls",
            "Nanoseconds of a call, one thread; logarithmic. Direct: the kernel keeps nothing.",
            false,
            calls.clone(),
            metric::TIME,
        ),
        figure(
            "The server's share",
            "Nanoseconds of processor time that the server takes for a call; logarithmic.",
            false,
            calls,
            metric::SERVER_CPU,
        ),
        figure(
            "Filebench's workloads",
            "Operations in a second, by threads; logarithmic.",
            true,
            workloads.collect(),
            metric::RATE,
        ),
    ]
}
