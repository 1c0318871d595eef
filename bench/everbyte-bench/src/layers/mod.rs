//! The suite of layers: the gain of a page cache over a fast and a slow device, and the translation layer below ext4
//! compared with other devices.
//!
//! Remakes Figures 4 and 6 of Song, Moon and Noh, "I/O Translation Layer Technology for High-performance and
//! Compatibility Using New Memory" (2015). Our export and the slow devices lie below a loop device over `nbdfuse`,
//! because our layer is outside the kernel. `nbd-memory`, bare memory on the same path, measures the path. One thread
//! sends requests of 4 KiB to the files in turn.

mod place;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::baselines::Kind;
use crate::driver::{Common, Findings, Grid, Pace, Run, Suite};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;
use crate::subjects::mount_ns::in_mount_ns;
use crate::subjects::nbd::ServerKind;
use crate::workload::{Action, Pattern, Payload, Workload as Requests};
use place::{Device, Place, Size};

/// The paper's device in bytes.
const PAPER_DEVICE_BYTES: u64 = 10 << 30;
/// Bytes of a request.
const BYTES: usize = 4096;
/// Requests between reads of the clock.
const STRIDE: u64 = 8;
/// Seed of places.
const SEED: u64 = 0x1a_7e85;

/// Devices below ext4 in Figure 4: as fast as memory, and as slow as a disk.
const FAST_AND_SLOW: [Device; 2] = [Device::Ramdisk, Device::Export("disk", ServerKind::OurDisk)];
/// Devices below ext4 in Figure 6.
const LAYERS: [Device; 4] = [
    Device::Export("everbyte", ServerKind::OurVolume),
    Device::Export("nbd-memory", ServerKind::OurMemory),
    Device::Ramdisk,
    Device::Export("ssd", ServerKind::OurSsd),
];
/// Schemes in process: rollback, and the scheme of BPFS.
const SCHEMES: [Kind; 2] = [Kind::Rollback, Kind::Shadow];

/// The comparison in BPFS's own paper, as a workload of [`PUBLISHED`].
const BPFS_WORKLOAD: &str = "BPFS beside NTFS";
const BPFS: &str = "bpfs-published";
/// Speed of BPFS as a multiple of NTFS's, by Condit et al., "Better I/O Through Byte-Addressable,
/// Persistent Memory" (SOSP 2009): typically twice as fast on a RAM disk, 4 to 10 times on disk.
const PUBLISHED: [(&str, f64); 3] =
    [("rate_to_ramdisk", 2.0), ("rate_to_disk_least", 4.0), ("rate_to_disk_most", 10.0)];

/// Ratio of the rate to ext4's on a ramdisk in the same round.
const TO_RAMDISK: &str = "rate_to_ramdisk";
/// Ratio of the buffered rate to the direct rate in the same round.
const TO_DIRECT: &str = "rate_to_direct";

/// Measures ext4 on devices: on a ramdisk, on our export over NBD, on devices as slow as a disk and an
/// SSD, buffered and direct, by the four patterns of fio. Needs root, and `nbdfuse`.
#[derive(clap::Args, Clone)]
pub(crate) struct LayersArgs {
    #[command(flatten)]
    common: Common,
    /// Divisor of the paper's device size of 10 GB. Half of a device is read or written.
    #[arg(long, default_value_t = 20, value_name = "TIMES",
          value_parser = clap::value_parser!(u64).range(1..=160))]
    scale: u64,
    /// Number of files. Requests go to the files in turn.
    #[arg(long, default_value_t = 100, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    files: u16,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

impl LayersArgs {
    /// Bytes of each device, a multiple of 1 MiB.
    fn device_bytes(&self) -> u64 {
        (PAPER_DEVICE_BYTES / self.scale) >> 20 << 20
    }
}

impl Suite for LayersArgs {
    const NAME: &'static str = "layers";
    const PACE: Pace = Pace { rounds: 3, slice_s: 3.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.05 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.scale, self.files) = (160, 10);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let scale = settings.own.scale;
        let medium = format!(
            "memory, flushed as persistent memory must be; 1/{scale} of the paper's devices"
        );
        Ok(Findings::new(run(settings)?, medium, settings.own.device_bytes()))
    }
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Figure 4: buffered and direct, on memory and on a disk.
    Buffering,
    /// Figure 6: the translation layer and its alternatives.
    Layers,
}

type Settings = Run<LayersArgs>;

/// Way to files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caching {
    /// Through the page cache.
    Buffered,
    /// Without the page cache.
    Direct,
}

impl Caching {
    fn of<T>(self, buffered: T, direct: T) -> T {
        match self {
            Self::Buffered => buffered,
            Self::Direct => direct,
        }
    }
}

/// Something to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Workload {
    files: usize,
    requests: Requests,
    caching: Caching,
}

impl Workload {
    /// The four patterns of fio, buffered and direct, on `files` files.
    fn all(files: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for caching in [Caching::Direct, Caching::Buffered] {
            for action in [Action::Read, Action::Rewrite] {
                let requests = Requests::new(action, BYTES);
                all.push(Self { files, requests: requests.sequential(), caching });
                all.push(Self { files, requests, caching });
            }
        }
        all
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files =
            if self.files == 1 { "1 file".to_owned() } else { format!("{} files", self.files) };
        let pattern = match (self.requests.pattern, self.requests.writes()) {
            (Pattern::Sequential, false) => "sequential read",
            (Pattern::Random, false) => "random read",
            (Pattern::Sequential, true) => "sequential write",
            (Pattern::Random, true) => "random write",
        };
        write!(f, "{files}, {pattern}, {}", self.caching.of("buffered", "direct"))
    }
}

/// Requests of a slice and their time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    requests: u64,
    elapsed: Duration,
}

impl Sample {
    fn per_second(&self) -> f64 {
        as_f64(self.requests) / self.elapsed.as_secs_f64()
    }
}

/// Measures the selected parts.
///
/// # Errors
/// Tools are missing, no memory, or the user interrupted the run.
fn run(settings: &Settings) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let parts: [(Part, &[Device], &[Kind], usize); 2] = [
        (Part::Buffering, &FAST_AND_SLOW, &[], 1),
        (Part::Layers, &LAYERS, &SCHEMES, settings.own.files.into()),
    ];
    for (part, devices, schemes, files) in parts {
        if !settings.own.skip.contains(&part) {
            // The namespace ends with its thread, so no mount stays after any end of the process.
            rows.extend(in_mount_ns(|| measured(settings, devices, schemes, files))?);
        }
    }
    if !settings.own.skip.contains(&Part::Layers) {
        let published = |(metric, value)| exact(BPFS, BPFS_WORKLOAD, metric, "ratio", value);
        rows.extend(PUBLISHED.map(published));
    }
    Ok(rows)
}

/// Makes the places, measures every workload on each place and removes them.
fn measured(
    settings: &Settings,
    devices: &[Device],
    schemes: &[Kind],
    files: usize,
) -> Result<Vec<Row>> {
    let folder = settings.folder().join(format!("{files}-files"));
    std::fs::create_dir(&folder)?;
    let device_bytes = settings.own.device_bytes();
    // The files take half of the device, as in the paper.
    let file_bytes = device_bytes / 2 / files as u64 / BYTES as u64 * BYTES as u64;
    let size = Size { files, file_bytes, device_bytes };
    let mut places: Vec<Place> = Vec::new();
    for &device in devices {
        settings.progress.set_message(format!("making ext4 on {}", device.name()));
        let place = Place::ext4(device, &folder, size);
        places.push(place.with_context(|| format!("ext4 on {}", device.name()))?);
    }
    for &kind in schemes {
        settings.progress.set_message(format!("making {}", kind.name()));
        places.push(Place::scheme(kind, size)?);
    }
    let workloads = Workload::all(files);
    let mut grid = Grid::new(places.iter().map(Place::name), &workloads).select(
        settings,
        |subject| places[subject].name() == Device::Ramdisk.name(),
        |subject, workload| places[subject].allows(workloads[workload].caching),
    );
    grid.measure(settings, |subject, workload, round| {
        measure(&places[subject], &workloads[workload], file_bytes, settings.slice, round)
    })?;
    grid.check()?;
    Ok(rows_of(&grid, &workloads))
}

/// Sends requests until the end of the slice, or until they cover the bytes of the files.
fn measure(
    place: &Place,
    workload: &Workload,
    file_bytes: u64,
    slice: Duration,
    round: usize,
) -> Result<Sample> {
    // Each slice begins with cold caches and without dirty pages.
    place.prepare()?;
    let mut payload = Payload::new(&workload.requests, 0, round);
    let mut rng = SmallRng::seed_from_u64(SEED ^ round as u64);
    let (files, blocks) = (workload.files as u64, file_bytes / BYTES as u64);
    let mut requests = 0;
    let start = Instant::now();
    // Each byte is requested about once. More requests would measure a warm page cache.
    while requests < files * blocks
        && (requests == 0 || requests % STRIDE != 0 || start.elapsed() < slice)
    {
        let file = usize::try_from(requests % files)?;
        let block = match workload.requests.pattern {
            Pattern::Sequential => requests / files,
            Pattern::Random => rng.random_range(0..blocks),
        };
        let offset = block * BYTES as u64;
        if workload.requests.writes() {
            place.write(workload.caching, file, offset, payload.next(BYTES))?;
        } else {
            place.read(workload.caching, file, offset, payload.room(BYTES))?;
        }
        requests += 1;
    }
    if workload.requests.writes() {
        // Inside of the measured time, so buffered writes pay for durability too.
        place.sync()?;
    }
    Ok(Sample { requests, elapsed: start.elapsed() })
}

/// The rows, with ratios to the ramdisk and to direct requests.
fn rows_of(grid: &Grid<Sample>, workloads: &[Workload]) -> Vec<Row> {
    grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        rows.timed(metric::RATE, "1/s", own.iter().map(Sample::per_second));
        rows.timed(metric::TIME, "ns", own.iter().map(|sample| 1e9 / sample.per_second()));
        let mebibytes = own.iter().map(|sample| sample.per_second() * 4096.0 / 1_048_576.0);
        rows.timed("throughput", "MiB/s", mebibytes);
        let ramdisk = grid.base(cell, Device::Ramdisk.name());
        rows.ratio(TO_RAMDISK, own, ramdisk, Sample::per_second);
        // The base of a buffered row is the same workload with direct requests.
        let direct = Workload { caching: Caching::Direct, ..workloads[cell.workload] };
        let direct = workloads.iter().position(|other| *other == direct);
        let direct = direct.filter(|at| *at != cell.workload);
        let direct = direct.and_then(|at| grid.samples(rows.subject, at));
        rows.ratio(TO_DIRECT, own, direct, Sample::per_second);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Cell;

    #[test]
    fn rates_have_ratios_to_ramdisk_and_direct() {
        let workloads = Workload::all(1);
        let names: Vec<String> = workloads.iter().map(ToString::to_string).collect();
        assert_eq!(names[0], "1 file, sequential read, direct");
        assert_eq!(names[7], "1 file, random write, buffered");
        let sample = |requests| vec![Sample { requests, elapsed: Duration::from_secs(1) }];
        let mut grid = Grid::new(["ramdisk", "disk", "shadow"], &names);
        for (workload, n) in (1..=8).enumerate() {
            for (subject, requests) in [100 * n, 10 * n * n].into_iter().enumerate() {
                let samples = sample(requests);
                grid.cells.push(Cell { subject, workload, samples, failed: None });
            }
        }
        let rows = rows_of(&grid, &workloads);
        let value = |subject: &str, workload: &str, metric: &str| {
            let fits = |row: &&Row| {
                row.subject == subject && row.workload == workload && row.metric == metric
            };
            rows.iter().find(fits).and_then(|row| row.value)
        };
        assert_eq!(value("disk", &names[7], TO_RAMDISK), Some(0.8));
        assert_eq!(value("disk", &names[7], TO_DIRECT), Some(4.0));
        assert_eq!(value("ramdisk", &names[7], TO_DIRECT), Some(2.0));
        assert_eq!(value("disk", &names[3], TO_DIRECT), None);
        assert_eq!(value("shadow", &names[3], metric::RATE), None);
    }
}
