//! Random operations, on the file system and on the model.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use everbyte_crash::SimMedium;
use everbyte_fs::{FileSystem, FsError, FsOptions, IndexKind, InodeNo, TIME_RANGE_NS};
use everbyte_media::{Mapped, MediaOptions};
use proptest::prelude::*;

use crate::model::Model;
use crate::operations::{ACLS, AclName, LONG, LONG_NAMES, Mode, Op, Path, Subject, numbered_name};
use crate::posix::{create, name};
use crate::real::{Real, open_pool};

const POOL_BYTES: usize = 24 << 20;

pub(crate) fn options() -> FsOptions {
    FsOptions { inodes_max: Some(300), lanes: 2, log_bytes: Some(4 << 20), ..FsOptions::default() }
}

/// `options` with `index`, and nodes small enough for early splits.
pub(crate) fn with_index(index: IndexKind, options: FsOptions) -> FsOptions {
    let index_node_bytes = index.is_tree().then_some(64);
    FsOptions { index, index_node_bytes, ..options }
}

fn path() -> impl Strategy<Value = Path> {
    let name = prop::sample::select(vec!["a", "b", "c", LONG]);
    prop::collection::vec(name, 1..=3)
}

/// Sizes and offsets near the bounds of pieces, blocks, entries in an inode, and leaves.
fn place() -> impl Strategy<Value = u64> {
    let borders = vec![0_u64, 4096, 8192, 65536, 69632, 2 << 20, (2 << 20) + 65536];
    (prop::sample::select(borders), -3_i64..=3)
        .prop_map(|(border, by)| border.saturating_add_signed(by))
}

/// Flags, mostly without restrictions, so that files still change.
fn flags() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 0, 0, 0x10, 0x20, 0x30, 0x40, 0x80, 0xc0, 0xf0])
}

/// Times at the ends of the range and beyond.
fn time() -> impl Strategy<Value = i128> {
    let ends = vec![*TIME_RANGE_NS.start(), 0, 1 << 63, *TIME_RANGE_NS.end()];
    (prop::sample::select(ends), -2_i128..=2).prop_map(|(end, by)| end + by)
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop::sample::select(vec![
        Mode::Replace,
        Mode::NoReplace,
        Mode::Exchange,
        Mode::Whiteout,
        Mode::NewWhiteout,
    ]);
    let permissions = 0_u32..0o10_000;
    let attribute = prop::sample::select(vec!["user.a", "user.b"]);
    let acl_name = prop::sample::select(vec![AclName::Access, AclName::Default]);
    let len = prop::sample::select(vec![0_usize, 1, 9, 100, 4096, 5000, 70_000]);
    prop_oneof![
        4 => (path(), permissions.clone()).prop_map(|(p, m)| Op::Create(p, m)),
        4 => (path(), permissions.clone()).prop_map(|(p, m)| Op::Mkdir(p, m)),
        1 => path().prop_map(Op::Fifo),
        1 => (path(), prop::sample::select(vec![1_usize, 128, 129, 4095, 4096]))
            .prop_map(|(p, len)| Op::Symlink(p, len)),
        2 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        2 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        5 => (path(), path(), mode).prop_map(|(a, b, mode)| Op::Rename(a, b, mode)),
        4 => (path(), place(), len.clone(), any::<u8>())
            .prop_map(|(path, offset, len, byte)| Op::Write { path, offset, len, byte }),
        2 => (path(), place()).prop_map(|(p, size)| Op::Truncate(p, size)),
        2 => (path(), place(), place(), prop::sample::select(vec!['r', 'z', 'p']), any::<bool>())
            .prop_map(|(path, offset, end, what, keep_size)| {
                let len = end.saturating_sub(offset);
                Op::Allocate { path, offset, len, what, keep_size }
            }),
        2 => (path(), attribute.clone(), prop::sample::select(vec![0_usize, 5, 2000, 4070]))
            .prop_map(|(p, name, len)| Op::Attribute(p, name, len)),
        1 => (path(), attribute).prop_map(|(p, name)| Op::RemoveAttribute(p, name)),
        3 => (path(), acl_name, prop::sample::select(ACLS.to_vec()))
            .prop_map(|(p, name, list)| Op::Acl(p, name, list)),
        2 => (path(), permissions).prop_map(|(p, m)| Op::Chmod(p, m)),
        2 => (path(), flags()).prop_map(|(p, bits)| Op::Flags(p, bits)),
        1 => (path(), time()).prop_map(|(p, ns)| Op::Accessed(p, ns)),
        1 => (path(), 0_usize..4).prop_map(|(p, hand)| Op::Open(p, hand)),
        1 => (0_usize..4).prop_map(Op::Close),
        3 => (path(), 0_usize..4).prop_map(|(p, hand)| Op::View(p, hand)),
        2 => (0_usize..4).prop_map(Op::LookAtView),
        1 => (0_usize..4).prop_map(Op::EndView),
        2 => (path(), 0_u32..0o1000, 0_usize..4).prop_map(|(p, m, hand)| Op::Unnamed(p, m, hand)),
        2 => (0_usize..4, path()).prop_map(|(hand, p)| Op::LinkHand(hand, p)),
        3 => ([path(), path()], [place(), place()], len.clone())
            .prop_map(|(paths, offsets, len)| Op::Copy { paths, offsets, len: len as u64 }),
        1 => Just(Op::Sync),
    ]
}

fn index() -> impl Strategy<Value = IndexKind> {
    prop::sample::select(IndexKind::ALL.to_vec())
}

/// Applies `ops` to both, and opens the file system again after a close or a kill.
fn run(index: IndexKind, ops: &[Op], is_closed: bool) {
    let medium = Arc::new(SimMedium::new(POOL_BYTES as u64));
    let (mut real, mut model) = (Real::make(&medium, &with_index(index, options())), Model::new());
    for op in ops {
        let made = real.make(op);
        assert_eq!(made, model.make(op), "{op:?}");
        if let (Op::View(path, hand), Ok(())) = (op, made) {
            assert_eq!(real.viewed(*hand), Some(&model.bytes(path).unwrap()[..]), "{op:?}");
        }
    }
    for hand in 0..4 {
        assert_eq!(real.look_at_view(hand), Ok(()));
    }
    assert_eq!(real.tree(), model.tree());
    let report = real.fs.pool().check().unwrap();
    assert!(report.is_clean(), "with views: {report:?}");
    let free = real.fs.status().free_inodes;
    real.fs.sync().unwrap();
    let pool = Arc::clone(real.fs.pool());
    if is_closed {
        drop(real);
        pool.close().unwrap();
    }
    drop(pool);
    let pool = open_pool(&medium).unwrap();
    assert_eq!(pool.recovery().was_clean, is_closed);
    let report = pool.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(pool);
    let real = Real::open(&medium).unwrap();
    assert_eq!(real.tree(), model.tree());
    let report = real.fs.pool().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let files = real.tree().values().map(|seen| seen.first_path.clone()).collect::<BTreeSet<_>>();
    let status = real.fs.status();
    assert_eq!(status.inodes - status.free_inodes, files.len() as u64, "{free} were free before");
}

/// Two threads on one file system, each in a separate directory.
fn run_beside(index: IndexKind, all: [Vec<Op>; 2]) {
    let medium = Mapped::anonymous(POOL_BYTES as u64, &MediaOptions::default()).unwrap();
    let medium = Arc::new(medium);
    let fs = Real::make(&medium, &with_index(index, options())).fs;
    let tops = ["left", "right"];
    let ops = all.into_iter().zip(tops).map(|(ops, top)| {
        let ops = ops.into_iter().map(move |op| op.below(top));
        [Op::Mkdir(vec![top], 0o755)].into_iter().chain(ops).collect::<Vec<_>>()
    });
    let ops: Vec<_> = ops.collect();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for ops in &ops {
            let (fs, start) = (Arc::clone(&fs), &start);
            scope.spawn(move || {
                let (mut real, mut model) = (Real::sharing(fs), Model::new());
                start.wait();
                for op in ops {
                    assert_eq!(real.make(op), model.make(op), "{op:?}");
                }
            });
        }
    });
    let mut both = Model::new();
    for ops in &ops {
        ops.iter().for_each(|op| _ = both.make(op));
        both.close_all();
    }
    let real = Real::sharing(Arc::clone(&fs));
    assert_eq!(real.tree(), both.tree());
    fs.sync().unwrap();
    let report = fs.pool().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_match_the_model(
        index in index(),
        ops in prop::collection::vec(op(), 1..60),
        is_closed in any::<bool>(),
    ) {
        run(index, &ops, is_closed);
    }

    #[test]
    fn random_two_threads_match_a_serial_order(
        index in index(),
        left in prop::collection::vec(op(), 1..60),
        right in prop::collection::vec(op(), 1..60),
    ) {
        run_beside(index, [left, right]);
    }
}

/// Every name in a directory, in the order of listing.
fn listed(fs: &FileSystem<SimMedium>, directory: InodeNo) -> Vec<String> {
    let (mut names, mut place) = (Vec::new(), 0);
    loop {
        let entries = fs.list(directory, place).unwrap();
        let Some(last) = entries.last() else { return names };
        place = last.next;
        names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
    }
}

/// Creates many names, removes and creates some of them again, and removes all.
fn many_names(names: &[String]) {
    let medium = Arc::new(SimMedium::new(64 << 20));
    let options = FsOptions { inodes_max: Some(20_000), ..options() };
    let real = Real::make(&medium, &options);
    let (fs, root) = (&real.fs, real.fs.root());
    let first = create(fs, root, &names[0]);
    let link = |text: &String| {
        fs.link(first, root, name(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
    };
    names[1..].iter().for_each(link);
    assert_eq!(fs.attr(first).unwrap().links as usize, names.len());
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    let expected = sorted(names.to_vec());
    assert_eq!(sorted(listed(fs, root)), expected);
    let blocks = fs.attr(root).unwrap().blocks;
    let some = || names.iter().skip(1).step_by(7);
    some().for_each(|text| fs.unlink(root, name(text)).unwrap());
    some().for_each(|text| assert!(matches!(fs.lookup(root, name(text)), Err(FsError::NotFound))));
    // A sync makes their places reusable.
    fs.sync().unwrap();
    some().for_each(link);
    assert_eq!(sorted(listed(fs, root)), expected);
    assert!(fs.attr(root).unwrap().blocks <= blocks + blocks / 50 + 1);
    fs.sync().unwrap();
    let report = fs.pool().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    for text in names {
        assert_eq!(fs.lookup(root, name(text)).unwrap().inode, first, "{text}");
        fs.unlink(root, name(text)).unwrap();
    }
    assert!(fs.list(root, 0).unwrap().is_empty());
    assert_eq!(fs.attr(root).unwrap().size, 0);
}

#[test]
fn large_directory_lists_each_name_once() {
    many_names(&(0..9000).map(|number| format!("file number {number}")).collect::<Vec<_>>());
    // Fewer names fill a bucket, so nodes lie below nodes.
    many_names(&(0..2800).map(|number| numbered_name(LONG_NAMES + number)).collect::<Vec<_>>());
}
