//! How much faster a cache makes a disk: the generated webserver workload over storage that is as
//! slow as a disk of 7200 turns a minute, by itself and behind a cache of part of the workload's
//! pages. Each request is waited for; every hundredth is followed by a flush in both.
//! `cargo run --release -p everbyte-cache --example webserver -- [REQUESTS [PERCENT]]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_block::{BlockOptions, BlockVolume, owners};
use everbyte_cache::{Cache, Identity, Mode, Settings, Writer, volume_bytes};
use everbyte_device::{BlockDevice, DelayDevice, DiskCosts, Fua, MemoryDevice};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_policy::sim::Kind;
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};
use everbyte_policy::trace::{Request, RequestOp};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};

const PAGE: u64 = 4096;
const FLUSH_EVERY: usize = 100;

/// The requests on one device: the files of the workload lie one after the other.
fn requests(count: usize) -> Result<(Vec<Request>, u64), Box<dyn Error>> {
    let mut requests = Vec::new();
    let mut ends = BTreeMap::new();
    generate(Workload::Webserver, &GenerateOptions::default(), &mut |request, _| {
        let end = ends.entry(request.file).or_insert(0);
        *end = (*end).max((request.offset + request.len).next_multiple_of(PAGE));
        requests.push(*request);
        Ok(())
    })?;
    let mut size_bytes = 0;
    let starts: BTreeMap<_, _> = ends
        .into_iter()
        .map(|(file, len)| {
            let start = size_bytes;
            size_bytes += len;
            (file, start)
        })
        .collect();
    for request in &mut requests {
        request.offset += starts[&request.file];
    }
    requests.truncate(count);
    Ok((requests, size_bytes))
}

/// The time that the requests take.
fn play(device: &dyn BlockDevice, requests: &[Request]) -> Result<Duration, Box<dyn Error>> {
    let mut buffer = vec![1; 1 << 20];
    let started = Instant::now();
    for (number, request) in requests.iter().enumerate() {
        let bytes = &mut buffer[..usize::try_from(request.len)?];
        match request.op {
            RequestOp::Read => device.read(request.offset, bytes)?,
            RequestOp::Write => device.write(request.offset, bytes, Fua::No)?,
            RequestOp::Zero | RequestOp::Trim | RequestOp::Flush => {}
        }
        if number % FLUSH_EVERY == 0 {
            device.flush()?;
        }
    }
    Ok(started.elapsed())
}

fn disk(size_bytes: u64) -> Arc<DelayDevice> {
    Arc::new(DelayDevice::new(Arc::new(MemoryDevice::new(size_bytes)), DiskCosts::default()))
}

fn cache(storage: Arc<DelayDevice>, percent: u64) -> Result<Arc<Cache>, Box<dyn Error>> {
    let identity = Identity { kind: "disk".into(), name: "model".into(), serial: String::new() };
    let storage_bytes = storage.geometry().size_bytes;
    let cached = storage_bytes * percent / 100;
    let settings = Settings {
        storage: identity.clone(),
        storage_bytes,
        dram_bytes: (cached / 4).max(PAGE),
        scm_bytes: (cached * 3 / 4).max(PAGE),
        mode: Mode::WriteBack,
        policy: Kind::Everbyte,
        small_write_bytes: 512,
    };
    let pool_bytes = (settings.memory_bytes_max() * 3 / 2 + (64 << 20)).next_multiple_of(PAGE);
    let medium = Mapped::anonymous(pool_bytes, &MediaOptions::new())?;
    Pool::format(&medium, 4, [1; 16])?;
    let pool = Pool::open(Arc::new(medium), owners(), &OpenOptions::default())?;
    let size_bytes = volume_bytes(storage_bytes);
    let options = BlockOptions::default();
    let volume =
        BlockVolume::create_as(&Arc::new(pool), "c", VolumeKind::Cache, size_bytes, &options)?;
    Cache::format(&volume, &settings)?;
    Ok(Arc::new(Cache::open(Arc::new(volume), storage, &identity)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let percent = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let (requests, size_bytes) = requests(count)?;
    // The disk alone has no state that warms up, so a part tells its rate.
    let part = &requests[..requests.len().min(1000)];
    let alone = play(&*disk(size_bytes), part)?;
    let cache = cache(disk(size_bytes), percent)?;
    let writer = Writer::start(&cache)?;
    let cached = play(&*cache, &requests)?;
    drop(writer);
    let stats = cache.stats();
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64();
    let (alone, cached) = (rate(part.len(), alone), rate(requests.len(), cached));
    println!("disk alone: {alone:.0} requests a second, by the first {}", part.len());
    println!("cache of {percent}%: {cached:.0} requests a second, by {}", requests.len());
    println!("ratio {:.1}; hits {:?} of 1000", cached / alone, stats.hit_permille());
    println!("written back: {} pages in {} runs", stats.written_back_pages, stats.write_back_runs);
    Ok(())
}
