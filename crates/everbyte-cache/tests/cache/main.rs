//! The cache over a block volume of a pool: the device contract, restarts, failing backing device
//! and SCM, a reference model, crashes at every operation, several threads, agreement with the
//! simulator.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod behaviour;
mod change;
mod crash;
mod faults;
mod hits;
mod lost_flushes;
mod model;
mod scm_faults;
mod simulator;
mod watched;

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_cache::{Cache, Change, Identity, Mode, Settings, volume_bytes};
use everbyte_device::BlockDevice;
use everbyte_media::{Mapped, MediaOptions, Medium};
use everbyte_policy::sim::Kind;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};

pub(crate) const PAGE: u64 = 4096;

/// The policies for a cache.
pub(crate) const POLICIES: [Kind; 7] = [
    Kind::Everbyte,
    Kind::Hybrid,
    Kind::ClockMigration,
    Kind::ClockDwf,
    Kind::MClock,
    Kind::FourQueue,
    Kind::Pdram,
];

pub(crate) fn identity() -> Identity {
    Identity { kind: "memory".into(), name: "test".into(), serial: String::new(), backing: None }
}

pub(crate) fn settings(backing_bytes: u64, dram_pages: u64, scm_pages: u64) -> Settings {
    Settings {
        backing: identity(),
        backing_bytes,
        dram_bytes: dram_pages * PAGE,
        scm_bytes: scm_pages * PAGE,
        mode: Mode::WriteBack,
        policy: Kind::Hybrid,
        small_write_bytes: 512,
    }
}

/// Opens the pool on `medium`.
pub(crate) fn open_pool<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, String> {
    let options = OpenOptions { capacity_blocks: medium.len() / PAGE };
    let pool = Pool::open(Arc::clone(medium), kinds(), &options);
    pool.map(Arc::new).map_err(|error| error.to_string())
}

/// Makes a pool on `medium` with a cache in it.
pub(crate) fn format<M: Medium>(medium: &Arc<M>, settings: &Settings, log_bytes: u64) {
    Pool::format(&**medium, 4, [7; 16]).unwrap();
    let pool = open_pool(medium).unwrap();
    let options = BlockOptions { log_bytes: Some(log_bytes), lanes: 1, ..BlockOptions::default() };
    let size_bytes = volume_bytes(settings.backing_bytes);
    let volume =
        BlockVolume::create_as(&pool, "c", VolumeKind::CACHE, size_bytes, &options).unwrap();
    Cache::format(&volume, settings).unwrap();
}

/// Opens the cache in the pool on `medium`.
pub(crate) fn open<M: Medium + 'static>(
    medium: &Arc<M>,
    backing: Arc<dyn BlockDevice>,
) -> Result<Cache, String> {
    let pool = open_pool(medium)?;
    let volume = BlockVolume::open_as(&pool, "c", VolumeKind::CACHE);
    let volume = Arc::new(volume.map_err(|error| error.to_string())?);
    Cache::open(volume, backing, &identity()).map_err(|error| error.to_string())
}

/// Gives the cache in the pool on `medium` other sizes, and its volume room for a larger backing
/// device.
pub(crate) fn resize<M: Medium + 'static>(
    medium: &Arc<M>,
    backing: Arc<dyn BlockDevice>,
    change: &Change,
) -> Result<Settings, String> {
    let pool = open_pool(medium)?;
    let volume = BlockVolume::open_as(&pool, "c", VolumeKind::CACHE);
    let volume = Arc::new(volume.map_err(|error| error.to_string())?);
    let needed = volume_bytes(backing.geometry().size_bytes);
    if change.follows_backing && needed > volume.geometry().size_bytes {
        volume.resize(needed).map_err(|error| error.to_string())?;
    }
    Cache::resize(volume, backing, &identity(), change).map_err(|error| error.to_string())
}

/// A pool of `blocks` blocks on anonymous memory with a cache in it.
pub(crate) fn medium(blocks: u64, settings: &Settings) -> Arc<Mapped> {
    let medium = Arc::new(Mapped::anonymous(blocks * PAGE, &MediaOptions::new()).unwrap());
    format(&medium, settings, 2 * 65536);
    medium
}

/// A small generator: a seed always gives the same steps (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.below(255)).unwrap() + 1).collect()
    }
}
