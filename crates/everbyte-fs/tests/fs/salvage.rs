//! Listings past damage: each readable name is listed once, and each damaged part is reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::{FileFlags, FileSystem, FsError, FsOptions, InodeNo};
use everbyte_media::{BLOCK_U64, Medium, PoolOffset};

use crate::damage::{directory_with, image_of};
use crate::operations::{Op, Subject};
use crate::posix::name;
use crate::random::options;
use crate::real::{Real, open_pool};

const NAMES: u64 = 900;
/// More names than a bucket holds.
const BUCKET_NAMES_MAX: usize = 121;

/// The image of a pool whose directory `d` has [`NAMES`] names.
fn image() -> Vec<u8> {
    let options = FsOptions { inodes_max: Some(4000), ..options() };
    let medium = Arc::new(SimMedium::new(24 << 20));
    let mut real = Real::make(&medium, &options);
    real.make(&Op::Create(vec!["a"], 0o644)).unwrap();
    real.make(&Op::Mkdir(vec!["d"], 0o755)).unwrap();
    real.make(&Op::Names(vec!["d"], 0, NAMES.try_into().unwrap())).unwrap();
    real.make(&Op::Sync).unwrap();
    let pool = Arc::clone(real.fs.pool());
    drop(real);
    pool.close().unwrap();
    medium.image()
}

/// All readable names of `d`, and the number of damage reports.
fn listed(fs: &FileSystem<SimMedium>, directory: InodeNo) -> (BTreeSet<Vec<u8>>, usize) {
    let (mut names, mut damage, mut next) = (BTreeSet::new(), 0, Some(0));
    let mut answers = 0;
    while let Some(place) = next {
        let read = fs.list_readable(directory, place).unwrap();
        for entry in read.entries {
            assert!(names.insert(entry.name), "a name is listed twice");
        }
        damage += read.damage.len();
        assert!(read.next.is_none_or(|next| next > place), "the listing stays");
        next = read.next;
        answers += 1;
        assert!(answers < 10_000, "the listing does not end");
    }
    (names, damage)
}

fn open(image: &[u8]) -> (Arc<SimMedium>, Real<SimMedium>, InodeNo) {
    let medium = Arc::new(SimMedium::from_image(image.to_vec()));
    let real = Real::open(&medium).unwrap();
    let directory = real.fs.lookup(real.fs.root(), name("d")).unwrap().inode;
    (medium, real, directory)
}

/// Addresses of the buckets of `directory`.
fn buckets(medium: &SimMedium, directory: InodeNo) -> Vec<PoolOffset> {
    let blocks = (0..medium.len() / BLOCK_U64).map(|block| PoolOffset(block * BLOCK_U64));
    let is_bucket = |at: &PoolOffset| {
        medium.load_word(*at) == 0x4255_434b_4554 && medium.load_word(at.plus(8)) == directory.0
    };
    blocks.filter(is_bucket).collect()
}

#[test]
fn damaged_bucket_hides_no_name_of_another() {
    let image = image();
    let (medium, real, directory) = open(&image);
    let (all, damage) = listed(&real.fs, directory);
    assert_eq!((all.len() as u64, damage), (NAMES, 0));
    let found = buckets(&medium, directory);
    drop(real);
    let (mut damaged, mut lost_in_all) = (0, 0);
    for at in found.iter().step_by(found.len().div_ceil(8)) {
        // Damages the head, and then one slot.
        for (word, names_max) in [(4, BUCKET_NAMES_MAX), (64 + 8 * 11, 1)] {
            let (medium, real, directory) = open(&image);
            let at = at.plus(word & !7);
            if word > 64 && medium.load_word(at) == 0 {
                continue;
            }
            medium.store_word(at, medium.load_word(at) ^ 0xa55a << 20);
            let (names, damage) = listed(&real.fs, directory);
            let lost = all.difference(&names).count();
            assert!(names.is_subset(&all) && lost <= names_max, "{lost}");
            // Damage of a replaced bucket has no effect.
            assert_eq!(lost > 0, damage > 0, "{at}: {lost} {damage}");
            lost_in_all += lost;
            damaged += usize::from(lost > 0);
        }
    }
    assert!(damaged > 1 && lost_in_all < all.len() * damaged / 2, "{damaged}");
}

#[test]
fn damaged_node_word_hides_no_name_of_another() {
    let image = image();
    let (medium, real, directory) = open(&image);
    let (all, _) = listed(&real.fs, directory);
    let root = directory_with(&medium, NAMES);
    let node = PoolOffset((medium.load_word(root) & ((1 << 40) - 1)) * BLOCK_U64);
    drop(real);
    let mut noticed = 0;
    for at in (0..4096).step_by(8 * 23).chain([0, 8, 16, 24]).map(|at| node.plus(at)) {
        let (medium, real, directory) = open(&image);
        if medium.load_word(at) == 0 {
            continue;
        }
        medium.store_word(at, medium.load_word(at) ^ 1 << 33);
        let (names, damage) = listed(&real.fs, directory);
        let lost = all.difference(&names).count();
        assert!(names.is_subset(&all) && lost <= 2 * BUCKET_NAMES_MAX, "{lost}");
        assert!(lost == 0 || damage > 0, "{at}: {lost} names are not missed");
        noticed += usize::from(damage > 0);
    }
    // Any word of a trie can lead to the bucket.
    assert!(noticed > 0);
    // The root word.
    let (medium, real, directory) = open(&image);
    medium.store_word(root, medium.load_word(root) ^ 1 << 33);
    let read = real.fs.list_readable(directory, 0);
    assert!(read.is_err() || !read.unwrap().damage.is_empty());
}

#[test]
fn salvage_of_sound_directory_equals_readdir() {
    let medium = Arc::new(SimMedium::from_image(image_of(&options())));
    drop(open_pool(&medium).unwrap());
    let real = Real::open(&medium).unwrap();
    let mut place = 0;
    loop {
        let plain = real.fs.list(real.fs.root(), place).unwrap();
        let read = real.fs.list_readable(real.fs.root(), place).unwrap();
        assert_eq!((&read.entries, read.damage.len()), (&plain, 0));
        let Some(last) = plain.last() else { break };
        place = last.next;
    }
}

#[test]
fn flags_forbid_removal_of_damaged_names() {
    let image = image();
    let is_forbidden = |error: &FsError| matches!(error, FsError::Immutable | FsError::AppendOnly);
    for flags in [FileFlags::IMMUTABLE, FileFlags::APPEND_ONLY] {
        // Damages an entry in each bucket of `d`.
        let (medium, real, directory) = open(&image);
        let (all, _) = listed(&real.fs, directory);
        real.fs.set_flags(directory, flags).unwrap();
        for bucket in buckets(&medium, directory) {
            let mut slots = (0..120).map(|slot| bucket.plus(64 + 8 * slot));
            let slot = slots.find(|at| medium.load_word(*at) != 0).unwrap();
            medium.store_word(slot, medium.load_word(slot) ^ 1 << 20);
        }
        let (names, _) = listed(&real.fs, directory);
        let lost = all.difference(&names).next().unwrap().clone();
        let lost = everbyte_fs::Name::new(&lost).unwrap();
        let refused = real.fs.remove_damaged(directory, lost).unwrap_err();
        assert!(is_forbidden(&refused), "{refused}");
        real.fs.set_flags(directory, FileFlags::default()).unwrap();
        real.fs.remove_damaged(directory, lost).unwrap();
        // Damages all of `d`; then the parent has the flag.
        let root = real.fs.root();
        for restricted in [directory, root] {
            real.fs.set_flags(restricted, flags).unwrap();
            let refused = real.fs.remove_damaged(root, name("d")).unwrap_err();
            assert!(is_forbidden(&refused), "{refused}");
            real.fs.set_flags(restricted, FileFlags::default()).unwrap();
        }
    }
}
