//! Costs of an opening after a crash: each word of a map is loaded once, and nothing more for each block.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{
    BLOCK_U64, BlockNo, Counters, LineMask, Mapped, MediaError, MediaOptions, Medium,
    PersistenceDomain, Piece, PoisonedRange, PoolOffset,
};
use everbyte_pool::format::{Entry, VolumeKind, decode_word, encode_word};
use everbyte_pool::{
    BlockUse, Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions, Pool, UsedExtent, VolumeSpec,
    VolumeView,
};

/// Memory with a count of loads.
struct Counting {
    inner: Mapped,
    loads: AtomicU64,
}

impl Counting {
    fn count(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }
}

impl Medium for Counting {
    fn load_word(&self, at: PoolOffset) -> u64 {
        self.count();
        self.inner.load_word(at)
    }
    fn read(&self, at: PoolOffset, out: &mut [u8]) {
        self.count();
        self.inner.read(at, out);
    }
    fn probe(&self, at: PoolOffset, len: u64) {
        self.count();
        self.inner.probe(at, len);
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn persistence_domain(&self) -> PersistenceDomain {
        self.inner.persistence_domain()
    }
    fn changed_lines(&self, block: BlockNo, start: usize, new: &[u8]) -> LineMask {
        self.inner.changed_lines(block, start, new)
    }
    fn store_word(&self, at: PoolOffset, value: u64) {
        self.inner.store_word(at, value);
    }
    fn store(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.store(at, bytes);
    }
    fn stream(&self, at: PoolOffset, bytes: &[u8]) {
        self.inner.stream(at, bytes);
    }
    fn flush(&self, at: PoolOffset, len: u64) {
        self.inner.flush(at, len);
    }
    fn fence(&self) -> Result<(), MediaError> {
        self.inner.fence()
    }
    fn check(&self) -> Result<(), MediaError> {
        self.inner.check()
    }
    fn has_poison(&self) -> bool {
        self.inner.has_poison()
    }
    fn poisoned_in(&self, at: PoolOffset, len: u64) -> Option<PoolOffset> {
        self.inner.poisoned_in(at, len)
    }
    fn poisoned_ranges(&self) -> Vec<PoisonedRange> {
        self.inner.poisoned_ranges()
    }
    fn send(&self, socket: BorrowedFd<'_>, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.inner.send(socket, pieces)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn line_cost_ns(&self) -> (u32, u32) {
        self.inner.line_cost_ns()
    }
}

/// A volume with a table of words. Each word names a block.
struct Rack;

const RACK: VolumeKind = VolumeKind(78);

impl Kind<Counting> for Rack {
    fn kind(&self) -> VolumeKind {
        RACK
    }

    fn name(&self) -> &'static str {
        "rack"
    }

    fn visit(
        &self,
        medium: &Counting,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let root = Entry::decode(medium.load_word(view.root_at)).unwrap().unwrap().block;
        let words = view.size_bytes / 8;
        let table = everbyte_pool::BlockRun { start: root, len: words.div_ceil(512) };
        let holds = BlockUse::Map;
        claim(UsedExtent { run: table, named_at: view.root_at, holds })?;
        for word in 0..words {
            let named_at = root.offset().plus(8 * word);
            let at = PoolOffset(decode_word(medium.load_word(named_at)).unwrap());
            let run = everbyte_pool::BlockRun { start: at.block(), len: 1 };
            claim(UsedExtent { run, named_at, holds: BlockUse::Data { offset: word } })?;
        }
        Ok(())
    }
}

fn open(medium: &Arc<Counting>) -> Pool<Counting> {
    let options = OpenOptions { capacity_blocks: medium.len() / BLOCK_U64 };
    Pool::open(Arc::clone(medium), Kinds::new([Arc::new(Rack) as _]), &options).unwrap()
}

/// A killed pool with a volume of so many blocks, named by its words in random order.
fn killed(named: u64) -> Arc<Counting> {
    let blocks = 1024 + named.div_ceil(512) + named;
    let inner = Mapped::anonymous(blocks * BLOCK_U64, &MediaOptions::new()).unwrap();
    let medium = Arc::new(Counting { inner, loads: AtomicU64::new(0) });
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = open(&medium);
    let mut spec = VolumeSpec::new("r", RACK, named * 8);
    (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
    let tables = named.div_ceil(512);
    let volume = pool.create_volume(&spec, NewRoot::Zeroes { blocks: tables }).unwrap();
    let root = Entry::decode(medium.load_word(volume.root_at())).unwrap().unwrap().block;
    let first = BlockNo(root.0 + tables).offset();
    for word in 0..named {
        // Odd, and so prime to the numbers of blocks here.
        let block = first.plus(word * 4001 % named * BLOCK_U64);
        medium.store_word(root.offset().plus(8 * word), encode_word(block.0));
    }
    drop((pool, volume));
    medium
}

/// Opens a killed pool with a volume of so many blocks. Returns the number of loads.
fn open_killed(named: u64) -> u64 {
    let medium = killed(named);
    let before = medium.loads.load(Ordering::Relaxed);
    let pool = open(&medium);
    let loads = medium.loads.load(Ordering::Relaxed) - before;
    assert!(!pool.recovery().was_clean && pool.recovery().remarks.is_empty());
    let used = pool.volume_info(&pool.volume("r").unwrap()).used_bytes.unwrap();
    assert_eq!(used / BLOCK_U64, named.div_ceil(512) + named);
    loads
}

#[test]
fn recovery_loads_each_map_word_once() {
    let fixed = open_killed(1024) - 1024;
    for named in [2048, 8192, 32768] {
        assert_eq!(open_killed(named), fixed + named);
    }
}
