//! Crashes: the tree is at a checkpoint, the pool is sound, and the file system is usable.

use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Explorer, Log, Omission, SimMedium, Summary};
use everbyte_fs::plant::Bug;
use everbyte_fs::testkit::fix_hash_key;
use everbyte_fs::{FsOptions, IndexKind};
use everbyte_media::BLOCK_U64;
use everbyte_plant::plant;
use everbyte_testkit::crash_seed;

use crate::model::Model;
use crate::operations::{ACLS, AclName, LONG, Mode, Op, Subject, Tree};
use crate::random::with_index;
use crate::real::Real;

/// Blocks of a small pool, of a pool for two runs of 2 MiB, and of a pool for one run.
const POOL_BLOCKS: u64 = 160;
const LARGE_POOL_BLOCKS: u64 = 4 * 512;
pub(crate) const RUN_POOL_BLOCKS: u64 = 2 * 512 + 200;
const RUN_BYTES: u64 = 2 << 20;

/// Trees allowed after a crash from now on.
type AllowedTrees = Vec<Tree>;

fn options() -> FsOptions {
    FsOptions { lanes: 1, log_bytes: Some(64 << 10), ..FsOptions::default() }
}

/// The first tree of every workload: a file with two names, a file with a map, two directories, a file in one
/// of them, and a link.
pub(crate) fn starting_tree() -> Vec<Op> {
    let write = |path: &[&'static str], offset, len| Op::Write {
        path: path.to_vec(),
        offset,
        len,
        byte: 1,
    };
    vec![
        Op::Create(vec!["a"], 0o644),
        write(&["a"], 0, 5000),
        Op::Link(vec!["a"], vec!["second"]),
        Op::Create(vec!["large"], 0o600),
        write(&["large"], 61_440, 8192),
        Op::Mkdir(vec!["d"], 0o755),
        Op::Create(vec!["d", "inner"], 0o640),
        Op::Mkdir(vec!["empty"], 0o700),
        Op::Symlink(vec!["link"], 200),
    ]
}

fn prepare(medium: &Arc<SimMedium>, work: &Workload) {
    drop(Real::make(medium, &with_index(work.index, work.options())));
    // A fixed key splits directories at the same names in every run.
    fix_hash_key(&**medium, 0..work.pool_blocks);
    let mut real = Real::open(medium).unwrap();
    for op in work.starting_ops() {
        real.make(&op).unwrap();
    }
}

fn run(medium: &Arc<SimMedium>, log: &Log<AllowedTrees>, work: &Workload) {
    let note = |allowed: &[Model]| log.note(allowed.iter().map(Subject::tree).collect());
    let mut allowed = vec![work.model()];
    note(&allowed);
    let mut real = Real::open(medium).unwrap();
    let mut now = allowed[0].clone();
    assert_eq!(real.tree(), now.tree());
    for op in &work.ops {
        if matches!(op, Op::Sync | Op::SyncFile(_)) {
            allowed.push(now.clone());
            note(&allowed);
        }
        let made = real.make(op);
        assert_eq!(made, now.make(op), "{op:?}");
        assert!(work.may_fail || made.is_ok(), "{op:?} fails with {made:?}");
        match op {
            Op::Sync => allowed = vec![now.clone()],
            Op::SyncFile(path) if made.is_ok() => Model::note_synced(&mut allowed, path),
            _ => continue,
        }
        note(&allowed);
        assert_eq!(real.tree(), now.tree());
    }
}

fn check(real: Real<SimMedium>, crash: &Crash<'_, AllowedTrees>) -> Result<(), String> {
    let found = real.try_tree().map_err(|error| error.to_string())?;
    let allowed = &crash.events.last().expect("noted before the opening").event;
    if !allowed.contains(&found) {
        return Err(format!("found {found:?}, not one of {allowed:?}"));
    }
    use_after_crash(real, &found)
}

/// Checks the soundness of the state after a crash with the tree `found`, uses it, and checks that used
/// blocks and inodes are not allocated again.
pub(crate) fn use_after_crash(mut real: Real<SimMedium>, found: &Tree) -> Result<(), String> {
    sound(&real)?;
    for op in [
        Op::Mkdir(vec!["after"], 0o755),
        Op::Create(vec!["after", "crash"], 0o644),
        Op::Write { path: vec!["after", "crash"], offset: 100, len: 70_000, byte: 9 },
        Op::Sync,
    ] {
        real.make(&op).map_err(|errno| format!("{op:?} fails with {errno} after the crash"))?;
    }
    let mut now = real.try_tree().map_err(|error| error.to_string())?;
    now.retain(|path, _| !path.starts_with("/after"));
    let root = now.get_mut("").expect("there is a root");
    (root.size, root.links) = (root.size - 1, root.links - 1);
    if now != *found {
        return Err(format!("{now:?} is left of {found:?}"));
    }
    sound(&real)
}

pub(crate) fn sound(real: &Real<SimMedium>) -> Result<(), String> {
    let report = real.fs.pool().check().map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.problems.join("; ")) }
}

pub(crate) fn explored(explorer: &Explorer, work: &Workload) -> Result<Summary, String> {
    explored_without(explorer, work, None)
}

/// As [`explored`], without one flush or fence.
fn explored_without(
    explorer: &Explorer,
    work: &Workload,
    omission: Option<Omission>,
) -> Result<Summary, String> {
    let mut scenario = Closures::new(
        |medium, log| run(medium, log, work),
        |medium| Real::open(medium).map_err(|error| error.to_string()),
        check,
    )
    .medium_len(work.pool_blocks * BLOCK_U64)
    .prepared(|medium| prepare(medium, work));
    if let Some(omission) = omission {
        scenario = labelled(scenario, work).omit(omission);
    }
    explorer.explore(&scenario).map_err(|failure| failure.to_string())
}

/// The scenario with labels for the parts of the pool.
fn labelled<'a, E, R>(scenario: Closures<'a, E, R>, work: &Workload) -> Closures<'a, E, R> {
    let medium = Arc::new(SimMedium::new(work.pool_blocks * BLOCK_U64));
    prepare(&medium, work);
    let real = Real::open(&medium).unwrap();
    let descriptor = real.fs.volume().descriptor();
    let log_end = descriptor.log_start + descriptor.log_blocks();
    let header = real.fs.volume().root_at().block().0;
    scenario
        .label(0..work.pool_blocks * BLOCK_U64, "data")
        .label(header * BLOCK_U64..(header + 1) * BLOCK_U64, "header")
        .label(descriptor.log_start * BLOCK_U64..log_end * BLOCK_U64, "log")
}

/// A few images of every crash.
fn few() -> Explorer {
    Explorer { seed: crash_seed(), nested_depth: 0, runs_max: 4, ..Explorer::default() }
}

fn write(path: &[&'static str], offset: u64, len: usize) -> Op {
    Op::Write { path: path.to_vec(), offset, len, byte: 7 }
}

fn allocate(path: &[&'static str], what: char) -> Op {
    Op::Allocate { path: path.to_vec(), offset: 4000, len: 65_000, what, keep_size: false }
}

/// Operations before a crash.
pub(crate) struct Workload {
    name: &'static str,
    /// Done and durable before any crash.
    before: Vec<Op>,
    ops: Vec<Op>,
    pub(crate) index: IndexKind,
    /// True if operations may fail.
    pub(crate) may_fail: bool,
    pub(crate) pool_blocks: u64,
}

impl Workload {
    fn options(&self) -> FsOptions {
        // Tables for two regions of a window.
        let inodes_max = if self.index == IndexKind::Window { 9000 } else { 400 };
        FsOptions { inodes_max: Some(inodes_max), ..options() }
    }

    fn starting_ops(&self) -> impl Iterator<Item = Op> {
        starting_tree().into_iter().chain(self.before.iter().cloned()).chain([Op::Sync])
    }

    /// The tree before the operations.
    fn model(&self) -> Model {
        let mut model = Model::new();
        for op in self.starting_ops() {
            model.make(&op).unwrap();
        }
        model
    }
}

pub(crate) fn work(name: &'static str, ops: impl IntoIterator<Item = Op>) -> Workload {
    let ops = ops.into_iter().chain([Op::Sync]).collect();
    let pool_blocks = POOL_BLOCKS;
    Workload {
        name,
        before: Vec::new(),
        ops,
        index: IndexKind::Direct,
        may_fail: false,
        pool_blocks,
    }
}

/// One to three operations of each kind, and operations after them in the same epoch and the next.
fn workloads() -> Vec<Workload> {
    each_kind().into_iter().chain(at_borders()).collect()
}

/// Operations at the bounds of lines, blocks, maps and sizes, and operations that end later.
fn at_borders() -> Vec<Workload> {
    let exchange = |from: &[&'static str], to: &[&'static str]| {
        Op::Rename(from.to_vec(), to.to_vec(), Mode::Exchange)
    };
    let unlink = |path: &[&'static str]| Op::Unlink(path.to_vec());
    let create = |path: &[&'static str]| Op::Create(path.to_vec(), 0o600);
    let cut = |path: &[&'static str], size| Op::Truncate(path.to_vec(), size);
    let attribute = |name, len| Op::Attribute(vec!["a"], name, len);
    let kept =
        |what| Op::Allocate { path: vec!["a"], offset: 4000, len: 20_000, what, keep_size: true };
    vec![
        work("exchange files", [exchange(&["a"], &["d", "inner"]), unlink(&["a"])]),
        work("exchange directories", [exchange(&["d"], &["empty"])]),
        work("line", [write(&["a"], 63, 2), write(&["a"], 128, 64), write(&["a"], 4032, 64)]),
        work("block", [write(&["a"], 4095, 2), write(&["a"], 0, 4096), write(&["a"], 8191, 1)]),
        work("first entries", [write(&["d", "inner"], 65_535, 2), write(&["a"], 65_536, 1)]),
        work("leaves", [write(&["a"], (2 << 20) - 5, 10), cut(&["a"], 2 << 20)]),
        work("beyond the end", [kept('r'), kept('z'), cut(&["a"], 7000)]),
        work("zero and punch", [allocate(&["large"], 'z'), kept('p'), write(&["large"], 4096, 9)]),
        work(
            "replaced attribute",
            [attribute("user.a", 9), attribute("user.a", 300), Op::Sync, attribute("user.a", 10)],
        ),
        work(
            "last attribute",
            [attribute("user.a", 9), Op::Sync, Op::RemoveAttribute(vec!["a"], "user.a")],
        ),
        work(
            "open and gone",
            [Op::Open(vec!["large"], 0), unlink(&["large"]), create(&["n"]), Op::Close(0)],
        ),
        work(
            "fsync",
            [write(&["a"], 0, 9), Op::SyncFile(vec!["a"]), write(&["large"], 61_440, 100)],
        ),
        work(
            "fsync of what is new",
            [
                create(&["n"]),
                write(&["n"], 0, 5000),
                Op::SyncFile(vec!["n"]),
                unlink(&["a"]),
                Op::SyncFile(vec!["large"]),
            ],
        ),
    ]
}

fn each_kind() -> Vec<Workload> {
    let rename = |from: &[&'static str], to: &[&'static str], mode| {
        Op::Rename(from.to_vec(), to.to_vec(), mode)
    };
    let create = |path: &[&'static str], permissions| Op::Create(path.to_vec(), permissions);
    let unlink = |path: &[&'static str]| Op::Unlink(path.to_vec());
    let cut = |path: &[&'static str], size| Op::Truncate(path.to_vec(), size);
    let attribute = |name, len| Op::Attribute(vec!["a"], name, len);
    let names = |first, count| Op::Names(vec!["d"], first, count);
    let a_again = [unlink(&["a"]), unlink(&["second"]), Op::Chmod(vec!["large"], 0)];
    vec![
        work("create", [create(&["n"], 0o644), write(&["n"], 0, 300)]),
        work("mkdir", [Op::Mkdir(vec!["n"], 0o755), create(&["n", LONG], 0o600)]),
        work("link", [Op::Link(vec!["a"], vec!["d", "third"]), unlink(&["a"])]),
        work("unlink", [unlink(&["large"]), Op::Sync, write(&["a"], 4096, 8192)]),
        work("rmdir", [Op::Rmdir(vec!["empty"]), Op::Mkdir(vec!["empty"], 0o711)]),
        work("symlink", [Op::Symlink(vec!["s"], 20), unlink(&["link"])]),
        work("rename", [rename(&["a"], &["n"], Mode::Replace)]),
        work("replace", [rename(&["a"], &["large"], Mode::Replace)]),
        work("across", [rename(&["d"], &["empty", "d"], Mode::NoReplace)]),
        work("exchange", [rename(&["d", "inner"], &["empty"], Mode::Exchange)]),
        work("cut", [cut(&["large"], 100), write(&["large"], 65_000, 9)]),
        work("grow", [cut(&["a"], 5), cut(&["a"], 6000)]),
        work("write", [write(&["a"], 4000, 200), write(&["a"], 4090, 4)]),
        work("append", [write(&["a"], 5000, 100), write(&["large"], 69_632, 4096)]),
        work("chmod", [Op::Chmod(vec!["a"], 0o4711), Op::Chmod(vec!["d"], 0)]),
        work("orphan", [Op::Open(vec!["large"], 0), unlink(&["large"]), Op::Sync, Op::Close(0)]),
        work(
            "attributes",
            [
                attribute("user.a", 9),
                Op::Sync,
                attribute("user.b", 90),
                Op::RemoveAttribute(vec!["a"], "user.a"),
            ],
        ),
        work("reuse", a_again.into_iter().chain([create(&["n"], 0o600)])),
        work("beside", [create(&["n"], 0o600), Op::Chmod(vec!["large"], 0)]),
        work("many files", [Op::Files(vec!["d"], 9)]),
        Workload { before: vec![names(0, 92)], ..work("many names", [names(92, 7)]) },
        work("punch", [allocate(&["large"], 'p'), allocate(&["a"], 'z')]),
        work("reserve", [allocate(&["d", "inner"], 'r'), write(&["d", "inner"], 9000, 50)]),
        work(
            "slots",
            [
                unlink(&["d", "inner"]),
                create(&["d", "other"], 0o600),
                Op::Sync,
                create(&["d", "again"], 0o604),
            ],
        ),
    ]
}

/// Workloads of access lists, whiteouts, files without names, and copies.
fn further_workloads() -> Vec<Workload> {
    let acl = |path: &[&'static str], name, list: usize| Op::Acl(path.to_vec(), name, ACLS[list]);
    let copy = |[from, to]: [&[&'static str]; 2], offsets, len| Op::Copy {
        paths: [from.to_vec(), to.to_vec()],
        offsets,
        len,
    };
    vec![
        work("acl", [acl(&["a"], AclName::Access, 2), Op::Chmod(vec!["a"], 0o640)]),
        work(
            "inherit",
            [
                acl(&["d"], AclName::Default, 3),
                Op::Create(vec!["d", "n"], 0o666),
                Op::Mkdir(vec!["d", "m"], 0o777),
                acl(&["d"], AclName::Default, 0),
            ],
        ),
        work("whiteout", [Op::Rename(vec!["a"], vec!["d", "inner"], Mode::Whiteout)]),
        work(
            "unnamed",
            [
                Op::Unnamed(vec!["d"], 0o644, 0),
                Op::Sync,
                Op::LinkHand(0, vec!["d", "n"]),
                write(&["d", "n"], 0, 100),
            ],
        ),
        work(
            "copy",
            [
                copy([&["large"], &["a"]], [60_000, 100], 10_000),
                copy([&["large"], &["d", "inner"]], [0, 4096], 1 << 20),
            ],
        ),
    ]
}

/// Inode tables have 15 inodes. Seven of the first one are used before.
fn files_in(tables: u32) -> u32 {
    15 * tables - 8
}

/// Files that need two more tables. A tree with nodes of 64 bytes then gets new nodes.
fn growths() -> Vec<Workload> {
    let grows_at = [
        (IndexKind::Direct, vec![1]),
        (IndexKind::PmfsRadix, vec![1, 8]),
        (IndexKind::PageCacheRadix, vec![1, 16]),
        (IndexKind::BPlus, vec![5, 10, 25]),
        (IndexKind::CsbPlus, vec![5, 10, 15]),
    ];
    let growth = |(index, tables): (IndexKind, Vec<u32>)| {
        tables.into_iter().map(move |tables| {
            let before = vec![Op::Files(vec!["d"], files_in(tables))];
            Workload { before, index, ..work(index.name(), [Op::Files(vec!["empty"], 3)]) }
        })
    };
    grows_at.into_iter().flat_map(growth).chain([next_region()]).collect()
}

/// A window of one region that is full of tables gets another one.
fn next_region() -> Workload {
    let index = IndexKind::Window;
    let ops = [Op::Tables(1), Op::Files(vec!["empty"], 3)];
    let before = vec![Op::Tables(511)];
    Workload { before, index, pool_blocks: LARGE_POOL_BLOCKS, ..work("window", ops) }
}

/// A file with a run of 2 MiB loses the run or some of its blocks.
fn runs() -> Vec<Workload> {
    let bytes = usize::try_from(RUN_BYTES).expect("2 MiB");
    let reserve = Op::Allocate {
        path: vec!["a"],
        offset: RUN_BYTES,
        len: RUN_BYTES,
        what: 'r',
        keep_size: false,
    };
    let over_it = write(&["a"], RUN_BYTES + 8192, 4096);
    let works = [
        work("unlinked run", [Op::Unlink(vec!["run"]), reserve, over_it]),
        work("emptied run", [Op::Truncate(vec!["run"], 0), write(&["a"], 4096, 9000)]),
        work("cut run", [Op::Truncate(vec!["run"], 700_001), write(&["a"], 4096, 9000)]),
        work("punched run", [allocate(&["run"], 'p'), write(&["run"], 81_920, 4096)]),
    ];
    let before = [Op::Create(vec!["run"], 0o600), write(&["run"], 0, bytes)];
    let with_run =
        |work| Workload { before: before.to_vec(), pool_blocks: RUN_POOL_BLOCKS, ..work };
    works.map(with_run).into()
}

#[test]
fn crash_during_run_free_leaves_a_checkpoint() {
    for work in runs() {
        let name = work.name;
        println!("{name}: {}", explored(&few(), &work).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

#[test]
fn crash_leaves_a_checkpoint() {
    for work in workloads().into_iter().chain(further_workloads()) {
        let name = work.name;
        println!("{name}: {}", explored(&few(), &work).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

/// Crashes during recovery, and during the removal of orphans at the opening.
#[test]
fn crash_in_recovery_leaves_a_checkpoint() {
    let explorer = Explorer {
        seed: crash_seed(),
        points_max: 14,
        runs_max: 2,
        samples: 2,
        nested_images_max: 2,
        nested_points_max: 24,
        nested_runs_max: 2,
        ..Explorer::default()
    };
    let names = ["create", "unlink", "replace", "orphan", "open and gone", "cut", "many files"];
    for work in workloads().into_iter().filter(|work| names.contains(&work.name)) {
        let name = work.name;
        let summary = explored(&explorer, &work).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {summary}");
        assert!(summary.nested_crashes > 0, "no recovery of {name} crashed");
    }
}

/// The explorer notices an omitted flush or fence.
#[test]
fn omitted_flush_or_fence_is_caught() {
    let cases = [
        ("write", Omission::fence_after_stream("log")),
        ("rename", Omission::flush("log")),
        ("create", Omission::flush("data").in_workload()),
        ("mkdir", Omission::fence_after_flush("data").in_workload()),
        ("unlink", Omission::flush("header").in_workload()),
        ("chmod", Omission::flush("data").in_recovery()),
    ];
    for (name, omission) in cases {
        let work = workloads().into_iter().find(|work| work.name == name).unwrap();
        let explorer =
            Explorer { seed: 0, runs_max: 16, nested_depth: 1, nested_points_max: 16, ..few() };
        let sound = explored(&explorer, &work);
        assert!(sound.is_ok(), "{name}, nothing left out: {sound:?}");
        let found = explored_without(&explorer, &work, Some(omission.clone()));
        let failure = found.expect_err(&format!("{name}: {omission:?} was not missed"));
        let words = ["checksum is wrong", "not one of", "can be so", "is gone", "bucket", "orphan"];
        assert!(words.iter().any(|words| failure.contains(words)), "{omission:?}: {failure}");
    }
}

#[test]
fn crash_during_index_growth_leaves_a_checkpoint() {
    for work in growths() {
        let name = work.name;
        println!("{name}: {}", explored(&few(), &work).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

/// Explores a workload with a planted bug. The failure must contain one of `words`.
fn caught(bug: Bug, name: &str, words: &[&str]) {
    let mut all = workloads().into_iter().chain(further_workloads());
    let work = &all.find(|work| work.name == name).unwrap_or_else(|| panic!("no workload {name}"));
    // A fixed seed repeats the same exploration.
    let explorer = Explorer { seed: 0, ..few() };
    let sound = explored(&explorer, work);
    assert!(sound.is_ok(), "without {bug:?}: {sound:?}");
    let planted = plant(bug);
    let found = explored(&Explorer { runs_max: 16, ..explorer }, work);
    drop(planted);
    match found {
        Ok(summary) => panic!("{}: {bug:?} was not caught: {summary}", work.name),
        Err(failure) => assert!(
            words.iter().any(|words| failure.contains(words)),
            "{bug:?} is caught, but otherwise: {failure}"
        ),
    }
}

#[test]
fn planted_bugs_are_caught() {
    let cases: [(Bug, &str, &[&str]); 7] = [
        (Bug::NameBeforeInode, "mkdir", &["checksum is wrong"]),
        (Bug::EntryReusedEarly, "slots", &["can be so", "not one of", "is gone"]),
        (Bug::AclBesideMode, "acl", &["not one of"]),
        (Bug::LinksUnlogged, "chmod", &["checksum is wrong"]),
        (Bug::OrphanNotListed, "orphan", &["orphan"]),
        (Bug::FileSyncSkipped, "fsync", &["not one of"]),
        (Bug::FileSyncSkipped, "fsync of what is new", &["not one of"]),
    ];
    let mut missed = Vec::new();
    for (bug, name, words) in cases {
        if let Err(panic) = std::panic::catch_unwind(|| caught(bug, name, words)) {
            missed.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
