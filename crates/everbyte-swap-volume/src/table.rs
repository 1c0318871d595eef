//! The table of a swap volume: the list of its runs.
//!
//! A table is adjacent blocks below the root word. The first block begins with a header. From the
//! second block on, a checked word for each run holds the number of the run's first block. A table
//! never changes: if a volume grows or shrinks, it gets a new table, and the root word switches to it.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, VolumeKind, decode_word, encode_word};
use everbyte_pool::{BlockRun, Corrupt, DataArea, check_readable};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The kind of volumes with runs for programs.
pub const SWAP: VolumeKind = VolumeKind(2);
/// Bytes of a run. Each run begins at a multiple of this size in the pool.
pub const RUN_BYTES: u64 = RUN_BLOCKS * BLOCK_U64;
pub(crate) const RUN_BLOCKS: u64 = 512;

const MAGIC: [u8; 8] = *b"EVERBSW1";
/// Bit of the flags: no run is lent or freed before it is wiped.
const WIPES: u64 = 1;
const WORDS: u64 = BLOCK_U64 / 8;
const WHAT: &str = "table of the swap volume";

/// The first bytes of a table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    runs: u64,
    flags: u64,
    reserved: [u64; 4],
    crc: u64,
}

impl Header {
    fn new(runs: u64, flags: u64) -> Self {
        let mut header = Self { magic: MAGIC, runs, flags, reserved: [0; 4], crc: 0 };
        header.crc = header.expected_crc();
        header
    }

    fn expected_crc(&self) -> u64 {
        let bytes = self.as_bytes();
        u64::from(crc32c::crc32c(&bytes[..bytes.len() - 8]))
    }
}

/// The contents of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    /// First blocks of the runs, in the order of the volume.
    pub(crate) runs: Vec<BlockNo>,
    /// No run is lent or freed before it is wiped.
    pub(crate) wipes: bool,
}

impl Table {
    /// Blocks of a table of `runs` runs.
    pub(crate) fn blocks(runs: u64) -> u64 {
        1 + runs.div_ceil(WORDS)
    }

    /// The bytes of its blocks.
    pub(crate) fn image(&self) -> Vec<u8> {
        let runs = self.runs.len() as u64;
        let header = Header::new(runs, u64::from(self.wipes) * WIPES);
        let mut image = header.as_bytes().to_vec();
        image.resize(BLOCK, 0);
        image.extend(self.runs.iter().flat_map(|run| encode_word(run.0).to_le_bytes()));
        image.resize(image.len().next_multiple_of(BLOCK), 0);
        image
    }

    /// Reads the table named by the root word at `root_at`, and its location. Calls `each` with each run
    /// and the address of its word.
    ///
    /// # Errors
    /// The table does not exist or is invalid, or `each` fails.
    pub(crate) fn load<M: Medium>(
        medium: &M,
        data: &DataArea,
        root_at: PoolOffset,
        each: &mut dyn FnMut(BlockNo, PoolOffset) -> Result<(), Corrupt>,
    ) -> Result<(Self, BlockRun), Corrupt> {
        let wrong_root = |what: &str| Corrupt::new("volume root", root_at, what);
        let root = Entry::decode(medium.load_word(root_at)).map_err(wrong_root)?;
        check_readable(medium, "volume root", root_at, 8)?;
        let start = root.ok_or_else(|| wrong_root("it names no table"))?.block;
        if !data.contains(start) {
            return Err(wrong_root("it names a block outside the pool's data"));
        }
        let header = load_header(medium, start)?;
        let pool_runs = (data.blocks().end - data.blocks().start) / RUN_BLOCKS;
        // The number in a damaged header must not overflow the arithmetic below.
        let run = BlockRun { start, len: Self::blocks(header.runs.min(pool_runs)) };
        if header.runs > pool_runs || start.0 + run.len > data.blocks().end {
            let what = format!("{} runs are more than the pool has room for", header.runs);
            return Err(Corrupt::new(WHAT, start.offset(), what));
        }
        let mut runs = Vec::new();
        for place in 0..header.runs {
            let at = start.offset().plus(BLOCK_U64 + 8 * place);
            let first = load_run(medium, data, at)?;
            each(first, at)?;
            runs.push(first);
        }
        Ok((Self { runs, wipes: header.flags & WIPES != 0 }, run))
    }
}

fn load_header<M: Medium>(medium: &M, start: BlockNo) -> Result<Header, Corrupt> {
    let mut header = Header::new(0, 0);
    medium.read(start.offset(), header.as_mut_bytes());
    // After the read: the medium reports an unreadable range only then.
    check_readable(medium, WHAT, start.offset(), size_of::<Header>() as u64)?;
    let wrong = |what| Err(Corrupt::new(WHAT, start.offset(), what));
    if header.magic != MAGIC {
        return wrong("it does not begin as one");
    }
    if header.crc != header.expected_crc() {
        return wrong("its checksum is wrong");
    }
    Ok(header)
}

fn load_run<M: Medium>(medium: &M, data: &DataArea, at: PoolOffset) -> Result<BlockNo, Corrupt> {
    let word = medium.load_word(at);
    check_readable(medium, WHAT, at, 8)?;
    let wrong = |what: String| Corrupt::new(WHAT, at, what);
    let first = decode_word(word).ok_or_else(|| wrong("its check bits are wrong".into()))?;
    let is_inside = |block| data.contains(BlockNo(block));
    if first % RUN_BLOCKS != 0 || !is_inside(first) || !is_inside(first + RUN_BLOCKS - 1) {
        return Err(wrong(format!("no run can begin with block {first}")));
    }
    Ok(BlockNo(first))
}
