//! File-system images: a small file system next to another one is damaged, with repaired checksums,
//! opened, inspected, used, checked and scrubbed.
//!
//! Oracle. Never a panic, an endless loop, or memory without bound; an error is all that damage may lead
//! to. The other file system is as it was, unless blocks of it have two owners or the pool does not open.

use std::cell::OnceCell;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use everbyte_fs::testkit::{fix_hash_key, reseal};
use everbyte_fs::{FileSystem, FsOptions, IndexKind};
use everbyte_media::{BLOCK_U64, BlockNo, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::Pool;
use everbyte_pool::format::{DESCRIPTOR_AT, Descriptor, Entry, EntryFlags, encode_word};
use everbyte_testkit::files::operations::{Mode, Op, Subject, Tree};
use everbyte_testkit::files::real::{Real, open_pool};
use zerocopy::{FromBytes, IntoBytes};

use super::story::Act;
use super::walk::walk;

const POOL_BLOCKS: u64 = 288;
const SLOTS: u64 = 2;
const STEPS_MAX: usize = 20;
const DAMAGES_MAX: usize = 6;
/// Kinds of indexes that fit into the pool.
const INDEXES: [IndexKind; 5] = [
    IndexKind::Direct,
    IndexKind::PmfsRadix,
    IndexKind::PageCacheRadix,
    IndexKind::BPlus,
    IndexKind::CsbPlus,
];

/// A replacement of a word.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum NewWord {
    Raw(u64),
    Small(u8),
    Flip(u8),
    Add(i8),
    /// A word with check bits.
    Checked(u32),
    /// A word that names a block.
    Entry {
        block: u16,
        zero: bool,
        height: u8,
    },
    /// The same as another word of the block.
    Like(u16),
}

/// One damage to a block of the file system.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum Damage {
    Word { block: u16, word: u16, new: NewWord, sealed: bool },
    CopyBlock { from: u16, to: u16 },
    Byte { block: u16, at: u16, flip: u8 },
}

#[derive(Debug, Arbitrary)]
struct Story {
    origin: u8,
    damage: Vec<Damage>,
    /// True if the pool was left as a crash leaves it.
    crashed: bool,
    steps: Vec<Act>,
}

/// A pool with two file systems.
struct Origin {
    image: Vec<u8>,
    /// Non-empty blocks of the damaged one.
    blocks: Vec<BlockNo>,
    /// The tree of the other.
    other: Tree,
}

static ORIGINS: LazyLock<[Origin; INDEXES.len()]> = LazyLock::new(|| INDEXES.map(make));

thread_local! {
    /// The medium, mapped once, because mapping memory costs more than a story.
    static MEDIUM: OnceCell<Arc<Mapped>> = const { OnceCell::new() };
}

fn new_medium() -> Arc<Mapped> {
    Arc::new(Mapped::anonymous(POOL_BLOCKS * BLOCK_U64, &MediaOptions::new()).unwrap())
}

fn image_of(medium: &Mapped) -> Vec<u8> {
    let mut image = vec![0; medium.len() as usize];
    medium.read(PoolOffset(0), &mut image);
    image
}

/// Replaces random numbers and the time of creation by constants. The log has no records yet.
fn replace_random(medium: &Mapped, slot: u64) {
    for copy in DESCRIPTOR_AT {
        let at = PoolOffset((2 + slot) * BLOCK_U64 + copy);
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(at, &mut bytes);
        let mut descriptor = Descriptor::read_from_bytes(&bytes).unwrap();
        // An input must have the same meaning in each run, and a random key would change checksums.
        descriptor.log_key = 0x1234_5678_9abc_def0 + slot;
        descriptor.created_s = 1_700_000_000;
        medium.store(at, descriptor.sealed().as_bytes());
    }
}

/// Adds a file system with some of everything, and closes the pool. Returns its tree.
fn add(medium: &Arc<Mapped>, name: &str, slot: u64, index: IndexKind) -> Tree {
    let options = FsOptions {
        index,
        index_node_bytes: index.is_tree().then_some(64),
        inodes_max: Some(200),
        lanes: 1,
        log_bytes: Some(64 << 10),
        ..FsOptions::default()
    };
    let pool = open_pool(medium).unwrap();
    drop(FileSystem::create(&pool, name, 1 << 20, &options).unwrap());
    pool.close().unwrap();
    drop(pool);
    replace_random(medium, slot);
    // Before the first file: the key decides the places of all names.
    fix_hash_key(&**medium, 0..POOL_BLOCKS);
    let pool = open_pool(medium).unwrap();
    let fs = Arc::new(FileSystem::open(&pool, name).unwrap());
    let mut real = Real::sharing(fs);
    let write = |path: &str, offset, len| {
        let path = vec![if path == "a" { "a" } else { "b" }];
        Op::Write { path, offset, len, byte: 3 }
    };
    for op in [
        Op::Create(vec!["a"], 0o644),
        write("a", 60_000, 20_000),
        Op::Attribute(vec!["a"], "user.a", 300),
        Op::Mkdir(vec!["c"], 0o755),
        Op::Names(vec!["c"], 0, 130),
        Op::Files(vec!["c"], 50),
        Op::Create(vec!["b"], 0o600),
        write("b", 0, 9000),
        Op::Link(vec!["b"], vec!["c", "b"]),
        Op::Mkdir(vec!["c", "c"], 0o700),
        Op::Symlink(vec!["c", "a"], 200),
        Op::Rename(vec!["c", "a"], vec!["c", "c", "a"], Mode::Replace),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
    let tree = real.tree();
    drop(real);
    pool.close().unwrap();
    tree
}

fn make(index: IndexKind) -> Origin {
    let medium = new_medium();
    Pool::format(&*medium, SLOTS, [7; 16]).unwrap();
    add(&medium, "files", 0, index);
    // Before the second file system: a block that is equal in both images is the first one's.
    let first = image_of(&medium);
    let other = add(&medium, "other", 1, INDEXES[0]);
    let image = image_of(&medium);
    let log = log_blocks(&image, 0);
    let block_of = |number: u64| {
        let start = (number * BLOCK_U64) as usize;
        start..start + BLOCK_U64 as usize
    };
    let is_of_files = |number: &u64| {
        let bytes = &image[block_of(*number)];
        bytes == &first[block_of(*number)] && bytes.iter().any(|&byte| byte != 0)
    };
    // Not the logs: the target of pool images damages them with its own oracle.
    let blocks = (2 + SLOTS..POOL_BLOCKS).filter(|number| !log.contains(number));
    Origin { blocks: blocks.filter(is_of_files).map(BlockNo).collect(), image, other }
}

fn log_blocks(image: &[u8], slot: u64) -> std::ops::Range<u64> {
    let at = ((2 + slot) * BLOCK_U64 + DESCRIPTOR_AT[0]) as usize;
    let (descriptor, _) = Descriptor::read_from_prefix(&image[at..]).unwrap();
    descriptor.log_start..descriptor.log_start + descriptor.log_blocks()
}

/// Plays the story that `bytes` encode.
///
/// # Panics
/// If a promise is broken.
pub fn fs_image(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    let origin = &ORIGINS[usize::from(story.origin) % ORIGINS.len()];
    let medium = MEDIUM.with(|medium| Arc::clone(medium.get_or_init(new_medium)));
    // The whole image, because the last story has left its own.
    medium.store(PoolOffset(0), &origin.image);
    if story.crashed {
        // Opening a pool removes its clean mark.
        drop(open_pool(&medium).unwrap());
    }
    for damage in story.damage.iter().take(DAMAGES_MAX) {
        apply(&medium, origin, damage);
    }
    let Ok(pool) = open_pool(&medium) else { return };
    // Before the use: a change of shared blocks would hide their two owners.
    let Ok(report) = pool.check() else { return };
    let is_shared = report.problems.iter().any(|problem| problem.contains("already"));
    if let Ok(fs) = FileSystem::open(&pool, "files") {
        use_damaged(&Arc::new(fs), &story.steps);
    }
    // Its findings are free after damage. It must only end.
    drop(pool.check());
    if !is_shared {
        expect_other(&pool, origin);
    }
}

/// Looks at all of it, makes operations, looks again, and scrubs it.
fn use_damaged(fs: &Arc<FileSystem<Mapped>>, steps: &[Act]) {
    walk(fs);
    let mut real = Real::sharing(Arc::clone(fs));
    for act in steps.iter().take(STEPS_MAX) {
        drop(real.try_make(&act.op()).map_err(|error| (error.errno(), error.to_string())));
    }
    // Operations on damage may have made more of it reachable.
    walk(fs);
    let mut from = Some(0);
    while let Some(table) = from {
        let (_, next) = fs.scrub(table);
        // Otherwise a loop over the tables of a damaged volume would never end.
        assert!(next.is_none_or(|next| next > table), "a scrub goes back");
        from = next;
    }
}

fn expect_other(pool: &Arc<Pool<Mapped>>, origin: &Origin) {
    let other = FileSystem::open(pool, "other").expect("the other file system opens");
    let tree = Real::sharing(Arc::new(other)).try_tree();
    assert!(tree.is_ok_and(|tree| tree == origin.other), "the other file system was changed");
}

fn apply(medium: &Arc<Mapped>, origin: &Origin, damage: &Damage) {
    let block = |number: u16| origin.blocks[usize::from(number) % origin.blocks.len()];
    match *damage {
        Damage::Word { block: number, word, new, sealed } => {
            let at = |word: u16| block(number).offset().plus(u64::from(word) % 512 * 8);
            let old = medium.load_word(at(word));
            let word = match new {
                NewWord::Like(other) => (at(word), medium.load_word(at(other))),
                new => (at(word), value(old, new)),
            };
            medium.store_word(word.0, word.1);
            // Only with a right checksum does the word reach the code behind it.
            if sealed {
                reseal(&**medium, block(number));
            }
        }
        Damage::CopyBlock { from, to } => {
            let mut bytes = [0; BLOCK_U64 as usize];
            medium.read(block(from).offset(), &mut bytes);
            medium.store(block(to).offset(), &bytes);
        }
        Damage::Byte { block: number, at, flip } => {
            let at = block(number).offset().plus(u64::from(at) % BLOCK_U64);
            let mut byte = [0];
            medium.read(at, &mut byte);
            medium.store(at, &[byte[0] ^ flip]);
        }
    }
}

fn value(old: u64, new: NewWord) -> u64 {
    match new {
        NewWord::Raw(word) => word,
        NewWord::Small(word) => word.into(),
        NewWord::Flip(bit) => old ^ 1 << (bit % 64),
        NewWord::Add(more) => old.wrapping_add_signed(more.into()),
        NewWord::Checked(value) => encode_word(value.into()),
        NewWord::Entry { block, zero, height } => {
            let flags = EntryFlags { zero, height: height % 4 };
            Entry { block: BlockNo(u64::from(block) % POOL_BLOCKS), flags }.encode()
        }
        NewWord::Like(_) => old,
    }
}
