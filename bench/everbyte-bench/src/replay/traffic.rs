//! Use of the file system while it is recorded: everyday work with small files.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::syncfs;

use crate::children::call;

const SEED: u64 = 0x7a7e;
/// Files of the source tree, in folders of so many.
const TREE_FILES: usize = 1200;
const FOLDER_FILES: usize = 40;
/// Sizes of its files, in bytes: 2^8 to 2^15.
const SIZE_LOG2: std::ops::Range<u32> = 8..15;
/// Files that are created one by one.
const SMALL_FILES: usize = 2000;
/// Files between two that are made durable.
const SMALL_SYNC_EVERY: usize = 8;
/// Empty files, and how many of them go between two syncs.
const EMPTY_FILES: usize = 4000;
const EMPTY_SYNC_EVERY: usize = 100;
/// Lines appended to a log, each made durable.
const LOG_LINES: usize = 1000;

/// The file systems that are recorded, with the options of `mke2fs` for each: one with a journal
/// that is small enough to have gone round before anything is measured, and one without.
pub(super) const FILE_SYSTEMS: [(&str, [&str; 2]); 2] =
    [("ext4", ["-J", "size=4"]), ("ext4-nojournal", ["-O", "^has_journal"])];

/// Something to do below the second path; the first is for what is needed elsewhere.
type Deed = fn(&Path, &Path) -> Result<()>;

/// Deeds on each file system, in this order: later ones use the files that earlier ones leave.
const DEEDS: [(&str, Deed); 6] = [
    ("empty files", empty_files),
    ("small files", small_files),
    ("untar", untar),
    ("git clone", git_clone),
    ("log", append_log),
    ("delete", delete),
];

/// The names of all traces.
pub(crate) fn names() -> Vec<String> {
    let deeds =
        |(file_system, _)| DEEDS.iter().map(move |(deed, _)| format!("{file_system} {deed}"));
    FILE_SYSTEMS.into_iter().flat_map(deeds).collect()
}

/// Uses the file system before the first trace, so that a journal has gone round.
///
/// # Errors
/// The system's.
pub(super) fn warm_up(root: &Path) -> Result<()> {
    append_log(root, root)
}

/// Does everything below `root`, and calls `done` after each deed. `folder` is for what is needed
/// elsewhere.
///
/// # Errors
/// The system's, those of the tools that are called, and those of `done`.
pub(super) fn run(folder: &Path, root: &Path, mut done: impl FnMut() -> Result<()>) -> Result<()> {
    for (name, deed) in DEEDS {
        deed(folder, root).and_then(|()| done()).context(name)?;
    }
    Ok(())
}

fn delete(_folder: &Path, root: &Path) -> Result<()> {
    for part in ["empty", "small", "tree"] {
        fs::remove_dir_all(root.join(part))?;
    }
    Ok(())
}

/// Nothing but metadata.
fn empty_files(_folder: &Path, root: &Path) -> Result<()> {
    fs::create_dir(root.join("empty"))?;
    for number in 0..EMPTY_FILES {
        let file = File::create(root.join(format!("empty/file-{number:05}")))?;
        if number % EMPTY_SYNC_EVERY == 0 {
            syncfs(&file)?;
        }
    }
    Ok(())
}

fn small_files(_folder: &Path, root: &Path) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(SEED);
    fs::create_dir(root.join("small"))?;
    for number in 0..SMALL_FILES {
        let mut file = File::create(root.join(format!("small/{number:05}.txt")))?;
        file.write_all(text(&mut rng, 2048).as_bytes())?;
        if number % SMALL_SYNC_EVERY == 0 {
            file.sync_all()?;
        }
    }
    Ok(())
}

fn untar(folder: &Path, root: &Path) -> Result<()> {
    let (source, archive) = (folder.join("source"), folder.join("source.tar"));
    if !source.exists() {
        write_tree(&source)?;
    }
    call(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg("."))?;
    let tree = root.join("tree");
    fs::create_dir(&tree)?;
    call(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&tree))
}

fn git_clone(folder: &Path, root: &Path) -> Result<()> {
    let source = folder.join("source");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
        call(Command::new("git").arg("-C").arg(&source).args(identity).args(arguments))
    };
    if source.join(".git").exists() {
        fs::remove_dir_all(source.join(".git"))?;
    }
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "everything"])?;
    let mut clone = Command::new("git");
    call(clone.args(["clone", "-q", "--no-hardlinks"]).arg(&source).arg(root.join("clone")))
}

fn append_log(_folder: &Path, root: &Path) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(SEED + 1);
    let mut log = OpenOptions::new().create(true).append(true).open(root.join("log"))?;
    for _ in 0..LOG_LINES {
        log.write_all(text(&mut rng, 120).as_bytes())?;
        log.sync_data()?;
    }
    Ok(())
}

fn write_tree(source: &Path) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(SEED + 2);
    for number in 0..TREE_FILES {
        let folder = source.join(format!("part-{:02}", number / FOLDER_FILES));
        fs::create_dir_all(&folder)?;
        let size = 1 << rng.random_range(SIZE_LOG2);
        let len = rng.random_range(size..2 * size);
        fs::write(folder.join(format!("module_{number}.rs")), text(&mut rng, len))?;
    }
    Ok(())
}

/// About `len` bytes that look like text.
fn text(rng: &mut SmallRng, len: usize) -> String {
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        for _ in 0..rng.random_range(2..10) {
            text.push(char::from(rng.random_range(b'a'..=b'z')));
        }
        text.push(if rng.random_ratio(1, 10) { '\n' } else { ' ' });
    }
    text
}
