//! Throughput of 4 KiB random writes: into DRAM itself, into a volume in process, over NBD.
//!
//! One thread measures every figure now, for a fixed time. The time ends with everything durable by
//! the medium's rules. The figures are not benchmarks: runs are short, and the floor and the volume
//! lie in DRAM of this process, independent of the medium of the demonstration's pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_nbd::Client;
use everbyte_pool::{OpenOptions, Pool};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Duration of each measurement.
const TIME: Duration = Duration::from_millis(600);
/// Bytes of the written range, equal for all measurements.
const REACH_BYTES: u64 = 32 << 20;
/// Number of requests under way together over NBD.
const QUEUE_DEPTH: usize = 16;
/// Writes between two looks at the clock.
const BATCH: u64 = 64;

/// A figure of the table.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub(super) struct Throughput {
    /// Name of the target of the writes.
    pub(super) what: &'static str,
    /// Writes of 4 KiB.
    pub(super) writes: u64,
    /// Writes a second.
    pub(super) writes_per_s: f64,
    /// Bytes a second.
    pub(super) bytes_per_s: f64,
    /// Share of the first row, in percent.
    pub(super) percent_of_floor: f64,
}

/// Blocks in random order with different bytes in each write.
struct Load {
    random: SmallRng,
    blocks: Vec<Vec<u8>>,
    next: usize,
}

impl Load {
    fn new() -> Self {
        let mut random = SmallRng::seed_from_u64(2);
        let mut block = || {
            let mut bytes = vec![0; BLOCK];
            random.fill(&mut bytes[..]);
            bytes
        };
        // An odd number of blocks: the same block seldom meets the same bytes again, which would
        // cost nothing.
        let blocks = (0..31).map(|_| block()).collect();
        Self { random, blocks, next: 0 }
    }

    fn next(&mut self) -> (u64, &[u8]) {
        let at = self.random.random_range(0..REACH_BYTES / BLOCK_U64) * BLOCK_U64;
        self.next = (self.next + 1) % self.blocks.len();
        (at, &self.blocks[self.next])
    }
}

/// Measures everything; `uri` is an export of at least [`REACH_BYTES`].
///
/// # Errors
/// The medium's, the pool's, the server's.
pub(super) fn measure(uri: &str) -> anyhow::Result<Vec<Throughput>> {
    let mut rows = vec![floor()?, in_process()?, over_nbd(uri)?];
    let floor = rows[0].writes_per_s;
    for row in &mut rows {
        row.percent_of_floor = 100.0 * row.writes_per_s / floor;
    }
    Ok(rows)
}

/// Calls `batch` (it returns its number of writes) until the time is over, then `finish`.
fn timed(
    what: &'static str,
    mut batch: impl FnMut() -> anyhow::Result<u64>,
    finish: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Throughput> {
    let started = Instant::now();
    let mut writes = 0;
    while started.elapsed() < TIME {
        writes += batch()?;
    }
    // Within the time: a figure includes making its writes durable.
    finish()?;
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "half a second has far fewer than 2^52 writes")]
    let writes_per_s = writes as f64 / seconds;
    #[expect(clippy::cast_precision_loss, reason = "4096 is exact")]
    let bytes_per_s = writes_per_s * BLOCK as f64;
    Ok(Throughput { what, writes, writes_per_s, bytes_per_s, percent_of_floor: 100.0 })
}

fn floor() -> anyhow::Result<Throughput> {
    let medium = Mapped::anonymous(REACH_BYTES, &MediaOptions::new())?;
    let zeroes = vec![0; BLOCK];
    // First touches cost more than writes, so they come before the time.
    for block in 0..REACH_BYTES / BLOCK_U64 {
        medium.store(PoolOffset(block * BLOCK_U64), &zeroes);
    }
    let mut load = Load::new();
    let batch = || {
        for _ in 0..BATCH {
            let (at, bytes) = load.next();
            medium.stream(PoolOffset(at), bytes);
            medium.fence()?;
        }
        Ok(BATCH)
    };
    timed("DRAM itself: copy and fence, no protection", batch, || Ok(()))
}

fn in_process() -> anyhow::Result<Throughput> {
    // Room for the data, its log, and the bytes replaced between two checkpoints.
    let medium = Mapped::anonymous(4 * REACH_BYTES, &MediaOptions::new())?;
    Pool::format(&medium, 1, rand::random())?;
    let pool = Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?);
    let options = BlockOptions { log_bytes: Some(16 << 20), lanes: 2, ..BlockOptions::default() };
    let volume = BlockVolume::create(&pool, "v", REACH_BYTES, &options)?;
    let _timer = pool.start_timer(Duration::from_secs(5))?;
    let mut load = Load::new();
    // Allocated before the time, because the floor has its memory as well.
    for block in 0..REACH_BYTES / BLOCK_U64 {
        let (_, bytes) = load.next();
        volume.write(block * BLOCK_U64, bytes, Fua::No)?;
    }
    volume.flush()?;
    let batch = || {
        for _ in 0..BATCH {
            let (at, bytes) = load.next();
            volume.write(at, bytes, Fua::No)?;
        }
        Ok(BATCH)
    };
    timed("a volume, in process, crash-consistent", batch, || Ok(volume.flush()?))
}

fn over_nbd(uri: &str) -> anyhow::Result<Throughput> {
    let mut client = Client::connect_uri(uri)?;
    let mut load = Load::new();
    let mut submit = |client: &mut Client| {
        let (at, bytes) = load.next();
        client.submit_write(at, bytes, Fua::No)
    };
    let batch = || {
        let cookies: Result<Vec<_>, _> = (0..QUEUE_DEPTH).map(|_| submit(&mut client)).collect();
        for cookie in cookies? {
            client.wait(cookie)?;
        }
        Ok(QUEUE_DEPTH as u64)
    };
    // A second connection: the closure of the batches holds the first one.
    let mut flusher = Client::connect_uri(uri)?;
    timed("a volume over NBD, 16 writes under way", batch, || Ok(flusher.flush()?))
}
