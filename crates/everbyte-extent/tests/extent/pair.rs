//! A toy kind of volume: two extents over one pool, with sizes impossible for block volumes.
//!
//! Its root names a block of four words: for each extent the root of its map, and its size in
//! bytes. The volume's one tree of checksums, if it has one, is both extents'.

use std::sync::Arc;

use everbyte_extent::{
    BlockRange, Delta, DeviceOffset, Extent, ExtentError, ExtentSettings, FastPath, FuaOutcome,
    Planner, leaf_parts, visit_checksums, visit_map,
};
use everbyte_media::{BLOCK, BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::format::{Entry, VolumeKind, decode_word, encode_word};
use everbyte_pool::{
    BatchOutcome, BlockRun, BlockUse, Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions, Pool,
    PoolError, ScrubFinding, UsedExtent, Volume, VolumeHandle, VolumeSpec, VolumeView,
};

pub(crate) const PAIR: VolumeKind = VolumeKind(78);
/// The extents of a pair.
pub(crate) const BOTH: [usize; 2] = [0, 1];

/// The choices for a new pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) sizes: [u64; 2],
    pub(crate) delta: Delta,
    pub(crate) threshold_lines: u32,
    pub(crate) checksums: bool,
    pub(crate) lanes: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sizes: [70_001, 33_333],
            delta: Delta::On,
            threshold_lines: 32,
            checksums: false,
            lanes: 1,
        }
    }
}

struct PairKind;

/// The word with the size of extent `which`; the one before it is the root of its map.
fn size_at(table: PoolOffset, which: usize) -> PoolOffset {
    table.plus(16 * which as u64 + 8)
}

fn root_at(table: PoolOffset, which: usize) -> PoolOffset {
    table.plus(16 * which as u64)
}

impl<M: Medium> Kind<M> for PairKind {
    fn kind(&self) -> VolumeKind {
        PAIR
    }

    fn name(&self) -> &'static str {
        "pair"
    }

    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let wrong = |what: &str| Corrupt::new("pair", view.root_at, what);
        let root = Entry::decode(medium.load_word(view.root_at)).ok().flatten();
        let table = root.ok_or_else(|| wrong("it has no table"))?.block;
        let run = BlockRun { start: table, len: 1 };
        claim(UsedExtent { run, named_at: view.root_at, holds: BlockUse::Map })?;
        let data = view.data_start..view.data_end;
        for which in BOTH {
            let size = decode_word(medium.load_word(size_at(table.offset(), which)));
            size.ok_or_else(|| wrong("a size is wrong"))?;
            visit_map(medium, root_at(table.offset(), which), &data, claim)?;
        }
        visit_checksums(medium, view.checksum_root_at, &data, claim)
    }
}

pub(crate) fn open_pool<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let kinds = Kinds::new([Arc::new(PairKind) as Arc<dyn Kind<M>>]);
    let options = OpenOptions { capacity_blocks: medium.len() / BLOCK_U64 };
    Pool::open(Arc::clone(medium), kinds, &options).map(Arc::new)
}

/// An open pair.
pub(crate) struct Pair<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) extents: [Extent<M>; 2],
    handle: VolumeHandle<M>,
    table: PoolOffset,
}

impl<M: Medium> Pair<M> {
    /// Formats `medium` and makes a pair in it, all of it durable.
    pub(crate) fn make(medium: &Arc<M>, settings: &Settings) -> Self {
        Pool::format(&**medium, 2, [1; 16]).unwrap();
        let pool = open_pool(medium).unwrap();
        let mut spec = VolumeSpec::new("p", PAIR, 4096);
        spec.delta = settings.delta.code();
        spec.checksum = u32::from(settings.checksums);
        spec.threshold_lines = settings.threshold_lines;
        (spec.lanes, spec.log_bytes) =
            (settings.lanes, Some(u64::from(settings.lanes) * (128 << 10)));
        let mut table = [0; BLOCK];
        for which in BOTH {
            let size = settings.sizes[which].min(2 << 20);
            table[16 * which + 8..16 * which + 16]
                .copy_from_slice(&encode_word(size).to_le_bytes());
        }
        pool.create_volume(&spec, NewRoot::Blocks(&table)).unwrap();
        let handle = pool.open_volume("p", PAIR).unwrap();
        drop(handle);
        let pair = Self::open(pool);
        for which in BOTH {
            pair.resize(which, settings.sizes[which]).unwrap();
        }
        pair.volume().flush().unwrap();
        pair
    }

    /// Opens the pair in `pool`, and clears the bytes beyond the extents' ends.
    pub(crate) fn open(pool: Arc<Pool<M>>) -> Self {
        let handle = pool.open_volume("p", PAIR).unwrap();
        let table = table_of(&handle);
        let extents = BOTH.map(|which| {
            let descriptor = handle.descriptor();
            let size = decode_word(handle.medium().load_word(size_at(table, which))).unwrap();
            let settings = ExtentSettings {
                root_at: root_at(table, which),
                checksum_root_at: (descriptor.checksum == 1).then(|| handle.checksum_root_at()),
                delta: Delta::from_code(descriptor.delta).unwrap(),
                threshold_lines: descriptor.threshold_lines,
                size_bytes: size,
            };
            Extent::new(Arc::clone(handle.volume()), &settings)
        });
        let pair = Self { pool, extents, handle, table };
        if pair.pool.read_only_reason().is_none() && pair.volume().read_only_reason().is_none() {
            let _op = pair.volume().begin_op();
            for extent in &pair.extents {
                if let Err(ExtentError::Corrupt(damage)) = extent.trim_tail() {
                    pair.volume().fail(&damage);
                }
            }
        }
        pair
    }

    /// The pair as the next opening of the pool finds it. It is not closed before: this is a crash without
    /// lost stores.
    pub(crate) fn crashed(self) -> Self {
        let medium = Arc::clone(self.pool.medium());
        drop(self);
        Self::open(open_pool(&medium).unwrap())
    }

    /// The pair after a clean shutdown.
    pub(crate) fn reopened(self) -> Self {
        let medium = Arc::clone(self.pool.medium());
        self.pool.close().unwrap();
        drop(self);
        let pair = Self::open(open_pool(&medium).unwrap());
        assert!(pair.pool.recovery().was_clean);
        pair
    }

    pub(crate) fn volume(&self) -> &Arc<Volume<M>> {
        self.handle.volume()
    }

    pub(crate) fn medium(&self) -> &M {
        self.handle.medium()
    }

    pub(crate) fn write(&self, which: usize, at: u64, data: &[u8]) -> Result<u64, ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, data.len() as u64)?;
        let at = DeviceOffset(at);
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write([BlockRange::of_bytes(at, data.len() as u64)]);
        self.volume()
            .change(|batch, constraints| Planner::new(extent, batch, constraints).write(at, data))
    }

    /// Writes by a plan with prefetches, as the block volume does.
    pub(crate) fn write_prefetched(
        &self,
        which: usize,
        at: u64,
        data: &[u8],
    ) -> Result<u64, ExtentError> {
        let extent = &self.extents[which];
        let at = DeviceOffset(at);
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write([BlockRange::of_bytes(at, data.len() as u64)]);
        self.volume().change(|batch, constraints| {
            let mut planner = Planner::new(extent, batch, constraints);
            planner.prefetch(std::iter::once((at, data)));
            planner.write(at, data)
        })
    }

    /// Tries the direct path, and nothing else. Returns the epoch of the write.
    pub(crate) fn try_direct_path(
        &self,
        which: usize,
        at: u64,
        data: &[u8],
    ) -> Result<Option<u64>, ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, data.len() as u64)?;
        let (at, blocks) =
            (DeviceOffset(at), BlockRange::of_bytes(DeviceOffset(at), data.len() as u64));
        extent.prefetch_entries(blocks);
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write([blocks]);
        Ok(extent.try_direct_path(at, data)?)
    }

    /// Tries the durable direct path, and nothing else.
    pub(crate) fn write_blocks_durably(
        &self,
        which: usize,
        at: u64,
        data: &[u8],
    ) -> Result<FuaOutcome, ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, data.len() as u64)?;
        let at = DeviceOffset(at);
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write([BlockRange::of_bytes(at, data.len() as u64)]);
        Ok(extent.write_blocks_durably(at, data)?)
    }

    /// Tries the fast path, and nothing else.
    pub(crate) fn write_fast(
        &self,
        which: usize,
        at: u64,
        data: &[u8],
    ) -> Result<FuaOutcome, ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, data.len() as u64)?;
        let at = DeviceOffset(at);
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write([BlockRange::of_bytes(at, data.len() as u64)]);
        extent.write_durably(at, data)
    }

    /// Tries the fast path alone, with bytes of one block.
    pub(crate) fn try_fast_path(
        &self,
        which: usize,
        at: u64,
        data: &[u8],
    ) -> Result<FastPath, ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, data.len() as u64)?;
        let at = DeviceOffset(at);
        extent.prefetch_entry(at.block());
        let _op = self.volume().begin_op();
        let _block = extent.locks().write_one(at.block());
        Ok(extent.try_fast_path(at, data)?)
    }

    pub(crate) fn zero(
        &self,
        which: usize,
        at: u64,
        len: u64,
        reserve: bool,
    ) -> Result<(), ExtentError> {
        let extent = &self.extents[which];
        extent.check_range(at, len)?;
        for part in leaf_parts(DeviceOffset(at), len) {
            let _op = self.volume().begin_op();
            let _blocks = extent.locks().write([part.blocks()]);
            extent.zero(part, reserve)?;
        }
        Ok(())
    }

    /// Makes extent `which` `size` bytes large, durably.
    pub(crate) fn resize(&self, which: usize, size: u64) -> Result<(), ExtentError> {
        let extent = &self.extents[which];
        let _op = self.volume().begin_op();
        let _blocks = extent.locks().write_all();
        let old = extent.size_bytes();
        if size > old {
            extent.trim_tail()?;
        }
        let mut batch = self.volume().begin_batch()?;
        let at = size_at(self.table, which);
        batch.change_word_once(at, self.medium().load_word(at), encode_word(size));
        let BatchOutcome::Done(epoch) = batch.commit()? else { panic!("the log is too small") };
        extent.set_size_bytes(size);
        self.volume().complete(epoch)?;
        if size < old { extent.trim_tail() } else { Ok(()) }
    }

    pub(crate) fn read(&self, which: usize, at: u64, len: usize) -> Result<Vec<u8>, ExtentError> {
        // Bytes skipped by a read are detected.
        let mut bytes = vec![0xa5; len];
        self.extents[which].read(DeviceOffset(at), &mut bytes)?;
        Ok(bytes)
    }

    /// All bytes of extent `which`.
    pub(crate) fn content(&self, which: usize) -> Result<Vec<u8>, ExtentError> {
        self.read(which, 0, usize::try_from(self.extents[which].size_bytes()).unwrap())
    }

    /// Returns the offset of the root word of extent `which` in the pool.
    pub(crate) fn root_at(&self, which: usize) -> PoolOffset {
        root_at(self.table, which)
    }

    /// Returns the offset of the entry of `block` in a tree of one level.
    pub(crate) fn entry_at(&self, which: usize, block: u64) -> PoolOffset {
        let root = Entry::decode(self.medium().load_word(self.root_at(which))).unwrap().unwrap();
        assert!(root.flags.height <= 1, "the tree has more levels");
        root.block.offset().plus(8 * block)
    }

    /// Returns the entry of `block`.
    pub(crate) fn entry(&self, which: usize, block: u64) -> Option<Entry> {
        Entry::decode(self.medium().load_word(self.entry_at(which, block))).unwrap()
    }

    /// Returns the findings of a whole scrub of both extents.
    pub(crate) fn scrub(&self) -> Vec<ScrubFinding> {
        let mut findings = Vec::new();
        for extent in &self.extents {
            let mut from = Some(0);
            while let Some(at) = from {
                let (report, next) = extent.scrub(at).unwrap();
                findings.extend(report.findings);
                from = next;
            }
        }
        findings
    }

    /// Returns an error if ownership is not a partition, or if a block has other bytes than were stored.
    pub(crate) fn judge(&self) -> Result<(), String> {
        let findings = self.scrub();
        let report = self.pool.check().map_err(|error| error.to_string())?;
        let counted = report.remarks.iter().any(|remark| remark.contains("counted as used"));
        if findings.is_empty() && report.is_clean() && !counted {
            return Ok(());
        }
        Err(format!("{findings:?} {report:?}"))
    }
}

fn table_of<M: Medium>(volume: &Volume<M>) -> PoolOffset {
    let word = volume.medium().load_word(volume.root_at());
    Entry::decode(word).unwrap().unwrap().block.offset()
}

/// Bytes different for each call and place, and never 0.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3] | 1
    };
    (0..len).map(|_| next()).collect()
}
