//! Every index compared with a map in DRAM: in any order, with readers, and damaged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_crash::SimMedium;
use everbyte_media::BLOCK_U64;
use everbyte_pool::format::encode_word;
use everbyte_pool::{OpenOptions, Pool, UsedExtent};
use proptest::prelude::*;

use super::link::Link;
use super::*;
use crate::format::INDEX_WORDS_AT;
use crate::{FileSystem, FsOptions, kinds};

const MEDIUM_BYTES: u64 = 24 << 20;
const TREES: [IndexKind; 4] =
    [IndexKind::PmfsRadix, IndexKind::PageCacheRadix, IndexKind::BPlus, IndexKind::CsbPlus];

/// An index in a file system without files.
struct BareIndex {
    medium: Arc<SimMedium>,
    fs: FileSystem<SimMedium>,
    index: Box<dyn TableIndex<SimMedium>>,
    /// The address of its words in the superblock.
    words_at: PoolOffset,
}

impl BareIndex {
    fn new(kind: IndexKind, node_bytes: Option<u32>) -> Self {
        let medium = Arc::new(SimMedium::new(MEDIUM_BYTES));
        Pool::format(&*medium, 2, [1; 16]).unwrap();
        let options = OpenOptions { capacity_blocks: MEDIUM_BYTES / BLOCK_U64 };
        let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &options).unwrap());
        let options = FsOptions {
            index: kind,
            index_node_bytes: node_bytes,
            inodes_max: Some(10_000_000),
            lanes: 2,
            log_bytes: Some(4 << 20),
            ..FsOptions::default()
        };
        let fs = FileSystem::create(&pool, "files", MEDIUM_BYTES, &options).unwrap();
        let reader = fs.reader();
        let (superblock, at) = FsSuperblock::load(reader, fs.volume().root_at()).unwrap();
        let index = open(&superblock, at, reader).unwrap();
        Self { medium, index, words_at: at.plus(INDEX_WORDS_AT), fs }
    }

    fn insert(&self, table: u64, block: BlockNo) -> Result<(), FsError> {
        self.fs.volume().change(|batch, _| self.index.plan_insert(batch, table, block)).map(drop)
    }

    /// Adds the next table at an address of the index, or at [`block`] if it supports any. Returns the
    /// address.
    fn add(&self, table: u64) -> PoolOffset {
        let mut at = None;
        let insert = |batch: &mut Batch<'_, '_, _>| {
            let block = match self.index.window() {
                Some(_) => self.index.take_table(batch, table, 1)?,
                None => block(table),
            };
            at = Some(block.offset());
            self.index.plan_insert(batch, table, block)
        };
        let mut insert = insert;
        self.fs.volume().change(|batch, _| insert(batch)).unwrap();
        at.unwrap()
    }

    fn find(&self, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        self.index.find(self.fs.reader(), table)
    }

    /// Number of blocks that the index claims.
    fn visit(&self) -> Result<u64, Corrupt> {
        let mut blocks = 0;
        self.index.visit(self.fs.reader(), &mut |claimed: UsedExtent| {
            let run = claimed.run;
            blocks += run.len;
            assert!(blocks < MEDIUM_BYTES / BLOCK_U64, "a visit goes round in a circle");
            Ok(())
        })?;
        Ok(blocks)
    }

    /// The root's link.
    fn root(&self) -> Link {
        Link::load("root", self.fs.reader(), self.words_at).unwrap().unwrap()
    }
}

/// A block for a table. An index accepts any.
fn block(table: u64) -> BlockNo {
    BlockNo(100 + table * 7919 % 5000)
}

/// Node sizes for the tests: the smallest have the most splits.
fn node_bytes() -> impl Strategy<Value = Option<u32>> {
    prop::sample::select(vec![Some(64), Some(64), Some(128), Some(512), Some(4096), None])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_added_in_any_order_are_found(
        kind in prop::sample::select(TREES.to_vec()),
        node_bytes in node_bytes(),
        range in prop::sample::select(vec![300_u64, 10_000, 600_000]),
        seeds in prop::collection::vec(any::<u32>(), 1..400),
    ) {
        let alone = BareIndex::new(kind, node_bytes);
        let first = alone.find(0).unwrap().unwrap();
        let mut expected = BTreeMap::from([(0, first)]);
        for seed in seeds {
            let table = 1 + u64::from(seed) % range;
            let block = block(u64::from(seed));
            alone.insert(table, block).unwrap();
            expected.insert(table, block.offset());
        }
        for table in expected.keys().flat_map(|&table| [table, table + 1]).chain([1 << 31, u64::MAX]) {
            prop_assert_eq!(alone.find(table).unwrap(), expected.get(&table).copied(), "{}", table);
        }
        alone.visit().unwrap();
    }
}

#[test]
fn ascending_tables_are_found_and_compact() {
    for kind in IndexKind::ALL {
        for node_bytes in [Some(64), Some(128), None] {
            let node_bytes = node_bytes.filter(|_| kind.is_tree());
            let alone = BareIndex::new(kind, node_bytes);
            let tables = 3000;
            let mut added = vec![alone.find(0).unwrap().unwrap()];
            let place = |table| usize::try_from(table).unwrap();
            for table in 1..tables {
                added.push(alone.add(table));
                for other in [1, table / 2, table] {
                    assert_eq!(alone.find(other).unwrap(), Some(added[place(other)]));
                }
                assert!(kind == IndexKind::Window || alone.find(table + 1).unwrap().is_none());
            }
            assert!(
                (1..tables).all(|table| alone.find(table).unwrap() == Some(added[place(table)]))
            );
            // An entry takes 8 bytes in a radix tree and 12 in a B+ tree. Old groups of CSB+ can double this.
            // A run is at most two thirds empty.
            let blocks = alone.visit().unwrap();
            assert!(kind == IndexKind::Direct || blocks <= 64, "{kind:?} takes {blocks} blocks");
        }
    }
}

#[test]
fn readers_find_tables_during_additions() {
    for kind in IndexKind::ALL {
        let alone = BareIndex::new(kind, kind.is_tree().then_some(64));
        let tables = AtomicU64::new(1);
        // Two regions of a window.
        let last = 600;
        let added: Vec<_> = (0..last).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for table in 1..last {
                    added[usize::try_from(table).unwrap()]
                        .store(alone.add(table).0, Ordering::Release);
                    tables.store(table + 1, Ordering::Release);
                }
            });
            loop {
                let there = tables.load(Ordering::Acquire);
                for table in [1, there / 3, there / 2, there - 1] {
                    if !(1..there).contains(&table) {
                        continue;
                    }
                    let expected = added[usize::try_from(table).unwrap()].load(Ordering::Acquire);
                    let found = alone.find(table).unwrap();
                    assert_eq!(found, Some(PoolOffset(expected)), "{kind:?}: {table}");
                }
                if there == last {
                    break;
                }
            }
        });
    }
}

#[test]
fn index_survives_reopening() {
    for kind in IndexKind::ALL {
        let alone = BareIndex::new(kind, kind.is_tree().then_some(128));
        let added: Vec<_> = (1..600).map(|table| alone.add(table)).collect();
        alone.fs.sync().unwrap();
        let BareIndex { medium, fs, index, .. } = alone;
        let pool = Arc::clone(fs.pool());
        drop((index, fs));
        pool.close().unwrap();
        drop(pool);
        let options = OpenOptions { capacity_blocks: MEDIUM_BYTES / BLOCK_U64 };
        let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
        let fs = FileSystem::open(&pool, "files").unwrap();
        let (superblock, at) = FsSuperblock::load(fs.reader(), fs.volume().root_at()).unwrap();
        assert_eq!(IndexKind::of(&superblock, at), Ok(kind));
        let index = open(&superblock, at, fs.reader()).unwrap();
        for (table, at) in (1..).zip(added) {
            let found = index.find(fs.reader(), table).unwrap();
            assert_eq!(found, Some(at), "{kind:?}: {table}");
        }
    }
}

#[test]
fn invalid_node_sizes_are_refused() {
    for kind in IndexKind::ALL {
        assert_eq!(IndexKind::from_name(kind.name()), Some(kind));
        assert_eq!(IndexKind::from_code(kind.code()), Some(kind));
    }
    assert_eq!(IndexKind::from_name("btree"), None);
    for kind in [IndexKind::Direct, IndexKind::Window] {
        assert_eq!(kind.node_bytes(None), Ok(0));
        assert!(kind.node_bytes(Some(64)).is_err_and(|error| error.contains(kind.name())));
    }
    for kind in TREES {
        assert_eq!(kind.node_bytes(Some(64)), Ok(64));
        assert_eq!(kind.node_bytes(Some(4096)), Ok(4096));
        for bytes in [0, 1, 32, 96, 4095, 8192, 1 << 31] {
            let error = kind.node_bytes(Some(bytes)).unwrap_err();
            assert!(error.contains(kind.name()) && error.contains(&bytes.to_string()), "{error}");
        }
    }
    let defaults = TREES.map(|kind| kind.node_bytes(None).unwrap());
    assert_eq!(defaults, [4096, 2048, 256, 128]);
}

/// An index of so many tables, with nodes of 64 bytes.
fn grown(kind: IndexKind, tables: u64) -> BareIndex {
    let alone = BareIndex::new(kind, Some(64));
    for table in 1..tables {
        alone.insert(table, block(table)).unwrap();
    }
    alone
}

/// Expects an error of the index about a structure that leads through `at`.
fn expect_corrupt(alone: &BareIndex, table: u64, at: PoolOffset, words: &str) {
    for corrupt in [alone.find(table).map(drop).err(), alone.visit().err()] {
        let Some(corrupt) = corrupt else { panic!("{words} is not noticed") };
        assert!(corrupt.structure.ends_with("index"), "{corrupt}");
        assert_eq!(corrupt.at, at, "{corrupt}");
        assert!(corrupt.what.contains(words), "{corrupt}");
    }
}

#[test]
fn damaged_tree_link_is_an_error() {
    for kind in TREES {
        let alone = grown(kind, 40);
        let (root, root_at) = (alone.root(), alone.words_at);
        assert!(root.level >= 2, "{kind:?}");
        let below = Link { level: root.level - 1, ..root };
        let outside = Link { at: PoolOffset(MEDIUM_BYTES), ..root };
        let askew = |link: Link| Link { at: link.at.plus(BLOCK_U64 - 32), ..link };
        assert_eq!(askew(root).at.0 % 64, 32);
        for (word, words) in [
            (0, "no root"),
            (root.encode() ^ 4, "check bits"),
            (outside.encode(), "outside the pool's data"),
        ] {
            alone.medium.store_word(root_at, word);
            expect_corrupt(&alone, 39, root_at, words);
        }
        alone.medium.store_word(root_at, root.encode());
        // The link on the path to the first table.
        let link_at = match kind {
            IndexKind::BPlus => root.at.plus(24),
            _ => root.at,
        };
        let old = alone.medium.load_word(link_at);
        for (word, words) in [
            (root.encode(), "instead of"),
            (Link { level: 0, ..root }.encode(), "begin where it leads"),
            (1, "check bits"),
        ] {
            if words == "begin where it leads" && root.at.0.is_multiple_of(BLOCK_U64) {
                continue;
            }
            alone.medium.store_word(link_at, word);
            expect_corrupt(&alone, 0, link_at, words);
        }
        alone.medium.store_word(link_at, below.encode());
        assert!(alone.visit().is_err(), "{kind:?}: a node is its own child");
        alone.medium.store_word(link_at, old);
        alone.visit().unwrap();
    }
}

#[test]
fn misplaced_key_is_an_error() {
    for (kind, keys_at) in [(IndexKind::BPlus, 0), (IndexKind::CsbPlus, 8)] {
        let alone = grown(kind, 40);
        let keys_at = alone.root().at.plus(keys_at);
        let old = alone.medium.load_word(keys_at);
        alone.medium.store_word(keys_at, old.rotate_left(32));
        let corrupt = alone.visit().unwrap_err();
        assert_eq!((corrupt.at, &*corrupt.what), (keys_at, "its keys are out of order"));
        alone.medium.store_word(keys_at, u64::MAX);
        let corrupt = alone.visit().unwrap_err();
        assert_eq!(corrupt.at, keys_at);
        assert!(["its keys are out of order", "a node has no keys"].contains(&&*corrupt.what));
        // Moves the lower bound of the second child up.
        alone.medium.store_word(keys_at, old + (1 << 32));
        let corrupt = alone.visit().unwrap_err();
        assert!(corrupt.what.contains("keys outside"), "{corrupt}");
        assert!(alone.insert(7, block(7)).is_ok());
        alone.medium.store_word(keys_at, old);
        alone.visit().unwrap();
    }
}

#[test]
fn damaged_run_list_is_an_error() {
    let alone = grown(IndexKind::BPlus, 2000);
    let (newest_at, used_at) = (alone.words_at.plus(8), alone.words_at.plus(16));
    let newest = alone.medium.load_word(newest_at);
    let used = alone.medium.load_word(used_at);
    let mut runs = Vec::new();
    let mut collect = |claimed: UsedExtent| {
        runs.push(claimed);
        Ok(())
    };
    alone.index.visit(alone.fs.reader(), &mut collect).unwrap();
    assert!(runs.len() >= 3);
    let cases = [
        (newest_at, 0, "outside the index"),
        (newest_at, newest ^ 1, "check bits"),
        (newest_at, encode_word(15 << 40 | 100), "so long"),
        (newest_at, encode_word(1), "outside the pool's data"),
        (used_at, used ^ 1, "cannot be right"),
        (used_at, encode_word(1 << 30), "are taken"),
        (used_at, encode_word(0), "outside the index"),
        // A list with a cycle.
        (runs[1].named_at, newest, "wrong number"),
        (runs[1].named_at, 0, "missing"),
    ];
    for (at, word, words) in cases {
        let old = alone.medium.load_word(at);
        alone.medium.store_word(at, word);
        let corrupt = alone.visit().unwrap_err();
        assert!(corrupt.what.contains(words), "{words}: {corrupt}");
        alone.medium.store_word(at, old);
    }
    alone.visit().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_index_neither_panics_nor_loops(
        kind in prop::sample::select(TREES.to_vec()),
        damage in prop::collection::vec((any::<u16>(), 0_u8..5, any::<u64>()), 1..8),
    ) {
        let alone = grown(kind, 120);
        // Damage goes to the words of the superblock, and to the first run.
        let mut places: Vec<PoolOffset> = (0..3).map(|word| alone.words_at.plus(8 * word)).collect();
        let mut last = None;
        let mut collect = |claimed: UsedExtent| { last = Some(claimed); Ok(()) };
        alone.index.visit(alone.fs.reader(), &mut collect).unwrap();
        let run = last.unwrap().run;
        places.extend((0..512 * run.len).map(|word| run.start.offset().plus(8 * word)));
        for (place, what, random) in damage {
            let at = places[usize::from(place) % places.len()];
            let node = run.start.offset().plus(random / 16 % 64 * 64);
            let level = u32::try_from(random % 16).unwrap();
            alone.medium.store_word(at, match what {
                0 => random,
                1 => encode_word(random >> 16),
                2 => alone.medium.load_word(at).rotate_left(32),
                3 => alone.medium.load_word(at) ^ 1 << (random % 64),
                _ => Link::new(node, level).unwrap().encode(),
            });
        }
        let reader = alone.fs.reader();
        let mut claims = 0;
        let _sound_or_not = alone.index.visit(reader, &mut |_| {
            claims += 1;
            assert!(claims < 10_000, "a visit goes round in a circle");
            Ok(())
        });
        for table in (0..130).chain([5000, 1 << 31]) {
            let _found_or_not = alone.find(table);
        }
        for table in [3, 120, 5000] {
            let _inserted_or_not = alone.insert(table, block(table));
        }
    }
}

#[test]
fn index_grows_in_a_fragmented_pool() {
    let alone = BareIndex::new(IndexKind::PmfsRadix, None);
    // Each table needs a node of its own.
    for number in 0..1000 {
        alone.insert(number * 513, block(number)).unwrap();
    }
    assert!(alone.visit().unwrap() > 1000);
}

#[test]
fn damaged_window_word_is_an_error() {
    let alone = BareIndex::new(IndexKind::Window, None);
    let added: Vec<_> = (1..600).map(|table| alone.add(table)).collect();
    let tables = |count| Tables { count, counted_at: PoolOffset(8), blocks: 1 };
    let visit = |count| {
        let mut blocks = 0;
        let reader = alone.fs.reader();
        alone.index.visit_tables(reader, tables(count), &mut |claimed: UsedExtent| {
            let run = claimed.run;
            blocks += run.len;
            Ok(())
        })?;
        Ok::<_, Corrupt>(blocks)
    };
    assert_eq!(visit(600), Ok(1024));
    let run = alone.fs.reader().entry("run", alone.words_at).unwrap().unwrap();
    let second_at = run.block.offset().plus(8);
    for (count, words) in [(512, "a region without tables"), (1025, "no region")] {
        let corrupt = visit(count).unwrap_err();
        assert!(corrupt.what.contains(words), "{corrupt}");
    }
    let old = alone.medium.load_word(second_at);
    let askew = BlockNo(added[550].block().0 + 1);
    for (word, words) in [
        (0, "no region"),
        (old ^ 4, ""),
        (everbyte_pool::format::Entry::data(askew).encode(), "no region can begin"),
        (everbyte_pool::format::Entry::data(BlockNo(1 << 30)).encode(), "outside the pool's data"),
    ] {
        alone.medium.store_word(second_at, word);
        let corrupt = visit(600).unwrap_err();
        assert_eq!((&*corrupt.structure, corrupt.at), ("window index", second_at), "{corrupt}");
        assert!(corrupt.what.contains(words), "{corrupt}");
    }
    alone.medium.store_word(second_at, old);
    assert_eq!(visit(600), Ok(1024));
}
