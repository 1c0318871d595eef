//! Tables of swap volumes, damaged with knowledge of the format.
//!
//! Oracle: no panic. If a volume opens, its runs are possible. If `check` calls the pool clean, it
//! has each run once, shrinks and grows, and is clean afterwards. A refusal names the table or its
//! root. Another swap volume in the pool is unchanged. Without damage everything is unchanged.

use std::collections::BTreeSet;
use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_crash::SimMedium;
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, encode_word};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_swap_volume::{RUN_BYTES, SwapOptions, SwapVolume, kinds};

use crate::story;

const RUN_BLOCKS: u64 = 512;
/// Room for other blocks than runs, and five runs.
const BLOCKS: u64 = 6 * RUN_BLOCKS;
const OPTIONS: OpenOptions = OpenOptions { capacity_blocks: BLOCKS };
/// Offset of the checksum in a table's header.
const SUM_AT: usize = 56;

/// One damage to a table.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum Damage {
    /// Another byte of the header.
    Header { at: u8, flip: u8, is_sealed: bool },
    /// Another number of runs, with the right checksum.
    Runs(u64),
    /// Another run, with right check bits.
    Run { place: u8, block: u64 },
    /// Another possible run.
    Aligned { place: u8, run: u8 },
    /// A word of the table.
    Word { place: u16, word: u64 },
    /// The root names another block.
    Root { block: u64 },
    /// The root names nothing, or holds an invalid entry.
    RootWord(u64),
}

#[derive(Debug, Arbitrary)]
struct Story {
    wipes: bool,
    runs: u8,
    damages: Vec<Damage>,
}

fn open(medium: &Arc<SimMedium>) -> Option<Arc<Pool<SimMedium>>> {
    Pool::open(Arc::clone(medium), kinds(), &OPTIONS).ok().map(Arc::new)
}

fn runs(pool: &Arc<Pool<SimMedium>>, name: &str) -> Vec<BlockNo> {
    SwapVolume::open(pool, name).unwrap().runs()
}

/// Damages the table encoded by `bytes`, and uses the rest.
///
/// # Panics
/// If a promise is broken.
pub fn swap_table(bytes: &[u8]) {
    let Some(story) = story::<Story>(bytes) else { return };
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    Pool::format(&*medium, 3, [1; 16]).unwrap();
    let pool = open(&medium).unwrap();
    let wanted = u64::from(story.runs % 3) + 1;
    let options = SwapOptions { wipes: story.wipes };
    drop(SwapVolume::create(&pool, "other", RUN_BYTES, SwapOptions::default()).unwrap());
    let volume = SwapVolume::create(&pool, "s", wanted * RUN_BYTES, options).unwrap();
    let (before, other) = (volume.runs(), runs(&pool, "other"));
    // Found while the volume is sound. Damage may make both unreachable.
    let root_at = volume.volume().root_at();
    drop(volume);
    pool.close().unwrap();
    drop(pool);
    let table = Entry::decode(medium.load_word(root_at)).unwrap().unwrap().block.offset();
    story.damages.iter().for_each(|damage| damage.make(&medium, root_at, table));
    // A table is its volume's own: other volumes of the pool must stay usable.
    let Some(pool) = open(&medium) else {
        panic!("a table of one volume keeps the pool from being opened");
    };
    let is_clean = pool.check().unwrap().is_clean();
    assert!(is_clean || !story.damages.is_empty(), "a sound volume is called damaged");
    match SwapVolume::open(&pool, "s") {
        Ok(volume) => {
            let found = volume.runs();
            assert!(
                !story.damages.is_empty() || found == before,
                "{found:?} instead of {before:?}"
            );
            assert!(found.iter().all(|run| run.0 % RUN_BLOCKS == 0 && run.0 < BLOCKS));
            if is_clean {
                assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "{found:?}");
                // Without a clean check two volumes may share a run, and a change could harm the
                // other.
                change(&volume, &found);
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!is_clean, "check calls clean what does not open: {said}");
            assert!(said.contains("table of the swap volume") || said.contains("root"), "{said}");
        }
    }
    assert_eq!(runs(&pool, "other"), other, "another volume changed");
    if is_clean {
        assert!(pool.check().unwrap().is_clean(), "a change made it unclean");
    }
}

/// Takes a run away and brings one back.
fn change(volume: &SwapVolume<SimMedium>, found: &[BlockNo]) {
    if volume.volume().read_only_reason().is_some() || found.len() < 2 {
        return;
    }
    volume.remove(&found[..1]).unwrap();
    assert_eq!(volume.runs(), found[1..]);
    let size_bytes = found.len() as u64 * RUN_BYTES;
    assert_eq!(volume.grow(size_bytes).unwrap().len(), 1);
    assert_eq!(volume.size_bytes(), size_bytes);
}

impl Damage {
    fn make(self, medium: &SimMedium, root_at: PoolOffset, table: PoolOffset) {
        match self {
            Self::Header { at, flip, is_sealed } => header(medium, table, is_sealed, |header| {
                header[usize::from(at) % header.len()] ^= flip;
            }),
            Self::Runs(runs) => header(medium, table, true, |header| {
                header[8..16].copy_from_slice(&runs.to_le_bytes());
            }),
            Self::Run { place, block } => {
                // A value too large for a word's address is not an address.
                let word = encode_word(block % (1 << 40));
                medium.store_word(word_at(table, place.into()), word);
            }
            Self::Aligned { place, run } => {
                let word = encode_word(u64::from(run) % 7 * RUN_BLOCKS);
                medium.store_word(word_at(table, place.into()), word);
            }
            Self::Word { place, word } => medium.store_word(word_at(table, place), word),
            // Within twice the pool: beyond its end as often as in it.
            Self::Root { block } => {
                let word = medium.load_word(root_at);
                let root = Entry::decode(word).ok().flatten();
                if let Some(root) = root {
                    let block = BlockNo(block % (2 * BLOCKS));
                    medium.store_word(root_at, Entry { block, ..root }.encode());
                }
            }
            Self::RootWord(word) => medium.store_word(root_at, word),
        }
        // The damage is durable, as damage is.
        medium.flush(root_at, 8);
        medium.fence().unwrap();
    }
}

/// The address of a word of the table's second block.
fn word_at(table: PoolOffset, place: u16) -> PoolOffset {
    table.plus(BLOCK_U64 + 8 * (u64::from(place) % (BLOCK_U64 / 8)))
}

fn header(medium: &SimMedium, table: PoolOffset, is_sealed: bool, change: impl Fn(&mut [u8; 64])) {
    let mut bytes = [0; 64];
    medium.read(table, &mut bytes);
    change(&mut bytes);
    // A right checksum leads to the checks of the fields behind it.
    if is_sealed {
        let sum = u64::from(crc32c::crc32c(&bytes[..SUM_AT]));
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    }
    medium.store(table, &bytes);
}
