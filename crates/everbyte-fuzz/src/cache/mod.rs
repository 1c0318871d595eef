//! Volumes of caches: a small cache is used, its header, marks and pages are damaged, and it is
//! opened and used again.
//!
//! Oracle. Never a panic. The table in `docs/format.md` alone gives the contents of a volume from
//! its bytes. A page with a dirty mark has the volume's bytes. A page with a clean mark has the
//! volume's or the backing device's. Any other page has the backing device's. An open cache serves and writes back
//! only these. Without damage a volume opens, and after a flush it holds all writes. With damage it
//! may be refused, by an error that names the damage and its place.

mod damage;
mod held;
mod volume;

use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_cache::{Cache, CacheError, Identity, Mode, Settings, inspect, volume_bytes};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, MemoryDevice};
use everbyte_policy::sim::Kind;

use damage::{Damage, Damaged};
use held::Held;
use volume::Volume;

pub(crate) const PAGE: usize = 4096;
pub(crate) const PAGES: usize = 20;
/// The backing device ends within a page.
pub(crate) const BACKING_BYTES: u64 = (PAGES * PAGE) as u64 - 1000;

const POLICIES: [Kind; 4] = [Kind::Everbyte, Kind::Hybrid, Kind::ClockMigration, Kind::FourQueue];

/// Steps and damages beyond this many are ignored: a long story finds nothing that a short one does
/// not, and takes longer.
const STEPS_MAX: usize = 12;

/// An operation on a cache.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum Step {
    Write { at: u32, len: u16, byte: u8, fua: bool },
    Read { at: u32, len: u16 },
    Zero { at: u32, len: u16, discard: bool },
    Flush,
    Sweep,
    WriteBackDue,
    Drain,
}

/// A volume's history: how it is made, damaged and used.
#[derive(Debug, Arbitrary)]
struct Story {
    policy: u8,
    mode: u8,
    /// Pages of each tier, less one.
    dram: u8,
    scm: u8,
    before: Vec<Step>,
    /// True if the cache is flushed before it is left without having been closed.
    flushed: bool,
    damage: Vec<Damage>,
    after: Vec<Step>,
}

/// Plays the story that `bytes` encode.
///
/// # Panics
/// If a promise is broken.
pub fn cache_volume(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    let settings = settings(&story);
    let volume = Arc::new(Volume::new(volume_bytes(BACKING_BYTES)));
    Cache::format(&*volume, &settings).expect("an empty volume takes a cache");
    let backing = Arc::new(held::first_backing());
    let mut held = Held::read(&volume, &backing);
    {
        let cache = open(&volume, &backing).expect("a new cache opens");
        steps(&cache, &mut held, &story.before);
        // Not closed: a flush alone must make the volume complete.
        if story.flushed {
            cache.flush().unwrap();
        }
    }
    let damaged = damage::apply(&volume, story.damage.iter().take(STEPS_MAX));
    // Read after the damage: from here on the damaged bytes are the truth.
    let found = Held::read(&volume, &backing);
    if story.flushed && !damaged.any() {
        found.expect_within(&held, "a flushed volume");
    }
    // Before the opening, which may change the volume.
    let seen = inspect(&*volume);
    let cache = match open(&volume, &backing) {
        Ok(cache) => cache,
        Err(error) => return expect_reason(&error, &damaged),
    };
    let seen = seen.expect("what opens can be looked at");
    assert_eq!(seen.settings, *cache.settings());
    assert!(seen.dirty_pages <= seen.pages && seen.pages <= PAGES as u64);
    finish(cache, found, &volume, &backing, &story.after);
}

/// Uses a cache and then checks everything that it leaves.
fn finish(
    cache: Cache,
    mut held: Held,
    volume: &Arc<Volume>,
    backing: &Arc<MemoryDevice>,
    after: &[Step],
) {
    steps(&cache, &mut held, after);
    held.expect_served(&cache);
    cache.flush().unwrap();
    drop(cache);
    // The cache is dropped without a drain, as in a crash after its flush.
    Held::read(volume, backing).expect_within(&held, "a volume after use");
    let cache = open(volume, backing).expect("what opened once opens twice");
    held.expect_served(&cache);
    cache.drain().unwrap();
    assert_eq!(cache.stats().dirty_pages, 0);
    // Drained, so the backing device alone has everything.
    held.expect_served(&**backing);
}

fn settings(story: &Story) -> Settings {
    Settings {
        backing: identity(),
        backing_bytes: BACKING_BYTES,
        // Tiers smaller than the device: short stories must reach evictions.
        dram_bytes: (1 + u64::from(story.dram % 4)) * PAGE as u64,
        scm_bytes: (1 + u64::from(story.scm % 12)) * PAGE as u64,
        mode: Mode::ALL[usize::from(story.mode) % Mode::ALL.len()],
        policy: POLICIES[usize::from(story.policy) % POLICIES.len()],
        small_write_bytes: 512,
    }
}

fn identity() -> Identity {
    Identity { kind: "memory".into(), name: "fuzzed".into(), serial: "1".into(), backing: None }
}

fn open(volume: &Arc<Volume>, backing: &Arc<MemoryDevice>) -> Result<Cache, CacheError> {
    Cache::open(Arc::<Volume>::clone(volume), Arc::<MemoryDevice>::clone(backing), &identity())
}

/// Asserts that a refusal is due to damage, and names its place.
fn expect_reason(error: &CacheError, damaged: &Damaged) {
    let text = error.to_string();
    match error {
        CacheError::Settings(_) => assert!(damaged.header, "{text}"),
        CacheError::OtherBacking { .. }
        | CacheError::OtherSize { .. }
        | CacheError::VolumeSize { .. } => {
            assert!(damaged.header, "{text}");
        }
        // A page of other bytes under a clean mark.
        CacheError::OtherBytes { .. } => assert!(damaged.pages_at(PAGE as u64), "{text}"),
        CacheError::Scm(DeviceError::Media { offset, .. }) => {
            // The offset must lie in the damaged part: an error elsewhere would mislead a repair.
            assert!(damaged.pages_at(*offset), "{text} at byte {offset}");
            assert!(text.contains("mark") && text.contains("page"), "{text}");
        }
        other => panic!("no damage leads to this: {other}"),
    }
}

fn steps(cache: &Cache, held: &mut Held, steps: &[Step]) {
    for step in steps.iter().take(STEPS_MAX) {
        let range = |at: u32, len: u16| {
            let at = u64::from(at) % BACKING_BYTES;
            // Some longer than a page, most shorter.
            let len = if len >= 0xf000 { u64::from(len) } else { u64::from(len % 5000) };
            (at, len.min(BACKING_BYTES - at))
        };
        match *step {
            Step::Write { at, len, byte, fua } => {
                let (at, len) = range(at, len);
                let fua = if fua { Fua::Yes } else { Fua::No };
                cache.write(at, &vec![byte; len as usize], fua).unwrap();
                held.fill(at, len, byte);
            }
            Step::Read { at, len } => {
                let (at, len) = range(at, len);
                let mut found = vec![0; len as usize];
                cache.read(at, &mut found).unwrap();
                held.expect(at, &found);
            }
            Step::Zero { at, len, discard } => {
                let (at, len) = range(at, len);
                match discard {
                    true => cache.discard(at, len, Fua::No).unwrap(),
                    false => cache.write_zeroes(at, len, Hole::Allowed, false, Fua::No).unwrap(),
                }
                held.fill(at, len, 0);
            }
            Step::Flush => cache.flush().unwrap(),
            Step::Sweep => drop(cache.sweep().unwrap()),
            Step::WriteBackDue => drop(cache.write_back_due().unwrap()),
            Step::Drain => cache.drain().unwrap(),
        }
    }
}
