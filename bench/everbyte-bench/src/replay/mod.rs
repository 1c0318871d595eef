//! ext4's own traffic: recorded once from a real mount, replayed into every subject.
//!
//! Invariants: every subject gets the same requests in the same order, from an empty device on; the
//! requests before the first named trace (making and mounting the file system) are replayed and not
//! measured. A trace ends with a flush, whose time and stores count.

mod record;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use everbyte_block::Delta;
use everbyte_device::{BlockDevice, Fua, Hole};

use crate::driver::Rounds;
use crate::rows::{Row, exact, metric};
use crate::stats::{as_f64, summarise};
use crate::subject::{Counts, Subject};
use crate::subjects::pmemblk::Pmemblk;
use crate::subjects::volume::{BenchPool, VolumeSubject};

use record::{Recording, Request, written_bytes};
pub(crate) use traffic::names as traces;

/// Bytes of the device that ext4 is made on.
const DEVICE_BYTES: u64 = 1 << 30;

/// Subjects that replay.
pub(crate) const SUBJECTS: [&str; 5] =
    ["everbyte-auto", "everbyte-on", "everbyte-off", "pmemblk-4096", "pmemblk-512"];

/// The reference: it stores a whole block for each write.
const WHOLE_BLOCKS: &str = "pmemblk-4096";

/// Figures of one subject with one trace in one round.
#[derive(Clone, Copy)]
struct Replayed {
    elapsed: Duration,
    counts: Counts,
}

/// Somewhere a trace can be replayed.
enum Target {
    Volume(VolumeSubject),
    Blocks(Pmemblk),
}

/// Records and replays; returns a row for each figure.
///
/// # Errors
/// Our own volumes fail, or it is to stop.
pub(crate) fn run(settings: &Rounds) -> Result<Vec<Row>> {
    settings.progress.set_message("recording ext4's traffic");
    let recordings = match record::record(settings.folder(), DEVICE_BYTES) {
        Ok(recordings) => recordings,
        Err(error) => return Ok(skipped("ext4", &format!("{error:#}"))),
    };
    let mut rows = Vec::new();
    let pool = BenchPool::new(settings.folder(), DEVICE_BYTES, 1)?;
    let mut all = Vec::new();
    for name in SUBJECTS {
        settings.progress.set_message(format!("replaying into {name}"));
        if settings.stop.load(std::sync::atomic::Ordering::Relaxed) {
            bail!("stopped");
        }
        let target = match Target::new(name, &pool, settings) {
            Ok(target) => target,
            Err(error) => {
                rows.extend(skipped(name, &format!("{error:#}")));
                continue;
            }
        };
        let mut rounds = Vec::new();
        for _ in 0..settings.rounds {
            let replayed = recordings.iter().map(|recording| target.replay(recording));
            rounds.push(replayed.collect::<Result<Vec<_>>>()?.concat());
        }
        target.remove()?;
        all.push((name, rounds));
    }
    let requests = recordings.iter().flat_map(|recording| &recording.traces);
    for (index, (trace, requests)) in traces().iter().zip(requests).enumerate() {
        let at = |rounds: &Vec<Vec<Replayed>>| -> Vec<Replayed> {
            rounds.iter().map(|round| round[index]).collect()
        };
        let whole = all.iter().find(|(name, _)| *name == WHOLE_BLOCKS);
        let whole = whole.map(|(_, rounds)| bytes_stored(&at(rounds)));
        for (name, rounds) in &all {
            rows_of(&mut rows, name, trace, written_bytes(requests), &at(rounds), whole);
        }
    }
    Ok(rows)
}

/// Rows that say why `subject` replayed nothing.
fn skipped(subject: &str, why: &str) -> Vec<Row> {
    traces().iter().map(|trace| Row::skipped(subject, trace, why.to_owned())).collect()
}

/// Mean bytes stored.
fn bytes_stored(rounds: &[Replayed]) -> f64 {
    let sum: u64 = rounds.iter().map(|round| round.counts.bytes_stored).sum();
    as_f64(sum) / as_f64(rounds.len() as u64)
}

fn rows_of(
    rows: &mut Vec<Row>,
    subject: &str,
    trace: &str,
    asked: u64,
    rounds: &[Replayed],
    whole: Option<f64>,
) {
    let modelled = rounds.iter().any(|round| round.counts.modelled);
    let stored = bytes_stored(rounds);
    let mut push = |metric, unit, value, spread| {
        rows.push(Row {
            spread,
            note: modelled.then(|| "bytes follow from the format; not counted".to_owned()),
            ..exact(subject, trace, metric, unit, value)
        });
    };
    let seconds: Vec<f64> = rounds.iter().map(|round| round.elapsed.as_secs_f64()).collect();
    if let Some((median, spread)) = summarise(&seconds) {
        push("seconds", "s", median, Some(spread));
    }
    push("media_bytes", "MiB", stored / as_f64(1 << 20), None);
    push(metric::MEDIA_BYTES, "ratio", stored / as_f64(asked), None);
    let log: u64 = rounds.iter().map(|round| round.counts.log_bytes).sum();
    push("log_bytes_per_byte", "ratio", as_f64(log) / as_f64(asked * rounds.len() as u64), None);
    if let Some(whole) = whole {
        push("media_bytes_to_whole_blocks", "ratio", stored / whole, None);
    }
}

impl Target {
    fn new(name: &str, pool: &BenchPool, settings: &Rounds) -> Result<Self> {
        let delta = match name {
            "everbyte-auto" => Delta::Auto,
            "everbyte-on" => Delta::On,
            "everbyte-off" => Delta::Off,
            "pmemblk-512" => {
                return Ok(Self::Blocks(Pmemblk::new(settings.folder(), DEVICE_BYTES, 512)?));
            }
            _ => return Ok(Self::Blocks(Pmemblk::new(settings.folder(), DEVICE_BYTES, 4096)?)),
        };
        Ok(Self::Volume(pool.volume(name, DEVICE_BYTES, delta)?))
    }

    fn remove(self) -> Result<()> {
        if let Self::Volume(subject) = self { subject.delete() } else { Ok(()) }
    }

    /// Replays everything; returns one result for each trace.
    fn replay(&self, recording: &Recording) -> Result<Vec<Replayed>> {
        match self {
            Self::Volume(subject) => {
                let device = subject.device();
                device.discard(0, DEVICE_BYTES, Fua::No)?;
                replay_on_device(device, &recording.before)?;
                let counts = || subject.counts().unwrap_or_default();
                let replay = |trace: &[Request]| replay_on_device(device, trace);
                recording.traces.iter().map(|t| timed(counts, || replay(t))).collect()
            }
            Self::Blocks(pool) => {
                let mut written = 0;
                let mut results = Vec::new();
                for trace in &recording.traces {
                    let start = Instant::now();
                    written += replay_on_blocks(pool, trace)?;
                    let counts = pool.stored_by(std::mem::take(&mut written));
                    results.push(Replayed { elapsed: start.elapsed(), counts });
                }
                Ok(results)
            }
        }
    }
}

fn timed(counts: impl Fn() -> Counts, replay: impl FnOnce() -> Result<()>) -> Result<Replayed> {
    let before = counts();
    let start = Instant::now();
    replay()?;
    Ok(Replayed { elapsed: start.elapsed(), counts: counts().since(&before) })
}

fn replay_on_device(device: &dyn BlockDevice, requests: &[Request]) -> Result<()> {
    for request in requests {
        match request {
            Request::Write { offset, data, fua } => device.write(*offset, data, *fua)?,
            Request::Discard { offset, len } => device.discard(*offset, *len, Fua::No)?,
            Request::Zero { offset, len } => {
                device.write_zeroes(*offset, *len, Hole::Allowed, false, Fua::No)?;
            }
            Request::Flush => device.flush()?,
        }
    }
    device.flush()?;
    Ok(())
}

/// Returns the blocks written. Discards have no counterpart and are left out, in its favour.
fn replay_on_blocks(pool: &Pmemblk, requests: &[Request]) -> Result<u64> {
    let mut scratch = pool.scratch();
    let mut blocks = 0;
    for request in requests {
        match request {
            Request::Write { offset, data, .. } => {
                blocks += pool.write_range(*offset, data, &mut scratch)?;
            }
            Request::Zero { offset, len } => {
                let zeroes = vec![0; usize::try_from(*len)?];
                blocks += pool.write_range(*offset, &zeroes, &mut scratch)?;
            }
            Request::Discard { .. } | Request::Flush => {}
        }
    }
    Ok(blocks)
}
