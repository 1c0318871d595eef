//! Invalid trees with correct checksums: a check reports path and inode.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::{FileType, FsError, InodeNo, Name, RenameMode};
use everbyte_media::Medium;
use everbyte_testkit::files::operations::{Op, Subject};
use everbyte_testkit::files::real::{Real, open_pool};

use crate::random::options;

const POOL_BYTES: u64 = 12 << 20;
const INODE_BYTES: usize = 256;
/// Words of an inode, as in the format.
const NUMBER: usize = 1;
const MODE_LINKS: usize = 3;
const SIZE: usize = 5;
const BLOCKS: usize = 6;
const PARENT: usize = 7;
const ROOT: usize = 14;
const WORDS: usize = 16;
const ENTRY_HEAD: usize = 24;

/// The image of a closed pool with `/d/e`, `/d/f` and `/a`, and numbers of inodes.
struct Image {
    bytes: Vec<u8>,
    root: u64,
    d: u64,
    e: u64,
    f: u64,
}

impl Image {
    fn new() -> Self {
        let medium = Arc::new(SimMedium::new(POOL_BYTES));
        let mut real = Real::make(&medium, &options());
        for op in [
            Op::Mkdir(vec!["d"], 0o755),
            Op::Mkdir(vec!["d", "e"], 0o755),
            Op::Create(vec!["d", "f"], 0o644),
            Op::Create(vec!["a"], 0o644),
            Op::Sync,
        ] {
            real.make(&op).unwrap();
        }
        let fs = &real.fs;
        let find = |parent: u64, name: &str| {
            fs.lookup(InodeNo(parent), Name::new(name.as_bytes()).unwrap()).unwrap().inode.0
        };
        let root = fs.root().0;
        let d = find(root, "d");
        let (e, f) = (find(d, "e"), find(d, "f"));
        let pool = Arc::clone(fs.pool());
        drop(real);
        pool.close().unwrap();
        Self { bytes: medium.image(), root, d, e, f }
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    fn checksum(&self, inode_at: usize) -> u64 {
        let words = |range: std::ops::Range<usize>| {
            &self.bytes[inode_at + 8 * range.start..inode_at + 8 * range.end]
        };
        let start = crc32c::crc32c(words(NUMBER..ROOT));
        u64::from(crc32c::crc32c_append(start, words(ROOT + 1..WORDS)))
    }

    /// Changes a word of an inode, and updates its checksum.
    fn set(&mut self, inode: u64, place: usize, change: impl FnOnce(u64) -> u64) {
        let slots = (0..self.bytes.len()).step_by(INODE_BYTES);
        let is_it = |at: &usize| {
            self.word(at + 8 * NUMBER) == inode && self.word(*at) == self.checksum(*at)
        };
        let inode_at = slots.into_iter().find(is_it).unwrap();
        let at = inode_at + 8 * place;
        let new = change(self.word(at));
        self.bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
        let checksum = self.checksum(inode_at);
        self.bytes[inode_at..inode_at + 8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Redirects a name to another inode and type, with a correct checksum.
    fn lead(&mut self, name: &str, inode: u64, kind: FileType) {
        let len = (ENTRY_HEAD + name.len()).next_multiple_of(8);
        let crc = |entry: &[u8]| {
            crc32c::crc32c_append(crc32c::crc32c(&entry[..16]), &entry[20..]).to_le_bytes()
        };
        let is_it = |at: &usize| {
            let Some(entry) = self.bytes.get(*at..at + len) else { return false };
            usize::from(entry[20]) == name.len()
                && &entry[ENTRY_HEAD..ENTRY_HEAD + name.len()] == name.as_bytes()
                && entry[16..20] == crc(entry)
        };
        let at = (0..self.bytes.len()).step_by(8).find(is_it).unwrap();
        let entry = &mut self.bytes[at..at + len];
        entry[8..16].copy_from_slice(&inode.to_le_bytes());
        entry[21] = u8::try_from(kind.mode_bits() >> 12).unwrap();
        let crc = crc(entry);
        entry[16..20].copy_from_slice(&crc);
    }

    /// The problems of a check of the image.
    fn problems(self) -> Vec<String> {
        let pool = open_pool(&Arc::new(SimMedium::from_image(self.bytes))).unwrap();
        pool.check().unwrap().problems
    }
}

const LINK: u64 = 1 << 32;

#[test]
fn check_of_a_sound_tree_is_clean() {
    assert_eq!(Image::new().problems(), [""; 0]);
}

#[test]
fn check_names_path_and_inode_of_damage() {
    type Damage = fn(&mut Image);
    let cases: [(Damage, &[&str]); 10] = [
        (
            |image| image.set(image.f, MODE_LINKS, |old| old + LINK),
            &["/d/f, inode", "1 names", "says 2"],
        ),
        (
            |image| image.lead("f", 999_999, FileType::Regular),
            &["/d, inode", "its name f leads to inode 999999", "unreadable or free"],
        ),
        (
            |image| image.lead("f", image.f, FileType::Fifo),
            &["/d, inode", "its name f is of a Fifo", "is a Regular"],
        ),
        (
            |image| image.lead("e", image.root, FileType::Directory),
            &["/d, inode", "its name e leads to the root"],
        ),
        (
            |image| {
                let root = image.root;
                image.set(image.e, PARENT, |_| root);
            },
            &["/d, inode", "its name e leads to", "whose parent is"],
        ),
        (|image| image.set(image.d, SIZE, |old| old + 1), &["/d, inode", "2 entries", "says 3"]),
        (
            |image| image.set(image.f, BLOCKS, |old| old + 1),
            &["/d/f, inode", "has 0 blocks", "says 1"],
        ),
        (
            |image| image.set(image.d, MODE_LINKS, |old| old + LINK),
            &["/d, inode", "1 subdirectories", "4 links instead of 3"],
        ),
        (
            |image| {
                let e = image.e;
                image.set(image.d, PARENT, |_| e);
            },
            &["its own ancestor"],
        ),
        (
            |image| image.lead("a", image.e, FileType::Directory),
            &["2 names lead to it, a directory has one"],
        ),
    ];
    for (damage, expected) in cases {
        let mut image = Image::new();
        damage(&mut image);
        let problems = image.problems();
        let is_said = |problem: &String| expected.iter().all(|word| problem.contains(word));
        assert!(problems.iter().any(is_said), "{expected:?}: {problems:#?}");
        assert!(problems.iter().all(|problem| problem.contains("volume files: ")), "{problems:#?}");
    }
}

#[test]
fn check_names_path_of_unreadable_inode() {
    let mut image = Image::new();
    let f = image.f;
    let slots = (0..image.bytes.len()).step_by(INODE_BYTES);
    let is_it =
        |at: &usize| image.word(at + 8 * NUMBER) == f && image.word(*at) == image.checksum(*at);
    let at = slots.into_iter().find(is_it).unwrap();
    image.bytes[at + 8 * SIZE] ^= 1;
    let medium = Arc::new(SimMedium::from_image(image.bytes.clone()));
    let problems = image.problems();
    let is_said = |problem: &String| problem.contains("/d/f: ") && problem.contains("checksum");
    assert!(problems.iter().any(is_said), "{problems:#?}");
    let found = Real::open(&medium).unwrap().fs.scrub(0).0.findings;
    assert!(found.iter().any(|found| found.what.contains("/d/f")), "{found:?}");
}

/// The inode has the true type: the removal of a directory as a file would leak its contents.
#[test]
fn entry_of_wrong_type_is_not_changed() {
    let cases: [fn(&mut Image); 2] = [
        |image| image.lead("e", image.e, FileType::Regular),
        |image| image.lead("f", image.f, FileType::Directory),
    ];
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    for (damage, text) in cases.into_iter().zip(["e", "f"]) {
        let mut image = Image::new();
        damage(&mut image);
        let (root, d) = (InodeNo(image.root), InodeNo(image.d));
        let (bytes, others) = (image.bytes.clone(), ["d", "a"]);
        let fs = Real::open(&Arc::new(SimMedium::from_image(bytes))).unwrap().fs;
        let rename = |from, to, mode| fs.rename(from, to, mode);
        let damaged = (d, name(text));
        let refused = [
            fs.unlink(d, name(text)),
            fs.remove_directory(d, name(text)),
            rename(damaged, (root, name("new")), RenameMode::Replace),
            rename(damaged, (d, name("new")), RenameMode::Replace),
            rename((root, name("a")), damaged, RenameMode::Replace),
            rename((root, name("a")), damaged, RenameMode::Exchange),
            rename(damaged, (root, name("a")), RenameMode::Exchange),
        ];
        for (way, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("it was believed");
            assert!(matches!(error, FsError::Corrupt(_)), "{text}, way {way}: {error}");
            assert!(error.to_string().contains("leads to"), "{text}, way {way}: {error}");
        }
        for other in others {
            fs.lookup(root, name(other)).unwrap();
        }
    }
}

/// The removal of one name would free the directory, and the other name would lead to nothing or to another
/// file.
#[test]
fn second_directory_name_is_not_changed() {
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let new = Image::new();
    let (root, d, e) = (InodeNo(new.root), InodeNo(new.d), InodeNo(new.e));
    // Targets: a directory elsewhere, the own directory, the root (in the root and below), and an ancestor.
    let cases = [
        (root, "a", e, "whose parent is"),
        (d, "f", d, "this directory itself"),
        (root, "a", root, "this directory itself"),
        (d, "f", root, "whose parent is"),
        (d, "e", root, "whose parent is"),
    ];
    for (parent, text, directory, expected) in cases {
        let mut image = Image::new();
        image.lead(text, directory.0, FileType::Directory);
        let fs = Real::open(&Arc::new(SimMedium::from_image(image.bytes))).unwrap().fs;
        let other = if parent == root { "d" } else { "a" };
        let (second, free) = ((parent, name(text)), (root, name("new")));
        let refused = [
            fs.remove_directory(parent, name(text)),
            fs.rename(second, free, RenameMode::Replace),
            fs.rename((root, name(other)), second, RenameMode::Exchange),
        ];
        for (way, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("it was believed");
            assert!(matches!(error, FsError::Corrupt(_)), "{text}, way {way}: {error}");
            assert!(error.to_string().contains(expected), "{text}, way {way}: {error}");
        }
        fs.attr(directory).unwrap();
        fs.lookup(root, name("d")).unwrap();
    }
}

/// The orphan bit of a free inode has no meaning, so no check finds a flipped one.
#[test]
fn stale_orphan_bit_does_not_affect_creat() {
    const NAMELESS_AT: u64 = 128;
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let mut real = Real::make(&medium, &options());
    let word_at = real.fs.inode_table_at(0).unwrap().plus(NAMELESS_AT);
    // Slot 0 is the table's head and slot 1 the root directory. The others are free.
    medium.store_word(word_at, 0xfffc);
    for op in [
        Op::Create(vec!["f"], 0o644),
        Op::Mkdir(vec!["d"], 0o755),
        Op::Unnamed(vec!["d"], 0o644, 0),
        Op::Close(0),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
    let problems = real.fs.pool().check().unwrap().problems;
    assert!(problems.is_empty(), "{problems:#?}");
    let crashed = Arc::new(SimMedium::from_image(medium.image()));
    let mut again = Real::open(&crashed).unwrap();
    assert_eq!(again.tree(), real.tree());
    again.make(&Op::Create(vec!["g"], 0o644)).unwrap();
}

/// An inode with a name claims to have none, and its table bits contradict it. Freed, its name would lead to
/// nothing or to another file.
#[test]
fn false_orphan_is_not_freed_or_changed() {
    let mut image = Image::new();
    image.set(image.f, MODE_LINKS, |old| old % LINK);
    let (root, d, f) = (InodeNo(image.root), InodeNo(image.d), InodeNo(image.f));
    let medium = Arc::new(SimMedium::from_image(image.bytes.clone()));
    let problems = image.problems().join("; ");
    assert!(problems.contains("only an orphan has no name"), "{problems}");
    let fs = Real::open(&medium).unwrap().fs;
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    fs.open_inode(f).unwrap();
    assert_eq!(fs.nameless_files(), 1);
    fs.close_inode(f).unwrap();
    assert_eq!(fs.nameless_files(), 0);
    assert_eq!(fs.lookup(d, name("f")).unwrap().inode, f);
    let refused = [
        fs.unlink(d, name("f")),
        fs.rename((d, name("f")), (root, name("new")), RenameMode::Replace),
        fs.rename((root, name("a")), (d, name("f")), RenameMode::Replace),
        fs.rename((root, name("a")), (d, name("f")), RenameMode::Exchange),
    ];
    for (way, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err("it was believed");
        assert!(matches!(error, FsError::Corrupt(_)), "way {way}: {error}");
        assert!(error.to_string().contains("says that it has none"), "way {way}: {error}");
    }
    assert!(matches!(fs.link(f, root, name("another")), Err(FsError::NotFound)));
}
