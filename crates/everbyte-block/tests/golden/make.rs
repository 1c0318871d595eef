//! Makes the golden images, and derives their descriptions from the writes, never from reads.
//!
//! Everything is fixed: the medium is simulated, and one thread writes through one lane. The persisted lines
//! of a crash follow from a seed. The random parts of a pool (its identity, the keys of logs, the time) are
//! replaced by constants before anything is logged.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta};
use everbyte_crash::{Plan, SimMedium};
use everbyte_device::{BlockDevice, Fua};
use everbyte_pool::Pool;
use everbyte_pool::format::{
    COMPLETED_A_AT, COMPLETED_B_AT, Entry, ROOT_AT, RecordHeader, Superblock,
};
use everbyte_testkit::golden::{HEADER_AT, LOG_KEY, fix_descriptors};
use zerocopy::FromBytes;

use crate::{Golden, Kept, Range, Sim, open};

/// Blocks in each pool.
const POOL_BLOCKS: u64 = 128;

const PLAIN: BlockOptions = BlockOptions {
    delta: Delta::On,
    checksum: Checksum::None,
    threshold_percent: 50,
    log_bytes: Some(2 * 16384),
    lanes: 1,
    checkpoint_lines: 0,
};

/// A volume as it should be.
struct Model {
    name: &'static str,
    bytes: Vec<u8>,
    lost: Vec<u64>,
    read_only: Option<&'static str>,
}

impl Model {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn kept(&self) -> Kept {
        let mut ranges = Vec::new();
        let mut from = 0;
        let end = self.bytes.len() as u64;
        for stop in self.lost.iter().copied().chain([end]) {
            if from < stop {
                let bytes = &self.bytes[index(from)..index(stop)];
                ranges.push(Range {
                    offset: from,
                    len: stop - from,
                    crc32c: crc32c::crc32c(bytes),
                });
            }
            from = stop + 4096;
        }
        Kept {
            name: self.name.to_owned(),
            size_bytes: end,
            read_only: self.read_only.map(str::to_owned),
            ranges,
            lost: self.lost.clone(),
        }
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

/// `len` bytes that identify themselves and compress well.
fn content(seed: u64, len: usize) -> Vec<u8> {
    (seed.wrapping_mul(0x0123_4567_89ab_cdef) | 1).to_le_bytes().repeat(len.div_ceil(8))[..len]
        .to_vec()
}

/// An open pool with empty volumes.
struct Workshop {
    medium: Arc<SimMedium>,
    pool: Sim,
    models: Vec<Model>,
}

impl Workshop {
    /// With volumes of these names, sizes and options; names ascend.
    fn new(volumes: &[(&'static str, u64, BlockOptions)]) -> Self {
        let medium = Arc::new(SimMedium::new(POOL_BLOCKS * 4096));
        Pool::format(&*medium, 4, *b"golden image, v1").unwrap();
        let pool = open(&medium).unwrap();
        for (name, size, options) in volumes {
            BlockVolume::create(&pool, name, *size, options).unwrap();
        }
        pool.close().unwrap();
        let medium = Arc::new(fix_descriptors(&medium, volumes.len(), LOG_KEY));
        let model = |&(name, size, _): &(&'static str, u64, _)| Model {
            name,
            bytes: vec![0; index(size)],
            lost: Vec::new(),
            read_only: None,
        };
        let models = volumes.iter().map(model).collect();
        Self { pool: open(&medium).unwrap(), medium, models }
    }

    fn volume(&self, which: usize) -> BlockVolume<SimMedium> {
        BlockVolume::open(&self.pool, self.models[which].name).unwrap()
    }

    /// Writes bytes that a crash must not lose, and makes them durable.
    fn write(&mut self, which: usize, offset: usize, bytes: &[u8]) {
        let volume = self.volume(which);
        volume.write(offset as u64, bytes, Fua::No).unwrap();
        volume.flush().unwrap();
        self.models[which].put(offset, bytes);
    }

    fn write_blocks(&mut self, which: usize, blocks: std::ops::Range<u64>) {
        for block in blocks {
            self.write(which, index(block) * 4096, &content(block + 1, 4096));
        }
    }

    /// Closes the pool. Returns the image after a clean shutdown.
    fn close(&self) -> Vec<u8> {
        self.pool.close().unwrap();
        self.medium.image()
    }

    /// Returns the image after a crash now, with the lost lines of `plan`.
    fn crash(&self, plan: Plan) -> Vec<u8> {
        self.medium.crash_state().boot(plan).image()
    }

    /// The image and its expected contents, for a pool after a clean shutdown, without damage.
    fn golden(&self, name: &str, about: &str, image: &[u8]) -> Golden {
        Golden {
            name: name.to_owned(),
            about: about.to_owned(),
            size_bytes: image.len() as u64,
            crc32c: crc32c::crc32c(image),
            open_error: None,
            was_clean: true,
            records_undone: 0,
            volumes: self.models.iter().map(Model::kept).collect(),
            check: Vec::new(),
            mended: Vec::new(),
            check_after_repair: Vec::new(),
        }
    }
}

/// Every image, with its expected contents.
pub(crate) fn all() -> Vec<(Golden, Vec<u8>)> {
    let mut all = vec![options(), full(), crashed(), group(), log_gap()];
    all.extend(from_clean());
    all.extend(wrong_data());
    all
}

fn options() -> (Golden, Vec<u8>) {
    let every = BlockOptions { delta: Delta::Off, ..PLAIN };
    let logged = BlockOptions { threshold_percent: 101, delta: Delta::Auto, ..PLAIN };
    let sums = BlockOptions { checksum: Checksum::Crc32c, ..PLAIN };
    let mut shop = Workshop::new(&[
        ("every", 20 * 4096 + 512, every),
        ("logged", 16 * 4096, logged),
        ("sums", 8 << 20, sums),
    ]);
    shop.write_blocks(0, 3..9);
    shop.write(0, 20 * 4096, &content(77, 512));
    shop.write_blocks(1, 0..4);
    shop.write(1, 4000, &content(78, 5000));
    shop.write_blocks(2, 0..3);
    shop.write(2, (8 << 20) - 10_000, &content(79, 9000));
    let volume = shop.volume(2);
    volume.discard(4096, 4096, Fua::Yes).unwrap();
    shop.models[2].put(4096, &[0; 4096]);
    let image = shop.close();
    let about = "volumes with every translation, one with checksums and two levels of map";
    (shop.golden("options", about, &image), image)
}

fn full() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(&[("big", 1 << 20, PLAIN)]);
    let volume = shop.volume(0);
    let mut written = 0;
    while volume.write(written * 4096, &content(written + 1, 4096), Fua::No).is_ok() {
        shop.models[0].put(index(written) * 4096, &content(written + 1, 4096));
        written += 1;
    }
    assert!(written > 100, "{written}");
    let image = shop.close();
    (shop.golden("full", "no block is left; a clean shutdown", &image), image)
}

fn crashed() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(&[("v", 16 * 4096, PLAIN), ("w", 16 * 4096, PLAIN)]);
    shop.write_blocks(0, 0..12);
    shop.write_blocks(1, 0..2);
    let volume = shop.volume(0);
    // Durable: one redo record, one replaced block.
    for (offset, bytes) in [(8 * 4096 + 70, content(90, 50)), (9 * 4096, content(91, 4096))] {
        volume.write(offset, &bytes, Fua::Yes).unwrap();
        shop.models[0].put(index(offset), &bytes);
    }
    // To be undone: lines and words of one epoch, and of the next.
    volume.write(100, &content(92, 100), Fua::No).unwrap();
    volume.write(4096, &content(93, 4096), Fua::No).unwrap();
    let inner = Arc::clone(volume.volume());
    let guard = inner.lock_checkpoint();
    let pending = inner.begin_checkpoint(&guard).unwrap();
    volume.write(2 * 4096 + 64, &content(94, 200), Fua::No).unwrap();
    volume.write(13 * 4096, &content(95, 4096), Fua::No).unwrap();
    let image = shop.crash(Plan::Seeded(7));
    drop(pending);
    let about = "a crash with two open epochs to undo and a short durable write to redo";
    let golden = shop.golden("crashed", about, &image);
    (Golden { was_clean: false, records_undone: 5, ..golden }, image)
}

fn group() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(&[("v", 16 * 4096, PLAIN)]);
    shop.write_blocks(0, 0..8);
    let volume = shop.volume(0);
    let group = volume.begin_group().unwrap();
    for block in [1, 3, 9] {
        group.write(block * 4096 + 256, &content(80 + block, 300)).unwrap();
    }
    let image = shop.crash(Plan::everything());
    drop(group);
    let golden = shop.golden("group", "a crash while a group was open, all of it stored", &image);
    (Golden { was_clean: false, records_undone: 3, ..golden }, image)
}

fn log_gap() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(&[("v", 16 * 4096, PLAIN)]);
    shop.write_blocks(0, 0..8);
    let volume = shop.volume(0);
    for block in 0..4 {
        let bytes = content(60 + block, 64);
        volume.write(block * 4096, &bytes, Fua::No).unwrap();
        // Nothing is undone, because the missing part is unknown.
        shop.models[0].put(index(block) * 4096, &bytes);
    }
    let mut image = shop.crash(Plan::everything());
    let start = index(volume.volume().descriptor().log_start) * 4096;
    let lines = (start..start + 32768).step_by(64);
    let header = |at: usize| RecordHeader::read_from_bytes(&image[at..at + 64]).unwrap();
    let second = lines.filter(|&at| header(at).log_key == LOG_KEY && header(at).seq == 1);
    let second = second.max_by_key(|&at| header(at).epoch).unwrap();
    image[second + 70] ^= 4;
    let why = "log record 1 of lane 0";
    shop.models[0].read_only = Some(why);
    let about = "a crash, and a record destroyed that had been durable";
    let golden = Golden {
        was_clean: false,
        check: vec!["which blocks are free is unknown: volume v: its log".into(), why.into()],
        check_after_repair: vec![why.into()],
        ..shop.golden("log-gap", about, &image)
    };
    (golden, image)
}

/// A clean pool, and its versions with single faults.
fn from_clean() -> Vec<(Golden, Vec<u8>)> {
    let mut shop = Workshop::new(&[("v", 16 * 4096, PLAIN), ("w", 16 * 4096, PLAIN)]);
    shop.write_blocks(0, 0..8);
    shop.write_blocks(1, 4..6);
    let clean = shop.close();
    let word = |at: usize| u64::from_le_bytes(clean[at..at + 8].try_into().unwrap());
    let leaf = Entry::decode(word(HEADER_AT + index(ROOT_AT))).unwrap().unwrap().block;
    let (sb, _) = Superblock::read_from_prefix(&clean).unwrap();
    let saved = index(sb.saved_start) * 4096;
    let completed = [COMPLETED_A_AT, COMPLETED_B_AT].map(|at| HEADER_AT + index(at));
    let damaged = |name: &str, about: &str, flips: &[usize]| {
        let mut image = clean.clone();
        flips.iter().for_each(|&at| image[at] ^= 0x20);
        (shop.golden(name, about, &image), image)
    };
    let mended = |(golden, image): (Golden, Vec<u8>), text: &str| {
        (Golden { mended: vec![text.to_owned()], ..golden }, image)
    };
    let first = damaged("superblock-first", "the first superblock is damaged", &[60]);
    let second = damaged("superblock-second", "the second superblock is damaged", &[4096 + 60]);
    let torn =
        damaged("completed-one", "one copy of a checkpoint record is damaged", &completed[..1]);
    let lost = damaged("saved-state", "the saved allocator state is damaged", &[saved + 5]);
    let mut neither = damaged("superblocks", "both superblocks are damaged", &[60, 4096 + 60]);
    neither.0.open_error = Some("superblock at 0x0 is corrupt: its checksum is wrong".into());
    let mut both = damaged("completed-both", "both copies of a checkpoint record", &completed);
    let why = "checkpoint record at 0x2040";
    both.0.volumes[0].read_only = Some(why.into());
    both.0.check = vec![why.into(), "checkpoint record at 0x2080".into()];
    both.0.check_after_repair.clone_from(&both.0.check);
    let mut entry =
        damaged("map-entry", "an entry of a map is damaged", &[index(leaf.0) * 4096 + 24]);
    entry.0.check = vec![format!("map entry at {}", leaf.offset().plus(24))];
    entry.0.check_after_repair.clone_from(&entry.0.check);
    let v = &shop.models[0];
    let hole = vec![3 * 4096];
    let why = Some("map entry at");
    let holed = Model { bytes: v.bytes.clone(), lost: hole, read_only: why, ..*v };
    entry.0.volumes[0] = holed.kept();
    vec![
        damaged("clean", "two volumes, a clean shutdown", &[]),
        mended(first, "superblock at 0x0"),
        mended(second, "superblock at 0x1000"),
        mended(torn, "checkpoint record at 0x2040"),
        mended(lost, "saved allocator state at"),
        neither,
        both,
        entry,
    ]
}

/// Data that does not match its checksum.
fn wrong_data() -> Option<(Golden, Vec<u8>)> {
    let sums = BlockOptions { checksum: Checksum::Crc32c, ..PLAIN };
    let mut shop = Workshop::new(&[("v", 16 * 4096, sums)]);
    shop.write_blocks(0, 0..8);
    let mut image = shop.close();
    let block = content(6, 4096);
    let at = (0..image.len()).step_by(4096).find(|&at| image[at..at + 4096] == block)?;
    image[at + 1000] ^= 1;
    shop.models[0].lost = vec![5 * 4096];
    Some((shop.golden("wrong-data", "a flipped bit under a checksum", &image), image))
}
