//! The figures of the suite of layers.

use super::{
    BPFS, BPFS_WORKLOAD, Caching, Device, FAST_AND_SLOW, LAYERS, PUBLISHED, SCHEMES, TO_DIRECT,
    TO_RAMDISK, Workload,
};
use crate::report::figure::{Figure, Shape};

/// The way to our exports and slow devices.
const WAY: &str = "Our exports and the slow devices lie below a loop device over nbdfuse; `nbd-memory` is \
                   bare memory behind the same. A write counts when it is durable, reads begin with \
                   nothing cached.";

/// All of them; `scale` is how much smaller than the paper's the devices are.
pub(super) fn figures(files: usize, scale: u64) -> Vec<Figure> {
    let mut figures = buffering();
    figures
        .extend([layers(files, scale, Caching::Direct), layers(files, scale, Caching::Buffered)]);
    figures.extend(beside(files));
    figures
}

/// Patterns of requests to so many files.
fn groups(files: usize, caching: Caching) -> Vec<(String, String)> {
    let all = Workload::all(files).into_iter();
    let wanted = all.filter(|workload| workload.caching == caching);
    wanted.map(|workload| (workload.to_string(), workload.pattern().to_owned())).collect()
}

fn named(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name().to_owned()).collect()
}

/// Figure 4, and the rates that it is made of.
fn buffering() -> Vec<Figure> {
    let figure = |title: &str, explanation: String, caching, metric| Figure {
        title: title.to_owned(),
        explanation,
        subjects: named(&FAST_AND_SLOW),
        workloads: groups(1, caching),
        metric,
        shape: Shape::Bars,
        logarithmic: true,
    };
    let in_a_second = || "Requests of 4 KiB in a second, logarithmic.".to_owned();
    vec![
        figure(
            "What a page cache is worth (Figure 4 of the paper)",
            format!(
                "Rate of 4 KiB requests through the page cache as a multiple of that past it, logarithmic: \
                 above 1 the cache pays. The paper: buffering wins on the disk, direct wins or ties on \
                 memory. {WAY}"
            ),
            Caching::Buffered,
            TO_DIRECT,
        ),
        figure("Rates past the page cache", in_a_second(), Caching::Direct, "rate"),
        figure("Rates through the page cache", in_a_second(), Caching::Buffered, "rate"),
    ]
}

/// Figure 6.
fn layers(files: usize, scale: u64, caching: Caching) -> Figure {
    let mut subjects = named(&LAYERS);
    let words = if caching == Caching::Direct {
        subjects.extend(SCHEMES.map(|kind| kind.name().to_owned()));
        "direct"
    } else {
        "buffered"
    };
    Figure {
        title: format!("Layers below ext4, {words} (Figure 6 of the paper)"),
        explanation: format!(
            "MiB/s of 4 KiB requests in {files} files, logarithmic; devices and bytes are 1/{scale} of the \
             paper's 10 GB and 5 GB. `rollback` and `shadow`, the scheme of BPFS, are in process, without a \
             file system. {WAY}"
        ),
        subjects,
        workloads: groups(files, caching),
        metric: "throughput",
        shape: Shape::Bars,
        logarithmic: true,
    }
}

/// Ratios to ext4 on a ramdisk, and what BPFS published.
fn beside(files: usize) -> [Figure; 2] {
    [
        Figure {
            title: "Beside ext4 on a ramdisk".into(),
            explanation: "Rates as a multiple of those of ext4 on a ramdisk, direct. The paper has its layer \
                          above ext4 on a ramdisk, and BPFS by its published numbers, which are those of \
                          the next table."
                .into(),
            subjects: ["everbyte", "nbd-memory", "ssd", "rollback", "shadow"].map(str::to_owned).to_vec(),
            workloads: groups(files, Caching::Direct),
            metric: TO_RAMDISK,
            shape: Shape::Table(&[TO_RAMDISK]),
            logarithmic: false,
        },
        Figure {
            title: "BPFS beside NTFS, as published".into(),
            explanation: "Its paper (SOSP 2009): typically twice as fast as NTFS on a RAM disk, 4 to 10 times \
                          as on a disk."
                .into(),
            subjects: vec![BPFS.to_owned()],
            workloads: vec![(BPFS_WORKLOAD.to_owned(), BPFS_WORKLOAD.to_owned())],
            metric: PUBLISHED[0].0,
            shape: Shape::Table(&[PUBLISHED[0].0, PUBLISHED[1].0, PUBLISHED[2].0]),
            logarithmic: false,
        },
    ]
}
