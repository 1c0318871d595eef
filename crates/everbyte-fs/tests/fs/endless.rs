//! Images with cycles, or with many paths to one node: each walk ends with an error that names the structure.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use everbyte_crash::SimMedium;
use everbyte_fs::testkit::reseal;
use everbyte_fs::{
    Allocation, FileSystem, FileType, FsError, FsOptions, IndexKind, InodeNo, RenameMode, Seek,
};
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, EntryFlags, decode_word, encode_word};

use crate::damage::{POOL_BYTES, change_inode, directory_with, superblock, word_of_file};
use crate::posix::{create, name, new_inode};
use crate::random::options;
use crate::real::Real;

type Fs = Arc<FileSystem<SimMedium>>;

/// Limit for a walk that should end within two seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The size of the file in the images, unique among files.
const FILE_BYTES: u64 = 200_000;

/// Runs `work` in a thread. Panics if it does not end.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    let result = is_done.recv_timeout(PATIENCE);
    result.unwrap_or_else(|_| panic!("{what} does not end"))
}

/// The image of a closed pool with an empty directory `e`, a file `a` and other files.
fn image(options: FsOptions, before_close: impl FnOnce(&Fs)) -> SimMedium {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let real = Real::make(&medium, &FsOptions { inodes_max: Some(60), ..options });
    let fs = &real.fs;
    for other in ["e", "d"] {
        let new = new_inode(FileType::Directory, 0o755);
        fs.create_inode(fs.root(), name(other), &new).unwrap();
    }
    let inode = create(fs, fs.root(), "a");
    fs.write(inode, 0, &vec![7; usize::try_from(FILE_BYTES).unwrap()]).unwrap();
    let directory = find(fs, "d");
    create(fs, directory, "kept");
    fs.sync().unwrap();
    before_close(fs);
    let pool = Arc::clone(fs.pool());
    drop(real);
    pool.close().unwrap();
    SimMedium::from_image(medium.image())
}

fn find(fs: &Fs, text: &str) -> InodeNo {
    fs.lookup(fs.root(), name(text)).unwrap().inode
}

fn word(block: BlockNo, height: u8) -> u64 {
    Entry { block, flags: EntryFlags { height, ..EntryFlags::default() } }.encode()
}

/// A free block of the pool.
fn free_block(number: u64) -> BlockNo {
    BlockNo(POOL_BYTES / BLOCK_U64 - 1 - number)
}

/// Fills `block` with repetitions of `words`.
fn fill(medium: &SimMedium, block: BlockNo, words: &[u64]) {
    for (index, word) in (0..512).zip(words.iter().cycle()) {
        medium.store_word(block.offset().plus(8 * index), *word);
    }
}

fn said<T>(result: Result<T, FsError>) -> String {
    match result {
        Err(error @ FsError::Corrupt(_)) => {
            assert_eq!(error.errno(), 5);
            error.to_string()
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was believed"),
    }
}

/// The findings of a check, a scrub and `change`. Each must end, and other files stay unchanged.
fn found(
    image: &SimMedium,
    what: &str,
    change: impl FnOnce(&Fs) -> String + Send + 'static,
) -> [String; 3] {
    let medium = || Arc::new(SimMedium::from_image(image.image()));
    let pool = crate::real::open_pool(&medium()).unwrap();
    let checked = ends(&format!("a check of {what}"), move || pool.check().unwrap());
    let checked = checked.problems.join("; ");
    let real = Real::open(&medium()).unwrap();
    let fs = Arc::clone(&real.fs);
    let scrubbed = ends(&format!("a scrub of {what}"), move || fs.scrub(0).0.findings);
    let scrubbed: Vec<String> = scrubbed.iter().map(|found| format!("{found:?}")).collect();
    let medium = medium();
    let real = Real::open(&medium).unwrap();
    let fs = Arc::clone(&real.fs);
    let changed = ends(&format!("a change of {what}"), move || change(&fs));
    assert!(real.fs.lookup(find(&real.fs, "d"), name("kept")).is_ok());
    [checked, scrubbed.join("; "), changed]
}

#[test]
fn directory_cycle_is_an_error() {
    let image = image(options(), |_| {});
    let root_at = directory_with(&image, 0);
    // Adjacent words with one block are one bucket, so two nodes name each other.
    let nodes = [word(free_block(0), 1), word(free_block(1), 1)];
    (0..2).for_each(|node| fill(&image, free_block(node), &nodes));
    image.store_word(root_at, nodes[0]);
    let remove = |fs: &Fs| said(fs.remove_directory(fs.root(), name("e")));
    for said in found(&image, "directories", remove) {
        assert!(said.contains("inode") || said.contains("directory"), "{said}");
    }
    let real = Real::open(&Arc::new(image)).unwrap();
    let fs = Arc::clone(&real.fs);
    let listed = ends("a listing", move || fs.list(find(&fs, "e"), 0));
    assert!(said(listed).contains("directory"));
}

/// Builds a map of five levels in a file of the largest size. Each node names the next in all its words, and
/// the lowest has `lowest` in each word. Returns the address of the root word.
fn endless_map(image: &SimMedium, lowest: u64, levels_from: u8) {
    let root_at = word_of_file(image, FILE_BYTES);
    change_inode(image, 0..POOL_BYTES / BLOCK_U64, FILE_BYTES, (5, 1 << 52));
    let mut below = lowest;
    for level in levels_from..=5 {
        let block = free_block(u64::from(level));
        fill(image, block, &[below]);
        below = word(block, if level == 5 { 5 } else { 0 });
    }
    image.store_word(root_at, below);
}

#[test]
fn map_cycle_is_an_error() {
    let image = image(options(), |_| {});
    let (lowest, root_at) = (free_block(1), word_of_file(&image, FILE_BYTES));
    fill(&image, lowest, &[word(lowest, 0)]);
    image.store_word(root_at, word(lowest, 5));
    let changes: [fn(&Fs) -> String; 2] =
        [|fs| said(fs.unlink(fs.root(), name("a"))), |fs| said(fs.truncate(find(fs, "a"), 0))];
    for change in changes {
        for said in found(&image, "a map", change) {
            assert!(["inode", "map"].iter().any(|what| said.contains(what)), "{said}");
        }
    }
}

#[test]
fn endless_map_is_sought_and_cut_in_bounded_time() {
    let zero = Entry::zero(free_block(0)).encode();
    // With leaves everywhere, and with nodes without leaves.
    for (lowest, level) in [(zero, 1), (0, 2)] {
        let image = image(options(), |_| {});
        endless_map(&image, lowest, level);
        let real = Real::open(&Arc::new(image)).unwrap();
        let (fs, inode) = (Arc::clone(&real.fs), find(&real.fs, "a"));
        let sought = ends("a search", move || fs.seek(inode, 1 << 20, Seek::Data));
        assert!(said(sought).contains("more"), "level {level}");
        let fs = Arc::clone(&real.fs);
        assert!(
            said(ends("a cut", move || fs.truncate(inode, 5))).contains("map"),
            "level {level}"
        );
    }
}

/// Damage in the last word of the top node, behind a hole of 2^51 bytes: a search must not visit each leaf.
#[test]
fn damage_behind_a_large_hole_is_found_fast() {
    let image = image(options(), |_| {});
    endless_map(&image, 0, 5);
    let damaged = free_block(5).offset().plus(8 * 10);
    image.store_word(damaged, 1);
    let real = Real::open(&Arc::new(image)).unwrap();
    let (fs, inode) = (Arc::clone(&real.fs), find(&real.fs, "a"));
    let sought = said(ends("a search", move || fs.seek(inode, 1 << 20, Seek::Data)));
    assert!(sought.contains(&damaged.to_string()), "{sought}");
    let fs = Arc::clone(&real.fs);
    let cut = said(ends("a cut", move || fs.truncate(inode, 5)));
    assert!(cut.contains(&damaged.to_string()), "{cut}");
}

/// A batch for each 2 MiB would need 2^23 batches.
#[test]
fn punch_of_a_sparse_file_costs_its_blocks() {
    const SIZE: u64 = 1 << 44;
    const LEN: usize = 9000;
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let real = Real::make(&medium, &options());
    let fs = &real.fs;
    let inode = create(fs, fs.root(), "sparse");
    fs.truncate(inode, SIZE).unwrap();
    // The second place starts where a hole ends inside 2 MiB.
    let places = [0, 3 << 20, SIZE - LEN as u64];
    for at in places {
        assert_eq!(fs.write(inode, at, &[7; LEN]).unwrap(), LEN);
    }
    let before = (fs.attr(inode).unwrap(), medium.counters().fences);
    let punching = Arc::clone(fs);
    let punch = move || punching.allocate(inode, (0, SIZE), Allocation::Punch, true);
    ends("a punch", punch).unwrap();
    let fences = medium.counters().fences - before.1;
    assert!(fences < 100, "{fences} fences");
    let after = fs.attr(inode).unwrap();
    assert_eq!(after.size, SIZE);
    assert!(after.blocks + 9 <= before.0.blocks, "{} blocks", after.blocks);
    assert!(after.modified_ns > before.0.modified_ns);
    for at in places {
        let mut bytes = [7; LEN];
        assert_eq!(fs.read(inode, at, &mut bytes).unwrap(), LEN);
        assert!(bytes == [0; LEN], "{at}");
    }
    let sought = fs.seek(inode, 0, Seek::Data);
    assert!(matches!(sought, Err(FsError::NoData)), "{sought:?}");
    fs.sync().unwrap();
    assert!(fs.pool().check().unwrap().is_clean());
}

#[test]
fn doubly_mapped_block_is_not_freed() {
    let image = image(options(), |_| {});
    let root_at = word_of_file(&image, FILE_BYTES);
    let node = BlockNo(decode_word(image.load_word(root_at)).unwrap() & ((1 << 40) - 1));
    let entry = image.load_word(node.offset().plus(8 * 16));
    image.store_word(node.offset().plus(8 * 17), entry);
    let real = Real::open(&Arc::new(image)).unwrap();
    let (fs, free) = (&real.fs, real.fs.status().free_blocks);
    assert!(said(fs.unlink(fs.root(), name("a"))).contains("a second time"));
    assert!(said(fs.truncate(find(fs, "a"), 0)).contains("a second time"));
    assert_eq!(fs.status().free_blocks, free);
}

/// The image of a closed pool with two files of one block each. Both name the block of the first.
fn shared_block() -> SimMedium {
    let image = image(options(), |fs| {
        for (file, bytes) in [("first", 1000), ("second", 2000)] {
            let inode = create(fs, fs.root(), file);
            fs.write(inode, 0, &vec![5; bytes]).unwrap();
        }
        fs.sync().unwrap();
    });
    // Offset from the root word to the first entry.
    let [first, second] = [1000, 2000].map(|bytes| word_of_file(&image, bytes).plus(16));
    image.store_word(second, image.load_word(first));
    image
}

#[test]
fn freed_shared_block_is_not_freed_again() {
    let real = Real::open(&Arc::new(shared_block())).unwrap();
    let fs = &real.fs;
    fs.unlink(fs.root(), name("first")).unwrap();
    fs.sync().unwrap();
    let free = fs.status().free_blocks;
    let second = find(fs, "second");
    for refused in [fs.unlink(fs.root(), name("second")), fs.truncate(second, 0).map(drop)] {
        let said = said(refused);
        assert!(said.contains("given up by someone else"), "{said}");
        assert!(said.contains(&second.to_string()), "{said}");
    }
    assert_eq!((fs.status().free_blocks, find(fs, "second")), (free, second));
    // Other operations still work.
    create(fs, fs.root(), "new");
    fs.sync().unwrap();
}

#[test]
fn double_free_in_a_batch_stops_all_writes() {
    let real = Real::open(&Arc::new(shared_block())).unwrap();
    let fs = &real.fs;
    for file in ["first", "second"] {
        fs.unlink(fs.root(), name(file)).unwrap();
    }
    // The free block identifies the shared one.
    fs.sync().unwrap();
    let new = new_inode(FileType::Regular, 0o644);
    let refused = fs.create_inode(fs.root(), name("new"), &new).unwrap_err();
    assert_eq!(refused.errno(), 30, "{refused}");
    assert!(refused.to_string().contains("given up twice"), "{refused}");
    assert!(fs.lookup(find(fs, "d"), name("kept")).is_ok());
}

/// Closes a file system with its pool, and returns the image.
fn closed(real: Real<SimMedium>, medium: &SimMedium) -> SimMedium {
    let pool = Arc::clone(real.fs.pool());
    drop(real);
    pool.close().unwrap();
    SimMedium::from_image(medium.image())
}

fn begins_with<const N: usize>(fs: &Fs, file: &str) -> [u8; N] {
    let mut bytes = [0; N];
    assert_eq!(fs.read(find(fs, file), 0, &mut bytes).unwrap(), N);
    bytes
}

/// Repairs a block shared by several files, and checks that none of them frees it.
fn repaired_and_kept(image: SimMedium, files: &[&str]) {
    let medium = Arc::new(image);
    let mended = everbyte_pool::repair(&*medium, &everbyte_fs::kinds()).unwrap();
    assert!(mended.join("; ").contains("belong to someone else already"), "{mended:?}");
    let again = everbyte_pool::repair(&*medium, &everbyte_fs::kinds()).unwrap();
    assert_eq!(again, Vec::<String>::new());
    let real = Real::open(&medium).unwrap();
    let fs = &real.fs;
    let bytes: [u8; 1000] = begins_with(fs, files[0]);
    for file in files {
        assert_eq!(fs.unlink(fs.root(), name(file)).unwrap_err().errno(), 30, "{file}");
        assert_eq!(fs.truncate(find(fs, file), 0).unwrap_err().errno(), 30, "{file}");
        assert_eq!(begins_with(fs, file), bytes, "{file}");
    }
}

#[test]
fn shared_block_stays_after_repair() {
    let image = image(options(), |fs| {
        for (file, bytes) in [("first", 1000), ("second", 2000), ("third", 3000)] {
            let inode = create(fs, fs.root(), file);
            fs.write(inode, 0, &vec![5; bytes]).unwrap();
        }
        fs.sync().unwrap();
    });
    let [first, others @ ..] = [1000, 2000, 3000].map(|bytes| word_of_file(&image, bytes).plus(16));
    for other in others {
        image.store_word(other, image.load_word(first));
    }
    repaired_and_kept(image, &["first", "second", "third"]);
}

/// One of two files with a shared block frees it, a third file gets it, and then the pool is repaired.
#[test]
fn reused_shared_block_stays_after_repair() {
    let medium = Arc::new(shared_block());
    let real = Real::open(&medium).unwrap();
    let fs = &real.fs;
    fs.unlink(fs.root(), name("first")).unwrap();
    fs.sync().unwrap();
    let third = create(fs, fs.root(), "third");
    let shared = |fs: &Fs| begins_with::<1000>(fs, "second") == [9; 1000];
    let mut bytes = 0;
    while !shared(fs) {
        fs.write(third, bytes, &[9; 4096]).unwrap();
        bytes += 4096;
    }
    fs.sync().unwrap();
    repaired_and_kept(closed(real, &medium), &["third", "second"]);
}

#[test]
fn damaged_orphan_does_not_prevent_opening() {
    let image = image(options(), |fs| {
        fs.open_inode(find(fs, "a")).unwrap();
        fs.unlink(fs.root(), name("a")).unwrap();
        fs.sync().unwrap();
    });
    let lowest = free_block(1);
    fill(&image, lowest, &[word(lowest, 0)]);
    image.store_word(word_of_file(&image, FILE_BYTES), word(lowest, 5));
    let medium = Arc::new(image);
    let real = ends("an opening", move || Real::open(&medium).map_err(|error| error.to_string()));
    let fs = real.unwrap().fs;
    assert!(fs.lookup(find(&fs, "d"), name("kept")).is_ok());
    assert_eq!(fs.status().inodes - fs.status().free_inodes, 5, "the orphan is one of them");
    create(&fs, fs.root(), "new");
    fs.sync().unwrap();
    let report = fs.pool().check().unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains("map")), "{report:?}");
}

/// More blocks than one batch frees, so the name is removed before the blocks.
#[test]
fn large_file_with_damaged_map_stays_unlinked() {
    let image = image(options(), |fs| _ = create(fs, fs.root(), "other"));
    change_inode(&image, 0..POOL_BYTES / BLOCK_U64, FILE_BYTES, (6, 70_000));
    let root_at = word_of_file(&image, FILE_BYTES);
    let leaf = BlockNo(decode_word(image.load_word(root_at)).unwrap() & ((1 << 40) - 1));
    image.store_word(leaf.offset().plus(8 * 20), 1);
    type Remove = fn(&Fs) -> Result<(), FsError>;
    let unlink: Remove = |fs| fs.unlink(fs.root(), name("a"));
    let replace: Remove = |fs| {
        let (root, mode) = (fs.root(), RenameMode::Replace);
        fs.rename((root, name("other")), (root, name("a")), mode)
    };
    let close: Remove = |fs| {
        let inode = fs.open_inode(find(fs, "a"))?.inode;
        fs.unlink(fs.root(), name("a"))?;
        fs.close_inode(inode)
    };
    for (way, remove) in [unlink, replace, close].into_iter().enumerate() {
        let medium = Arc::new(SimMedium::from_image(image.image()));
        let real = Real::open(&medium).unwrap();
        let (fs, inode) = (&real.fs, find(&real.fs, "a"));
        let used = |fs: &Fs| fs.status().inodes - fs.status().free_inodes;
        let before = used(fs);
        remove(fs).unwrap_or_else(|error| panic!("way {way}: {error}"));
        let named = fs.lookup(fs.root(), name("a"));
        assert!(named.map_or(true, |attr| attr.inode != inode), "way {way}");
        assert_eq!(used(fs), before, "way {way}: it is an orphan");
        // The orphan can be opened, and counts until its close.
        fs.open_inode(inode).unwrap();
        assert_eq!(fs.nameless_files(), 1, "way {way}");
        fs.close_inode(inode).unwrap();
        assert_eq!(fs.nameless_files(), 0, "way {way}");
        create(fs, fs.root(), "new");
        fs.sync().unwrap();
        let problems = fs.pool().check().unwrap().problems.join("; ");
        assert!(problems.contains("map entry"), "way {way}: {problems}");
        closed(real, &medium);
        let again = Real::open(&medium).unwrap();
        assert_eq!(used(&again.fs), before + 1, "way {way}");
    }
}

/// Two directories with each other as parent. A rename below them follows up to 2^34 parents.
#[test]
fn parent_cycle_is_an_error_for_rename() {
    const INODES_MAX: u64 = 1 << 34;
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let index = IndexKind::PmfsRadix;
    let real = Real::make(&medium, &FsOptions { index, inodes_max: Some(INODES_MAX), ..options() });
    let new = new_inode(FileType::Directory, 0o755);
    let make = |text| real.fs.create_inode(real.fs.root(), name(text), &new).unwrap().inode;
    let moved = make("moved");
    let circle = [("one", 4), ("other", 5)].map(|(text, entries)| {
        let directory = make(text);
        (0..entries).for_each(|number| _ = create(&real.fs, directory, &format!("file {number}")));
        (directory, entries)
    });
    real.fs.sync().unwrap();
    let image = closed(real, &medium);
    let [(one, _), (other, _)] = circle;
    for ((_, entries), parent) in circle.into_iter().zip([other, one]) {
        change_inode(&image, 0..POOL_BYTES / BLOCK_U64, entries, (7, parent.0));
    }
    let fs = Real::open(&Arc::new(image)).unwrap().fs;
    let root = fs.root();
    let rename = |text: &'static str, parent| {
        let fs = Arc::clone(&fs);
        let (from, to) = ((root, name(text)), (parent, name("new")));
        ends("a renaming", move || fs.rename(from, to, RenameMode::Replace))
    };
    for parent in [one, other] {
        let said = said(rename("moved", parent));
        assert!(said.contains("its own ancestor") && said.contains("inode"), "{said}");
    }
    let said = said(rename("other", one));
    assert!(said.contains("whose parent is"), "{said}");
    assert_eq!(fs.attr(moved).unwrap().links, 2);
}

/// An index can address 2^32 tables. A check must not look up each of them.
#[test]
fn excess_table_count_is_an_error() {
    const INODES_MAX: u64 = 1 << 34;
    const TABLES_AT: u64 = 128;
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let index = IndexKind::PmfsRadix;
    let real = Real::make(&medium, &FsOptions { index, inodes_max: Some(INODES_MAX), ..options() });
    create(&real.fs, real.fs.root(), "f");
    real.fs.sync().unwrap();
    let sound = closed(real, &medium);
    let word_at = superblock(&sound).offset().plus(TABLES_AT);
    assert_eq!(sound.load_word(word_at), encode_word(1));
    for tables in [POOL_BYTES / BLOCK_U64, INODES_MAX / 15] {
        let medium = Arc::new(SimMedium::from_image(sound.image()));
        medium.store_word(word_at, encode_word(tables));
        let pool = crate::real::open_pool(&medium).unwrap();
        let checked = ends("a check of the tables", move || pool.check().unwrap());
        let problems = checked.problems.join("; ");
        assert!(problems.contains("there cannot be so many"), "{tables}: {problems}");
        let opened = ends("an opening of them", move || Real::open(&medium).is_err());
        assert!(opened, "{tables}: they were believed");
    }
}

/// A scrub looks for the path of a damaged file below a directory that contains itself.
#[test]
fn scrub_path_search_is_linear() {
    let image = image(options(), |fs| {
        let (root, directory) = (fs.root(), find(fs, "d"));
        let inner = new_inode(FileType::Directory, 0o755);
        fs.create_inode(directory, name("inner"), &inner).unwrap();
        // Makes it the only directory with three entries.
        create(fs, directory, "other");
        let inode = find(fs, "a");
        fs.open_inode(inode).unwrap();
        fs.unlink(root, name("a")).unwrap();
    });
    let root_at = directory_with(&image, 3);
    let bucket = BlockNo(image.load_word(root_at) & ((1 << 40) - 1));
    // In an entry, the inode number is two words before the name.
    let mut bytes = [0; 4096];
    image.read(bucket.offset(), &mut bytes);
    let text = bytes.windows(5).position(|bytes| bytes == b"inner").unwrap();
    let number_at = bucket.offset().plus(text as u64 - 16);
    let of_directory = image.load_word(PoolOffset(root_at.0 - 112 + 8));
    assert_eq!(image.load_word(number_at), of_directory + 3);
    image.store_word(number_at, of_directory);
    reseal(&image, bucket);
    // A writable opening would free the orphan.
    image.store_word(word_of_file(&image, FILE_BYTES), 1);
    let real = Real::open(&Arc::new(image)).unwrap();
    let fs = Arc::clone(&real.fs);
    let found = ends("a scrub", move || fs.scrub(0).0.findings);
    assert!(found.iter().any(|found| found.what.contains("to which no name leads")), "{found:?}");
}
