//! The figures of the block suite.
//!
//! They ask today's rivals the questions of Figures 3, 4 and 6 of the NTL paper: the cost of a
//! block device beside the memory it lies on, the cost of a page cache where the device is as fast
//! as the cache, and the comparison of the translation layer with its alternatives.

use super::figure::{Figure, Shape};
use crate::replay;
use crate::rows::metric;
use crate::subjects::nbd::ServerKind;

const FOUR: [(&str, &str); 4] = [
    ("random read 4K t1", "random read"),
    ("random rewrite 4K checkpoint t1", "random write"),
    ("sequential read 4K t1", "sequential read"),
    ("sequential rewrite 4K checkpoint t1", "sequential write"),
];

/// All of them.
pub(crate) fn figures() -> Vec<Figure> {
    in_process().into_iter().chain(over_nbd()).collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn in_process() -> Vec<Figure> {
    let four = || FOUR.map(|(workload, label)| (workload.to_owned(), label.to_owned())).to_vec();
    vec![
        Figure {
            title: "What a block device costs (Figure 3 of the paper)".into(),
            explanation: "Requests of 4 KiB in a second, one thread, logarithmic: raw memory, a \
                          file in memory, and block devices over the same memory."
                .into(),
            subjects: owned(&["floor", "tmpfs", "everbyte-auto", "pmemblk-4096", "ext4-direct"]),
            workloads: four(),
            metric: metric::RATE,
            shape: Shape::Bars,
            logarithmic: true,
        },
        Figure {
            title: "What a page cache costs (Figure 4 of the paper)".into(),
            explanation: "Requests of 4 KiB in a second, logarithmic: ext4 on a loop device on \
                          tmpfs through the page cache and past it, and the volume, which has \
                          none. A write counts when it is durable."
                .into(),
            subjects: owned(&["ext4-buffered", "ext4-direct", "everbyte-auto"]),
            workloads: [
                ("random read 4K t1", "random read"),
                ("random rewrite 4K checkpoint t1", "write, flush at end"),
                ("random rewrite 4K flush/64 t1", "flush each 64"),
                ("random rewrite 4K fua t1", "each durable"),
            ]
            .map(|(workload, label)| (workload.to_owned(), label.to_owned()))
            .to_vec(),
            metric: metric::RATE,
            shape: Shape::Bars,
            logarithmic: true,
        },
        Figure {
            title: "The translation layer and its alternatives (Figure 6 of the paper)".into(),
            explanation: "Time of a 4 KiB request as a multiple of raw memory's, logarithmic; \
                          shorter is better. All write durably at the end of a slice at the \
                          latest; libpmemblk and raw memory do with every request."
                .into(),
            subjects: owned(&[
                "everbyte-auto",
                "everbyte-off",
                "everbyte-direct",
                "pmemblk-4096",
                "pmemblk-512",
                "tmpfs",
                "ext4-direct",
                "ext4-buffered",
            ]),
            workloads: four(),
            metric: metric::TO_FLOOR,
            shape: Shape::Bars,
            logarithmic: true,
        },
        Figure {
            title: "What ext4's own traffic stores".into(),
            explanation: "Bytes stored on the medium for each byte that ext4 wrote.".into(),
            subjects: owned(&replay::SUBJECTS),
            workloads: replay::traces()
                .into_iter()
                .map(|t| (t.clone(), t.replace("ext4-nojournal", "none:")))
                .collect(),
            metric: metric::MEDIA_BYTES,
            shape: Shape::Bars,
            logarithmic: false,
        },
    ]
}

fn over_nbd() -> [Figure; 2] {
    let figure = |action, title: &str, explanation: &str| Figure {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        subjects: owned(&ServerKind::ALL.map(ServerKind::name)),
        workloads: [1, 16, 64]
            .map(|d| (format!("nbd random {action} d{d} t1"), format!("{d} in flight")))
            .to_vec(),
        metric: metric::RATE,
        shape: Shape::Bars,
        logarithmic: false,
    };
    [
        figure("read 4K", "Servers over NBD, reading", "Random reads of 4 KiB in a second."),
        figure(
            "rewrite 4K checkpoint",
            "Servers over NBD, writing",
            "Random writes of 4 KiB in a second.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_ask_for_workloads_that_there_are() {
        let mut known: Vec<String> = crate::workload::in_process()
            .iter()
            .chain(&crate::workload::over_nbd())
            .map(ToString::to_string)
            .collect();
        known.extend(replay::traces());
        for figure in figures() {
            for (workload, _) in &figure.workloads {
                assert!(known.contains(workload), "{workload}");
            }
        }
    }
}
