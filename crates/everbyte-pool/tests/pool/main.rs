//! The pool under a minimal kind of volume: promises without need of a map.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod batches;
mod bounded;
mod damage;
mod deletion;
mod epochs;
mod groups;
mod making;
mod model;
mod rebuild;
mod recovery;
mod runs;
mod shelf;
mod space;
mod superblock;
mod unfinished;
mod usage;
mod volumes;

use std::cell::Cell;
use std::sync::Arc;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::format::{Entry, VolumeKind};
use everbyte_pool::{
    BlockRun, BlockUse, Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions, Pool, UsedExtent,
    Volume, VolumeSpec, VolumeView,
};

const TOY: VolumeKind = VolumeKind(77);

/// Blocks of a toy's table.
const TABLE_BLOCKS: u64 = 64;

thread_local! {
    /// How often this thread has walked the map of a toy.
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// A volume with a table of words without meaning.
struct Toy;

impl Kind<Mapped> for Toy {
    fn kind(&self) -> VolumeKind {
        TOY
    }

    fn name(&self) -> &'static str {
        "toy"
    }

    fn visit(
        &self,
        medium: &Mapped,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        VISITS.set(VISITS.get() + 1);
        let root = Entry::decode(medium.load_word(view.root_at)).unwrap().unwrap();
        let run = BlockRun { start: root.block, len: TABLE_BLOCKS };
        claim(UsedExtent { run, named_at: view.root_at, holds: BlockUse::Map })
    }
}

fn open(medium: &Arc<Mapped>) -> Pool<Mapped> {
    let options = OpenOptions { capacity_blocks: 1024 };
    Pool::open(Arc::clone(medium), Kinds::new([Arc::new(Toy) as _]), &options).unwrap()
}

/// A new pool with a volume on `lanes` lanes, and where its table lies.
fn pool_with_volume(lanes: u32) -> (Pool<Mapped>, Arc<Volume<Mapped>>, PoolOffset) {
    let mut spec = VolumeSpec::new("v", TOY, 4096);
    (spec.lanes, spec.log_bytes) = (lanes, Some(u64::from(lanes) * 64 * 1024));
    pool_with(&spec)
}

fn pool_with(spec: &VolumeSpec) -> (Pool<Mapped>, Arc<Volume<Mapped>>, PoolOffset) {
    let medium = Arc::new(Mapped::anonymous(1024 * BLOCK_U64, &MediaOptions::new()).unwrap());
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let pool = open(&medium);
    let volume = pool.create_volume(spec, NewRoot::Zeroes { blocks: TABLE_BLOCKS }).unwrap();
    let root = Entry::decode(medium.load_word(volume.root_at())).unwrap().unwrap();
    (pool, volume, root.block.offset())
}

/// The pool as it is opened after the end of the process.
fn reopened(pool: &Pool<Mapped>) -> Pool<Mapped> {
    let medium = pool.medium();
    let mut bytes = vec![0; usize::try_from(medium.len()).unwrap()];
    medium.read(PoolOffset(0), &mut bytes);
    let copy = Mapped::anonymous(medium.len(), &MediaOptions::new()).unwrap();
    copy.store(PoolOffset(0), &bytes);
    open(&Arc::new(copy))
}

/// Stores a word by the rules.
fn set(volume: &Volume<Mapped>, at: PoolOffset, value: u64) {
    let _op = volume.begin_op();
    let mut writer = volume.join().unwrap();
    if !writer.has_undo_record(at) {
        let old = volume.medium().load_word(at);
        let item = everbyte_pool::format::WordItem { target: at.0, old };
        writer.log_words(&[item]).unwrap();
    }
    writer.commit().unwrap().store_word(at, value);
}
