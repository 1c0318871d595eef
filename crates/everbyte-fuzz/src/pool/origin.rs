//! The images at the beginning of stories, each made once with the real program.
//!
//! All of them hold the same two volumes with the same content: `a` with a map of two levels, `b`
//! with a map of one. They differ in the state they were left in. Constants replace
//! everything random in them, so that an input means the same in every run.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta};
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::Pool;
use everbyte_pool::format::{DESCRIPTOR_AT, Descriptor};
use zerocopy::{FromBytes, IntoBytes};

use super::model::{Content, Known};
use super::{POOL_BLOCKS, open};

/// Headers in the volume table; two are in use.
pub(crate) const SLOTS: u64 = 4;
/// Sizes of the volumes; the first ends within a block.
const SIZES: [(&str, u64); 2] = [("a", (3 << 20) + 512), ("b", 64 << 10)];

/// An image, and the contents of its volumes once it was opened.
pub(crate) struct Origin {
    pub(crate) image: Vec<u8>,
    pub(crate) known: BTreeMap<String, Known>,
}

/// The state of an origin at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Closed,
    /// With records of one open epoch.
    Open,
    /// With records of two open epochs.
    Sealed,
    /// Closed, without a volume.
    Empty,
}

pub(crate) static ORIGINS: LazyLock<[Origin; 4]> =
    LazyLock::new(|| [Left::Closed, Left::Open, Left::Sealed, Left::Empty].map(make));

/// Makes the medium of one pool.
pub(crate) fn new_medium() -> Arc<Mapped> {
    Arc::new(Mapped::anonymous(POOL_BLOCKS * BLOCK_U64, &MediaOptions::new()).unwrap())
}

fn options() -> BlockOptions {
    BlockOptions {
        delta: Delta::On,
        checksum: Checksum::None,
        threshold_percent: 50,
        log_bytes: Some(32 << 10),
        lanes: 1,
        checkpoint_lines: 0,
    }
}

fn make(left: Left) -> Origin {
    let medium = new_medium();
    Pool::format(&*medium, SLOTS, [7; 16]).unwrap();
    let mut known = BTreeMap::new();
    if left != Left::Empty {
        let pool = open(&medium).unwrap();
        for (name, size_bytes) in SIZES {
            BlockVolume::create(&pool, name, size_bytes, &options()).unwrap();
        }
        pool.close().unwrap();
        drop(pool);
        for slot in 0..SIZES.len() as u64 {
            replace_random(&medium, slot);
        }
    }
    let pool = open(&medium).unwrap();
    let mut volumes = Vec::new();
    for (name, size_bytes) in SIZES.iter().filter(|_| left != Left::Empty) {
        let volume = BlockVolume::open(&pool, name).unwrap();
        let mut content = Content::new(*size_bytes);
        fill(&volume, &mut content);
        known.insert((*name).to_owned(), Known::durable(content));
        volumes.push(volume);
    }
    volumes.iter().for_each(|volume| leave(volume, left));
    // The others are read as a crash leaves them: with their records and without the clean mark.
    if matches!(left, Left::Closed | Left::Empty) {
        pool.close().unwrap();
    }
    let mut image = vec![0; medium.len() as usize];
    medium.read(PoolOffset(0), &mut image);
    Origin { image, known }
}

/// Replaces random numbers and the time of creation by constants. The log has no records yet.
fn replace_random(medium: &Mapped, slot: u64) {
    for copy in DESCRIPTOR_AT {
        let at = PoolOffset((2 + slot) * BLOCK_U64 + copy);
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(at, &mut bytes);
        let mut descriptor = Descriptor::read_from_bytes(&bytes).unwrap();
        descriptor.log_key = 0x1234_5678_9abc_def0 + slot;
        descriptor.created_s = 1_700_000_000;
        medium.store(at, descriptor.sealed().as_bytes());
    }
}

/// Writes durable content: whole blocks, parts of blocks, and reserved zeroes.
fn fill(volume: &BlockVolume<Mapped>, content: &mut Content) {
    let writes: &[(u64, usize, u8)] = match content.size_bytes {
        65_536 => &[(0, 8192, 1), (3 * 4096 + 100, 50, 2)],
        _ => &[(0, 4096, 3), (2 * 4096, 300, 4), (511 * 4096, 8192, 5), (767 * 4096, 4608, 6)],
    };
    for &(offset, len, byte) in writes {
        let data = vec![byte; len];
        volume.write(offset, &data, Fua::No).unwrap();
        content.put(offset, &data);
    }
    // An entry with reserved zeroes is a state of its own (docs/crash-model.md, Writing).
    let hole = everbyte_device::Hole::Forbidden;
    volume.write_zeroes(4 * 4096, 4096, hole, false, Fua::No).unwrap();
    volume.flush().unwrap();
}

/// Makes writes without durability: a crash undoes them.
fn leave(volume: &BlockVolume<Mapped>, left: Left) {
    let change = |byte: u8| {
        volume.write(10, &[byte; 100], Fua::No).unwrap();
        volume.write(4096, &[byte; 4096], Fua::No).unwrap();
        volume.write(4 * 4096 + 64, &[byte; 64], Fua::No).unwrap();
        volume.discard(3 * 4096, 4096, Fua::No).unwrap();
    };
    match left {
        Left::Closed | Left::Empty => {}
        Left::Open => change(0xA1),
        Left::Sealed => {
            change(0xA2);
            let inner = volume.volume();
            // Sealed and never completed: then recovery undoes two epochs, the later one first.
            let guard = inner.lock_checkpoint();
            let pending = inner.begin_checkpoint(&guard).unwrap();
            change(0xA3);
            // The crash comes before the first epoch's end.
            drop(pending);
        }
    }
}
