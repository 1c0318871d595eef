//! A toy kind of volume: a table of 512 words. Each word names a block with a few bytes or a run of blocks.
//!
//! It uses the same parts of the pool as a file system, and nothing else: batches, blocks, runs, a kind of its
//! own.

use std::collections::BTreeMap;
use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, VolumeKind, decode_word, encode_word};
use everbyte_pool::{
    Batch, BlockRun, BlockUse, ChangeError, Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions,
    Pool, PoolError, UsedExtent, Volume, VolumeHandle, VolumeSpec, VolumeView, WriteError,
};

pub(crate) const SHELF: VolumeKind = VolumeKind(77);
pub(crate) const SHELF_FEATURE: u64 = 1 << 62;
/// Places of a shelf.
pub(crate) const PLACES: u64 = 512;
/// Blocks of a run on a shelf.
pub(crate) const RUN_BLOCKS: u64 = 4;
const RUN_TAG: u64 = 15;

struct ShelfKind;

/// A thing named by a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thing {
    /// A block, and its used bytes from its start on: 64 to 2048.
    Block(BlockNo, u64),
    Run(BlockRun),
}

impl Thing {
    pub(crate) fn encode(self) -> u64 {
        let (at, tag) = match self {
            Self::Block(block, bytes) => (block.offset(), u64::from((bytes / 64).trailing_zeros())),
            Self::Run(run) => (run.start.offset(), RUN_TAG),
        };
        encode_word((at.0 / 64) << 4 | tag)
    }

    fn decode(word: u64) -> Option<Self> {
        let value = decode_word(word).filter(|&value| value != 0)?;
        let at = PoolOffset((value >> 4) * 64);
        if value & 15 == RUN_TAG {
            return Some(Self::Run(BlockRun { start: at.block(), len: RUN_BLOCKS }));
        }
        Some(Self::Block(at.block(), 64 << (value & 15)))
    }

    fn at(self) -> PoolOffset {
        match self {
            Self::Block(block, _) => block.offset(),
            Self::Run(run) => run.start.offset(),
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Block(_, bytes) => bytes,
            Self::Run(run) => run.len * BLOCK_U64,
        }
    }
}

impl<M: Medium> Kind<M> for ShelfKind {
    fn kind(&self) -> VolumeKind {
        SHELF
    }

    fn name(&self) -> &'static str {
        "shelf"
    }

    fn ro_compat(&self) -> u64 {
        SHELF_FEATURE
    }

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let root = Entry::decode(medium.load_word(view.root_at));
        let Ok(Some(root)) = root else {
            return Err(Corrupt::new("shelf", view.root_at, "it has no table"));
        };
        let table = BlockRun { start: root.block, len: 1 };
        let holds = BlockUse::Map;
        claim(UsedExtent { run: table, named_at: view.root_at, holds })?;
        for place in 0..PLACES {
            let named_at = root.block.offset().plus(8 * place);
            let holds = BlockUse::Data { offset: place };
            let run = match Thing::decode(medium.load_word(named_at)) {
                None => continue,
                Some(Thing::Block(start, _)) => BlockRun { start, len: 1 },
                Some(Thing::Run(run)) => run,
            };
            claim(UsedExtent { run, named_at, holds })?;
        }
        Ok(())
    }
}

pub(crate) fn kinds<M: Medium>() -> Kinds<M> {
    Kinds::new([Arc::new(ShelfKind) as Arc<dyn Kind<M>>])
}

/// Errors of changing a shelf.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShelfError {
    #[error("the pool has no room")]
    NoSpace,
    #[error("the log has no room")]
    TooLarge,
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ChangeError for ShelfError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace)
    }

    fn too_large() -> Self {
        Self::TooLarge
    }
}

/// An open shelf.
pub(crate) struct Shelf<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    handle: VolumeHandle<M>,
    table: PoolOffset,
}

pub(crate) fn open_pool<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let options = OpenOptions { capacity_blocks: (medium.len() / BLOCK_U64).max(1 << 12) };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

/// The contents of the shelf on `medium`, inspected on a copy: the contents after a crash and an opening.
pub(crate) fn contents_on(medium: &SimMedium) -> Contents {
    let copy = Arc::new(SimMedium::from_image(medium.image()));
    Shelf::open(open_pool(&copy).unwrap()).contents().unwrap()
}

impl<M: Medium> Shelf<M> {
    /// Formats `medium` and makes an empty shelf in it.
    pub(crate) fn make(medium: &Arc<M>, lanes: u32) -> Self {
        Pool::format(&**medium, 2, [1; 16]).unwrap();
        let pool = open_pool(medium).unwrap();
        let mut spec = VolumeSpec::new("s", SHELF, 4096);
        (spec.lanes, spec.log_bytes) = (lanes, Some(u64::from(lanes) * (32 << 10)));
        pool.create_volume(&spec, NewRoot::Blocks(&[0; BLOCK])).unwrap();
        Self::open(pool)
    }

    /// Opens the shelf "s" in `pool`.
    pub(crate) fn open(pool: Arc<Pool<M>>) -> Self {
        Self::open_named(pool, "s")
    }

    /// Opens the shelf of this name in `pool`.
    pub(crate) fn open_named(pool: Arc<Pool<M>>, name: &str) -> Self {
        let handle = pool.open_volume(name, SHELF).unwrap();
        let word = handle.medium().load_word(handle.root_at());
        let table = Entry::decode(word).unwrap().unwrap().block.offset();
        Self { pool, handle, table }
    }

    pub(crate) fn volume(&self) -> &Volume<M> {
        &self.handle
    }

    /// Address of the word of `place`.
    pub(crate) fn word_at(&self, place: u64) -> PoolOffset {
        self.table.plus(8 * place)
    }

    /// The thing at `place`, as stored now.
    pub(crate) fn thing(&self, place: u64) -> Option<Thing> {
        Thing::decode(self.volume().medium().load_word(self.word_at(place)))
    }

    /// Address of the thing at `place`.
    pub(crate) fn thing_at(&self, place: u64) -> PoolOffset {
        self.thing(place).unwrap().at()
    }

    /// Makes the change planned by `plan`.
    pub(crate) fn change<'v>(
        &'v self,
        mut plan: impl FnMut(&mut Batch<'v, '_, M>) -> Result<(), ShelfError>,
    ) -> Result<(), ShelfError> {
        let _op = self.volume().begin_op();
        self.volume().change(|batch, _| plan(batch)).map(drop)
    }

    /// Plans a new thing at `place` of `bytes` bytes (more than 2048: a run), all `value`.
    pub(crate) fn plan_put(
        &self,
        batch: &mut Batch<'_, '_, M>,
        place: u64,
        bytes: u64,
        value: u8,
    ) -> Result<(), ShelfError> {
        let thing = match bytes {
            ..=2048 => batch.alloc().map(|block| Thing::Block(block, bytes.next_power_of_two())),
            _ => batch.alloc_run(RUN_BLOCKS).map(Thing::Run),
        };
        let thing = thing.ok_or(ShelfError::NoSpace)?;
        batch.stream(thing.at(), &vec![value; usize::try_from(thing.bytes()).unwrap()]);
        self.plan_remove(batch, place);
        batch.change_word(self.word_at(place), thing.encode());
        Ok(())
    }

    /// Plans an empty `place`.
    pub(crate) fn plan_remove(&self, batch: &mut Batch<'_, '_, M>, place: u64) {
        let at = self.word_at(place);
        match Thing::decode(batch.word(at)) {
            Some(Thing::Block(block, _)) => batch.free(block),
            Some(Thing::Run(run)) => batch.free_run(run),
            None => return,
        }
        batch.change_word(at, 0);
    }

    pub(crate) fn put(&self, place: u64, bytes: u64, value: u8) -> Result<(), ShelfError> {
        self.change(|batch| self.plan_put(batch, place, bytes, value))
    }

    pub(crate) fn remove(&self, place: u64) -> Result<(), ShelfError> {
        self.change(|batch| {
            self.plan_remove(batch, place);
            Ok(())
        })
    }

    /// Changes the first 64 bytes of the thing at `place` in place.
    pub(crate) fn touch(&self, place: u64, value: u8) -> Result<(), ShelfError> {
        self.touch_line(place, 0, value)
    }

    /// Changes line `line` of the thing at `place` in place.
    pub(crate) fn touch_line(&self, place: u64, line: u64, value: u8) -> Result<(), ShelfError> {
        let bytes = [value; 64];
        let at = self.thing_at(place).plus(64 * line);
        let _op = self.volume().begin_op();
        let changed: Result<u64, ShelfError> = self.volume().change(|batch, _| {
            batch.change_bytes(at, &bytes);
            Ok(())
        });
        changed.map(drop)
    }

    /// All contents of the shelf: the size of each thing, its first byte, and the first byte of its last
    /// line. A thing torn anywhere else is an error.
    pub(crate) fn contents(&self) -> Result<Contents, String> {
        let mut contents = Contents::new();
        for place in 0..PLACES {
            let Some(thing) = self.thing(place) else { continue };
            let mut bytes = vec![0; usize::try_from(thing.bytes()).unwrap()];
            self.volume().medium().read(thing.at(), &mut bytes);
            let (first, rest) = bytes.split_at(64);
            let last = rest.last().copied().unwrap_or(first[0]);
            if first.iter().any(|&byte| byte != first[0]) || rest.iter().any(|&byte| byte != last) {
                return Err(format!("the thing at place {place} is torn"));
            }
            contents.insert(place, (thing.bytes(), first[0], last));
        }
        Ok(contents)
    }
}

/// Contents of a shelf, by place.
pub(crate) type Contents = BTreeMap<u64, (u64, u8, u8)>;
