//! The figures of the suite.

use super::names::{EXT4, FLOOR, LIBRARY, TMPFS, VOLUME};
use super::operation::Operation;
use super::rows::{P99_TO_EXT4, TO_TMPFS, TO_VOLUME};
use crate::report::figure::{Figure, Shape};
use crate::rows::metric;

fn figure(
    (title, explanation): (&str, &str),
    subjects: &[&str],
    operations: &[Operation],
    (metric, names): (&'static str, usize),
) -> Figure {
    let workload = |operation: &Operation| {
        let title = operation.title(names);
        let label = title.split(',').next().unwrap_or_default().to_owned();
        (title, label)
    };
    Figure {
        title: title.to_owned(),
        explanation: explanation.to_owned(),
        subjects: subjects.iter().map(|name| (*name).to_owned()).collect(),
        workloads: operations.iter().map(workload).collect(),
        metric,
        shape: Shape::Bars,
        logarithmic: false,
    }
}

/// All of them, for a directory of so many names.
pub(super) fn figures(names: usize) -> Vec<Figure> {
    use Operation::{
        Chmod, Create, CreateWhole, FsyncBesideLoad, Open, Read, Rename, Stat, Unlink,
    };
    let all = [Create, Unlink, Rename, Chmod, Stat, Open, CreateWhole];
    vec![
        Figure {
            logarithmic: true,
            ..figure(
                ("Operations on files", "Nanoseconds, logarithmic; shorter is better."),
                &[FLOOR, LIBRARY, TMPFS, EXT4],
                &all,
                (metric::TIME, names),
            )
        },
        figure(
            (
                "A change of metadata beside the floor",
                "Time as a multiple of 64 bytes streamed to memory and fenced; the kernel's file \
                 systems do not make theirs durable.",
            ),
            &[LIBRARY, TMPFS, EXT4],
            &[Create, Unlink, Rename, Chmod],
            (metric::TO_FLOOR, names),
        ),
        figure(
            (
                "Beside tmpfs through system calls",
                "Operations in a second as a multiple of tmpfs's.",
            ),
            &[LIBRARY, EXT4],
            &all,
            (TO_TMPFS, names),
        ),
        figure(
            (
                "Reading beside the block volume",
                "Time of a read of 4 KiB as a multiple of the volume's.",
            ),
            &[LIBRARY, TMPFS, EXT4, VOLUME],
            &[Read],
            (TO_VOLUME, names),
        ),
        figure(
            (
                "fsync beside load",
                "99th percentile of an append of 4 KiB with fsync, beside a thread that streams and \
                 one that makes files, as a share of ext4's.",
            ),
            &[LIBRARY],
            &[FsyncBesideLoad],
            (P99_TO_EXT4, names),
        ),
    ]
}
