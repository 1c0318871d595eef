//! Golden images of file systems. `everbyte_testkit::golden` states the rules.
//!
//! The manifest has the model's contents, and never those that were read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use everbyte_crash::{Plan, SimMedium};
use everbyte_fs::{FsOptions, IndexKind, TIME_RANGE_NS};
use everbyte_media::BLOCK_U64;
use everbyte_testkit::golden;
use serde::{Deserialize, Serialize};

use crate::crash::use_after_crash;
use crate::model::Model;
use crate::operations::{FileSnapshot, LONG, Mode, Op, Subject, Tree};
use crate::random::with_index;
use crate::real::{Real, open_pool};

/// Expected contents of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Golden {
    name: String,
    about: String,
    /// Checksum of the whole image.
    crc32c: u32,
    was_clean: bool,
    /// The visible state of each path.
    tree: BTreeMap<String, String>,
}

/// A tree in words that stay what they are.
fn in_words(tree: &Tree) -> BTreeMap<String, String> {
    let line = |seen: &FileSnapshot| {
        let FileSnapshot { first_path, kind, permissions, links, size, bytes, attributes, .. } =
            seen;
        let mut line = format!(
            "{kind} {permissions:o}, {links} links, {size} bytes with CRC-32C {:08x}, first {first_path:?}",
            crc32c::crc32c(bytes)
        );
        for (name, value) in attributes {
            line += &format!(", {name}: {} bytes with {:08x}", value.len(), crc32c::crc32c(value));
        }
        if seen.flags != 0 {
            line += &format!(", flags {:#x}", seen.flags);
        }
        if seen.accessed != 0 {
            line += &format!(", accessed {} ns", seen.accessed);
        }
        line
    };
    tree.iter().map(|(path, seen)| (path.clone(), line(seen))).collect()
}

impl golden::Golden for Golden {
    const MANIFEST: &'static str = "file-systems.json";

    fn name(&self) -> &str {
        &self.name
    }

    fn crc32c(&self) -> u32 {
        self.crc32c
    }

    fn check(&self, image: &[u8]) {
        hold(self, image.to_vec());
    }
}

/// Checks an image against its entry, and uses it.
fn hold(golden: &Golden, image: Vec<u8>) {
    let name = &golden.name;
    let medium = Arc::new(SimMedium::from_image(image));
    let pool = open_pool(&medium).unwrap();
    assert_eq!(pool.recovery().was_clean, golden.was_clean, "{name}");
    drop(pool);
    let real = Real::open(&medium).unwrap();
    let tree = real.tree();
    assert_eq!(in_words(&tree), golden.tree, "{name}");
    let status = real.fs.status();
    let files: std::collections::BTreeSet<_> = tree.values().map(|seen| &seen.first_path).collect();
    assert_eq!(status.inodes - status.free_inodes, files.len() as u64, "{name}");
    use_after_crash(real, &tree).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Operations for a tree with every kind of content.
fn contents() -> Vec<Op> {
    let write = |path: &[&'static str], offset, len| Op::Write {
        path: path.to_vec(),
        offset,
        len,
        byte: 5,
    };
    vec![
        Op::Create(vec!["a"], 0o4755),
        write(&["a"], 10, 5000),
        Op::Link(vec!["a"], vec!["b"]),
        Op::Attribute(vec!["a"], "user.a", 100),
        Op::Attribute(vec!["a"], "user.b", 3000),
        Op::Create(vec!["large"], 0o600),
        write(&["large"], 61_440, 20_000),
        write(&["large"], (2 << 20) - 5, 10),
        Op::Create(vec!["reserved"], 0o604),
        Op::Allocate { path: vec!["reserved"], offset: 0, len: 9000, what: 'r', keep_size: false },
        Op::Mkdir(vec!["c"], 0o1777),
        Op::Names(vec!["c"], 0, 130),
        Op::Files(vec!["c"], 40),
        Op::Mkdir(vec!["c", LONG], 0o711),
        Op::Symlink(vec!["c", "short"], 20),
        Op::Symlink(vec!["c", LONG, "long"], 200),
        Op::Fifo(vec!["fifo"]),
        Op::Rename(vec!["c", "short"], vec!["c", LONG, "moved"], Mode::NoReplace),
        Op::Unlink(vec!["c", "name 7"]),
        Op::Sync,
    ]
}

/// A file system and its model.
struct Fixture {
    medium: Arc<SimMedium>,
    real: Real<SimMedium>,
    model: Model,
}

impl Fixture {
    fn new(index: IndexKind) -> Self {
        // A window takes 2 MiB of inodes at creation.
        let blocks = if index == IndexKind::Window { 4 * 512 } else { 256 };
        let medium = Arc::new(SimMedium::new(blocks * BLOCK_U64));
        let options = FsOptions {
            inodes_max: Some(200),
            lanes: 1,
            log_bytes: Some(64 << 10),
            ..FsOptions::default()
        };
        let real = Real::make(&medium, &with_index(index, options));
        Self { medium, real, model: Model::new() }
    }

    fn make(&mut self, ops: &[Op]) {
        for op in ops {
            self.model.make(op).unwrap();
            self.real.make(op).unwrap();
        }
    }

    fn golden(&self, name: &str, about: &str, image: &[u8]) -> Golden {
        Golden {
            name: name.to_owned(),
            about: about.to_owned(),
            crc32c: crc32c::crc32c(image),
            was_clean: true,
            tree: in_words(&self.model.tree()),
        }
    }
}

fn make() -> Vec<(Golden, Vec<u8>)> {
    let mut all: Vec<_> = IndexKind::ALL.into_iter().map(clean).collect();
    all.push(crashed());
    all.push(with_flags_and_times());
    all
}

fn with_flags_and_times() -> (Golden, Vec<u8>) {
    let mut shop = Fixture::new(IndexKind::Direct);
    shop.make(&contents());
    let flags = |path: &[&'static str], bits| Op::Flags(path.to_vec(), bits);
    let accessed = |path: &[&'static str], ns| Op::Accessed(path.to_vec(), ns);
    shop.make(&[
        accessed(&["a"], *TIME_RANGE_NS.start()),
        accessed(&["large"], -1),
        accessed(&["reserved"], *TIME_RANGE_NS.end()),
        accessed(&["fifo"], 1 << 63),
        flags(&["a"], 0x40),
        flags(&["large"], 0x10),
        flags(&["reserved"], 0xa0),
        flags(&["c", LONG], 0xc0),
        Op::Create(vec!["c", LONG, "new"], 0o600),
        flags(&["c", LONG], 0xf0),
        Op::Sync,
    ]);
    shop.real.fs.pool().close().unwrap();
    let image = shop.medium.image();
    (shop.golden("fs-flags-and-times", "flags, and times of the whole range", &image), image)
}

fn clean(index: IndexKind) -> (Golden, Vec<u8>) {
    let mut shop = Fixture::new(index);
    shop.make(&contents());
    shop.real.fs.pool().close().unwrap();
    let image = shop.medium.image();
    let name = format!("fs-{}", index.name().replace('+', "-plus"));
    (shop.golden(&name, "some of everything; a clean shutdown", &image), image)
}

fn crashed() -> (Golden, Vec<u8>) {
    let mut shop = Fixture::new(IndexKind::Direct);
    shop.make(&contents());
    shop.make(&[Op::Open(vec!["large"], 0), Op::Unlink(vec!["large"]), Op::Sync]);
    let about = "a crash with a file that was open without a name, and an open epoch to undo";
    let durable = shop.golden("fs-crashed", about, &[]);
    shop.make(&[
        Op::Create(vec!["lost"], 0o644),
        Op::Write { path: vec!["a"], offset: 0, len: 4096, byte: 9 },
        Op::Rename(vec!["b"], vec!["c", "b"], Mode::Replace),
        Op::RemoveAttribute(vec!["a"], "user.b"),
        Op::Truncate(vec!["reserved"], 5),
    ]);
    let image = shop.medium.crash_state().boot(Plan::Seeded(7)).image();
    (Golden { crc32c: crc32c::crc32c(&image), was_clean: false, ..durable }, image)
}

#[test]
fn golden_images_match_their_manifest() {
    golden::check_all::<Golden>(8);
}

#[test]
fn wrong_golden_expectation_is_noticed() {
    let name = golden::manifest::<Golden>().swap_remove(0).name;
    golden::check_mismatches::<Golden>(
        &name,
        &[|golden| {
            golden
                .tree
                .values_mut()
                .for_each(|line| *line = line.replace("5010 bytes", "5011 bytes"));
        }],
    );
}

#[test]
fn new_images_match_their_expectation() {
    golden::check_made::<Golden>(make, false);
}

#[test]
#[ignore = "writes images; see everbyte_testkit::golden"]
fn missing_golden_images_are_added() {
    golden::add_missing::<Golden>(make());
}
