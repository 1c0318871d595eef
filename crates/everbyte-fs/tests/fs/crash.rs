//! Crashes: after any of them the tree is as it was at a checkpoint, the pool sound, and the file
//! system usable.

use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Explorer, Log, SimMedium, Summary};
use everbyte_fs::FsOptions;
use everbyte_media::BLOCK_U64;

use crate::operations::{LONG, Mode, Op, Subject, Tree};
use crate::real::Real;

const POOL_BLOCKS: u64 = 160;

/// An event of a workload.
enum Event {
    /// From now on this may be durable.
    May(Tree),
    /// From now on it is.
    Is(Tree),
}

fn options() -> FsOptions {
    FsOptions { inodes_max: Some(40), lanes: 1, log_bytes: Some(64 << 10), ..FsOptions::default() }
}

/// What every workload finds: a file with a second name, one whose entries are not all in its inode,
/// two directories, one of which has a file, and a link.
fn prepare(medium: &Arc<SimMedium>) {
    let mut real = Real::make(medium, &options());
    let write = |path: &[&'static str], offset, len| Op::Write {
        path: path.to_vec(),
        offset,
        len,
        byte: 1,
    };
    for op in [
        Op::Create(vec!["a"], 0o644),
        write(&["a"], 0, 5000),
        Op::Link(vec!["a"], vec!["second"]),
        Op::Create(vec!["large"], 0o600),
        write(&["large"], 61_440, 8192),
        Op::Mkdir(vec!["d"], 0o755),
        Op::Create(vec!["d", "inner"], 0o640),
        Op::Mkdir(vec!["empty"], 0o700),
        Op::Symlink(vec!["link"], 200),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
}

fn run(medium: &Arc<SimMedium>, log: &Log<Event>, ops: &[Op]) {
    let mut real = Real::open(medium).unwrap();
    log.note(Event::Is(real.tree()));
    for op in ops {
        let tree = (*op == Op::Sync).then(|| real.tree());
        if let Some(tree) = &tree {
            log.note(Event::May(tree.clone()));
        }
        real.make(op).unwrap();
        if let Some(tree) = tree {
            log.note(Event::Is(tree));
        }
    }
}

fn check(mut real: Real<SimMedium>, crash: &Crash<'_, Event>) -> Result<(), String> {
    let found = real.try_tree().map_err(|error| error.to_string())?;
    let mut allowed: Vec<&Tree> = Vec::new();
    for stamped in crash.events {
        match &stamped.event {
            Event::May(tree) => allowed.push(tree),
            Event::Is(tree) => allowed = vec![tree],
        }
    }
    if !allowed.is_empty() && !allowed.contains(&&found) {
        return Err(format!("found {found:?}, not one of {allowed:?}"));
    }
    sound(&real)?;
    // It can be used, and nothing of it is taken for free.
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
    if now != found {
        return Err(format!("{now:?} is left of {found:?}"));
    }
    sound(&real)
}

fn sound(real: &Real<SimMedium>) -> Result<(), String> {
    let report = real.fs.pool().check().map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.problems.join("; ")) }
}

fn explored(explorer: &Explorer, ops: &[Op]) -> Result<Summary, String> {
    let scenario = Closures::new(
        |medium, log| run(medium, log, ops),
        |medium| Real::open(medium).map_err(|error| error.to_string()),
        check,
    )
    .medium_len(POOL_BLOCKS * BLOCK_U64)
    .prepared(prepare);
    explorer.explore(&scenario).map_err(|failure| failure.to_string())
}

/// A few images of every crash.
fn few() -> Explorer {
    Explorer { nested_depth: 0, runs_max: 4, ..Explorer::default() }
}

fn write(path: &[&'static str], offset: u64, len: usize) -> Op {
    Op::Write { path: path.to_vec(), offset, len, byte: 7 }
}

fn allocate(path: &[&'static str], what: char) -> Op {
    Op::Allocate { path: path.to_vec(), offset: 4000, len: 65_000, what, keep_size: false }
}

/// One to three operations of each kind, with what follows them in the same epoch and the next.
fn workloads() -> Vec<(&'static str, Vec<Op>)> {
    let rename = |from: &[&'static str], to: &[&'static str], mode| {
        Op::Rename(from.to_vec(), to.to_vec(), mode)
    };
    vec![
        ("create", vec![Op::Create(vec!["n"], 0o644), write(&["n"], 0, 300), Op::Sync]),
        ("mkdir", vec![Op::Mkdir(vec!["n"], 0o755), Op::Create(vec!["n", LONG], 0o600), Op::Sync]),
        ("link", vec![Op::Link(vec!["a"], vec!["d", "third"]), Op::Unlink(vec!["a"]), Op::Sync]),
        ("unlink", vec![Op::Unlink(vec!["large"]), Op::Sync, write(&["a"], 4096, 8192), Op::Sync]),
        ("rmdir", vec![Op::Rmdir(vec!["empty"]), Op::Mkdir(vec!["empty"], 0o711), Op::Sync]),
        ("symlink", vec![Op::Symlink(vec!["s"], 20), Op::Unlink(vec!["link"]), Op::Sync]),
        ("rename", vec![rename(&["a"], &["n"], Mode::Replace), Op::Sync]),
        ("replace", vec![rename(&["a"], &["large"], Mode::Replace), Op::Sync]),
        ("across", vec![rename(&["d"], &["empty", "d"], Mode::NoReplace), Op::Sync]),
        ("exchange", vec![rename(&["d", "inner"], &["empty"], Mode::Exchange), Op::Sync]),
        ("cut", vec![Op::Truncate(vec!["large"], 100), write(&["large"], 65_000, 9), Op::Sync]),
        ("grow", vec![Op::Truncate(vec!["a"], 5), Op::Truncate(vec!["a"], 6000), Op::Sync]),
        ("write", vec![write(&["a"], 4000, 200), write(&["a"], 4090, 4), Op::Sync]),
        ("append", vec![write(&["a"], 5000, 100), write(&["large"], 69_632, 4096), Op::Sync]),
        ("chmod", vec![Op::Chmod(vec!["a"], 0o4711), Op::Chmod(vec!["d"], 0), Op::Sync]),
        (
            "orphan",
            vec![
                Op::Open(vec!["large"], 0),
                Op::Unlink(vec!["large"]),
                Op::Sync,
                Op::Close(0),
                Op::Sync,
            ],
        ),
        (
            "attributes",
            vec![
                Op::Attribute(vec!["a"], "user.a", 9),
                Op::Sync,
                Op::Attribute(vec!["a"], "user.b", 90),
                Op::RemoveAttribute(vec!["a"], "user.a"),
                Op::Sync,
            ],
        ),
        ("punch", vec![allocate(&["large"], 'p'), allocate(&["a"], 'z'), Op::Sync]),
        (
            "reserve",
            vec![allocate(&["d", "inner"], 'r'), write(&["d", "inner"], 9000, 50), Op::Sync],
        ),
        (
            "slots",
            vec![
                Op::Unlink(vec!["d", "inner"]),
                Op::Create(vec!["d", "other"], 0o600),
                Op::Sync,
                Op::Create(vec!["d", "again"], 0o604),
                Op::Sync,
            ],
        ),
    ]
}

#[test]
fn no_crash_leaves_anything_but_a_checkpoint() {
    for (name, ops) in workloads() {
        println!("{name}: {}", explored(&few(), &ops).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}
