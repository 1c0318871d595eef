//! Lifetimes of files: truncated, opened, removed and created again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_crash::SimMedium;
use everbyte_fs::plant::Bug;
use everbyte_fs::{
    AccessTimes, Allocation, FilePlace, FileSystem, FileType, FsError, FsOptions, InodeNo, Name,
    NewInode, Seek, kinds,
};
use everbyte_media::Medium;
use everbyte_plant::plant;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{Claim, Corrupt, Kind, Kinds, OpenOptions, Pool, VolumeView, WriteError};

use crate::operations::{Op, Subject};
use crate::random::options;
use crate::real::Real;

fn file<'a>(kind: FileType, permissions: u32) -> NewInode<'a> {
    NewInode { kind, permissions, umask: 0, uid: 3, gid: 4, device: 0, target: &[] }
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn new() -> (Arc<SimMedium>, Real<SimMedium>) {
    new_with_inodes(300)
}

fn new_with_inodes(inodes_max: u64) -> (Arc<SimMedium>, Real<SimMedium>) {
    let medium = Arc::new(SimMedium::new(24 << 20));
    let real = Real::make(&medium, &FsOptions { inodes_max: Some(inodes_max), ..options() });
    (medium, real)
}

/// Returns true if truncated bytes read as zeroes after an extension.
fn is_zero_after_a_cut() -> bool {
    let (_medium, real) = new();
    let fs = &real.fs;
    let inode =
        fs.create_inode(fs.root(), name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(inode, 0, &[7; 5000]).unwrap();
    fs.truncate(inode, 4500).unwrap();
    fs.truncate(inode, 5000).unwrap();
    let mut tail = [1; 500];
    assert_eq!(fs.read(inode, 4500, &mut tail).unwrap(), 500);
    tail == [0; 500]
}

#[test]
fn truncated_bytes_do_not_reappear() {
    assert!(is_zero_after_a_cut());
}

/// Reads an open file after its last name was removed and the free blocks were reused. Also returns true if
/// the number names a file after the close.
fn read_without_a_name() -> ([u8; 9], bool) {
    let (_medium, real) = new();
    let (fs, root) = (&real.fs, real.fs.root());
    let inode = fs.create_inode(root, name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(inode, 0, b"unlinked!").unwrap();
    fs.open_inode(inode).unwrap();
    fs.unlink(root, name("f")).unwrap();
    fs.sync().unwrap();
    let other = fs.create_inode(root, name("g"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(other, 0, &[1; 70_000]).unwrap();
    let mut bytes = [0; 9];
    fs.read(inode, 0, &mut bytes).unwrap();
    fs.close_inode(inode).unwrap();
    (bytes, fs.attr(inode).is_ok())
}

#[test]
fn open_file_is_readable_after_unlink() {
    assert_eq!(read_without_a_name(), (*b"unlinked!", false));
}

/// A thread without space waits for the close of files without a name. A closed file that still counts would
/// make it wait in vain.
#[test]
fn damaged_open_orphan_counts_until_closed() {
    let (medium, real) = new();
    let (fs, root) = (&real.fs, real.fs.root());
    let inode = fs.create_inode(root, name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(inode, 0, &[7; 5000]).unwrap();
    fs.open_inode(inode).unwrap();
    fs.unlink(root, name("f")).unwrap();
    assert_eq!(fs.nameless_files(), 1);
    fs.sync().unwrap();
    let size_at = fs.inode_table_at(0).unwrap().plus(256 * inode.0 + 40);
    assert_eq!(medium.load_word(size_at), 5000);
    medium.store_word(size_at, 5001);
    assert!(matches!(fs.close_inode(inode), Err(FsError::Corrupt(_))));
    assert_eq!(fs.nameless_files(), 0);
}

/// Number and generation of a file, and of the file with its number after a crash.
fn before_and_after_a_crash() -> [(u64, u64); 2] {
    let (medium, real) = new();
    let make = |real: &Real<SimMedium>| {
        let (fs, new) = (&real.fs, file(FileType::Regular, 0o644));
        let attr = fs.create_inode(fs.root(), name("f"), &new).unwrap();
        (attr.inode.0, attr.generation)
    };
    let before = make(&real);
    // No operation was durable.
    drop(real);
    [before, make(&Real::open(&medium).unwrap())]
}

#[test]
fn reused_inode_number_has_a_new_generation() {
    let [before, after] = before_and_after_a_crash();
    assert_eq!(before.0, after.0);
    assert_ne!(before.1, after.1);
}

#[test]
fn setgid_directory_passes_its_group_on() {
    let (_medium, real) = new();
    let (fs, root) = (&real.fs, real.fs.root());
    let dir = fs.create_inode(root, name("d"), &file(FileType::Directory, 0o2775)).unwrap();
    let new = NewInode { gid: 99, ..file(FileType::Regular, 0o644) };
    let inner = fs.create_inode(dir.inode, name("f"), &new).unwrap();
    assert_eq!((inner.gid, inner.permissions), (4, 0o644));
    let new = NewInode { gid: 99, ..file(FileType::Directory, 0o755) };
    let inner = fs.create_inode(dir.inode, name("e"), &new).unwrap();
    assert_eq!((inner.gid, inner.permissions), (4, 0o2755));
    assert_eq!(fs.parent(inner.inode).unwrap(), dir.inode);
}

#[test]
fn seek_finds_holes_and_data() {
    let (_medium, real) = new();
    let (fs, root) = (&real.fs, real.fs.root());
    let inode = fs.create_inode(root, name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(inode, 5 << 20, b"data").unwrap();
    fs.allocate(inode, (8192, 4096), Allocation::Reserve, false).unwrap();
    let end = (5 << 20) + 4;
    assert_eq!(fs.seek(inode, 0, Seek::Data).unwrap(), 5 << 20);
    assert_eq!(fs.seek(inode, 0, Seek::Hole).unwrap(), 0);
    assert_eq!(fs.seek(inode, 5 << 20, Seek::Hole).unwrap(), end);
    assert!(matches!(fs.seek(inode, end, Seek::Data), Err(FsError::NoData)));
    assert_eq!(fs.attr(inode).unwrap().blocks, 4, "two of data or reserved, and two nodes");
    fs.allocate(inode, (0, 6 << 20), Allocation::Punch, false).unwrap();
    let attr = fs.attr(inode).unwrap();
    assert_eq!((attr.size, attr.blocks), (end, 2), "nodes that are not below the range alone stay");
    assert!(matches!(fs.seek(inode, 0, Seek::Data), Err(FsError::NoData)));
}

#[test]
fn fsync_of_an_unchanged_file_stores_nothing() {
    let (_medium, mut real) = new();
    real.make(&Op::Create(vec!["a"], 0o644)).unwrap();
    let inode = real.fs.lookup(real.fs.root(), name("a")).unwrap().inode;
    real.fs.sync_inode(inode).unwrap();
    let count = || everbyte_media::Medium::counters(real.fs.volume().medium());
    let before = count();
    real.fs.sync_inode(inode).unwrap();
    let after = count().since(&before);
    assert_eq!((after.fences, after.bytes_stored), (0, 0));
    real.fs.write(inode, 0, b"x").unwrap();
    let before = count();
    real.fs.sync_inode(inode).unwrap();
    assert!(count().since(&before).fences > 0);
}

/// `fsync` must cover the time of an access.
#[test]
fn fdatasync_after_reads_is_free() {
    let (medium, mut real) = new();
    real.make(&Op::Create(vec!["a"], 0o644)).unwrap();
    let inode = real.fs.lookup(real.fs.root(), name("a")).unwrap().inode;
    real.fs.write(inode, 0, &[1; 5000]).unwrap();
    real.fs.sync_inode(inode).unwrap();
    real.fs.note_access(inode, AccessTimes::Strict).unwrap();
    let accessed = real.fs.attr(inode).unwrap().accessed_ns;
    let cost = |sync: &dyn Fn()| {
        let before = (Medium::counters(&*medium), real.fs.volume().checkpoints());
        sync();
        let counters = Medium::counters(&*medium).since(&before.0);
        (counters.fences, counters.bytes_stored, real.fs.volume().checkpoints() - before.1)
    };
    assert_eq!(cost(&|| real.fs.sync_data(inode).unwrap()), (0, 0, 0));
    let (fences, bytes, checkpoints) = cost(&|| real.fs.sync_inode(inode).unwrap());
    assert_eq!((fences, bytes, checkpoints), (2, 16, 1), "the flush and both checkpoint records");
    assert_eq!(cost(&|| real.fs.sync_inode(inode).unwrap()), (0, 0, 0), "and no second one");
    real.fs.write(inode, 7, b"in place").unwrap();
    real.fs.note_access(inode, AccessTimes::Strict).unwrap();
    assert_eq!(cost(&|| real.fs.sync_data(inode).unwrap()).2, 1, "bytes are data");
    drop(real);
    let real = Real::open(&medium).unwrap();
    assert!(real.fs.attr(inode).unwrap().accessed_ns >= accessed, "what was synced is there");
}

/// Counts the walks over the blocks of a file system.
struct CountedKind(Kinds<SimMedium>, AtomicU64);

impl Kind<SimMedium> for CountedKind {
    fn kind(&self) -> VolumeKind {
        everbyte_fs::FS
    }

    fn name(&self) -> &'static str {
        everbyte_fs::FS_NAME
    }

    fn ro_compat(&self) -> u64 {
        self.0.get(everbyte_fs::FS).unwrap().ro_compat()
    }

    fn visit(
        &self,
        medium: &SimMedium,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(everbyte_fs::FS).unwrap().visit(medium, view, claim)
    }
}

#[test]
fn volume_list_walks_no_blocks() {
    for files in [1, 2000] {
        let (medium, mut real) = new_with_inodes(4000);
        real.make(&Op::Files(vec![], files)).unwrap();
        real.fs.sync().unwrap();
        let pool = Arc::clone(real.fs.pool());
        drop(real);
        for is_clean in [false, true] {
            let kind = Arc::new(CountedKind(kinds(), AtomicU64::new(0)));
            let options = OpenOptions { capacity_blocks: 1 << 13 };
            let counted = Kinds::new([Arc::clone(&kind) as Arc<dyn Kind<SimMedium>>]);
            if is_clean {
                pool.close().unwrap();
            }
            let again = Pool::open(Arc::clone(&medium), counted, &options).unwrap();
            assert_eq!(again.recovery().was_clean, is_clean);
            let opening = u64::from(!is_clean);
            assert_eq!(
                kind.1.load(Ordering::Relaxed),
                opening,
                "what a crash leaves is walked once"
            );
            let info = again.volume_info(&again.volume("files").unwrap());
            assert!(info.used_bytes.unwrap() > u64::from(files) * 256);
            assert_eq!(
                kind.1.load(Ordering::Relaxed),
                opening,
                "a list of {files} files walks none"
            );
        }
    }
}

#[test]
fn full_pool_refuses_writes_and_allows_unlink() {
    let medium = Arc::new(SimMedium::new(4 << 20));
    let options = FsOptions { log_bytes: Some(1 << 20), ..options() };
    let real = Real::make(&medium, &options);
    let (fs, root) = (&real.fs, real.fs.root());
    let inode = fs.create_inode(root, name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    let mut offset = 0;
    let error = loop {
        match fs.write(inode, offset, &[3; 65_536]) {
            Ok(len) => offset += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), 28);
    let mut bytes = vec![0; usize::try_from(offset).unwrap()];
    assert_eq!(fs.read(inode, 0, &mut bytes).unwrap() as u64, fs.attr(inode).unwrap().size);
    assert!(bytes.iter().all(|&byte| byte == 3));
    fs.write(inode, 5, b"in place").unwrap();
    fs.truncate(inode, 100).unwrap();
    fs.unlink(root, name("f")).unwrap();
    fs.sync().unwrap();
    assert!(fs.pool().check().unwrap().is_clean());
    let again = fs.create_inode(root, name("g"), &file(FileType::Regular, 0o644)).unwrap().inode;
    fs.write(again, 0, &[4; 65_536]).unwrap();
}

#[test]
fn root_directory_has_the_given_owner() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let options =
        FsOptions { root_uid: 1000, root_gid: 100, log_bytes: Some(1 << 20), ..options() };
    drop(Real::make(&medium, &options));
    let real = Real::open(&medium).unwrap();
    let root = real.fs.attr(real.fs.root()).unwrap();
    assert_eq!((root.uid, root.gid), (1000, 100));
}

#[test]
fn inode_exhaustion_error_names_the_limit() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let options = FsOptions { inodes_max: Some(15), log_bytes: Some(1 << 20), ..options() };
    let real = Real::make(&medium, &options);
    let (fs, root) = (&real.fs, real.fs.root());
    let make = |number: u32| {
        let name = format!("f{number}");
        fs.create_inode(root, Name::new(name.as_bytes()).unwrap(), &file(FileType::Fifo, 0o600))
    };
    for number in 0..14 {
        make(number).unwrap();
    }
    assert!(matches!(make(14), Err(FsError::NoInodes { max: 15 })));
    assert_eq!(fs.status().free_inodes, 0);
    fs.unlink(root, name("f3")).unwrap();
    assert_eq!(fs.status().free_inodes, 1);
    make(14).unwrap();
    assert!(matches!(make(15), Err(FsError::NoInodes { max: 15 })));
}

/// Its metadata blocks are free or belong to another volume.
#[test]
fn deleted_file_system_reports_gone() {
    let (_medium, real) = new();
    let (fs, root) = (&real.fs, real.fs.root());
    let make = |text, kind, target| {
        let new = NewInode { target, ..file(kind, 0o644) };
        fs.create_inode(root, name(text), &new).unwrap().inode
    };
    let inode = make("f", FileType::Regular, b"");
    let link = make("link", FileType::Symlink, b"f");
    fs.pool().delete_volume("files").unwrap();
    let is_gone = |error| matches!(error, Some(FsError::Write(WriteError::Gone)));
    for error in [
        fs.attr(root).err(),
        fs.lookup(root, name("f")).err(),
        fs.lookup(root, name("none")).err(),
        fs.list(root, 0).err(),
        fs.parent(root).err(),
        fs.read_link(link).err(),
        fs.attribute_names(inode).err(),
        fs.open_inode(inode).err(),
        fs.read(inode, 0, &mut [0; 9]).err(),
        fs.write(inode, 0, b"bytes").err(),
    ] {
        assert!(is_gone(error.clone()), "{error:?}");
    }
    assert_eq!(fs.scrub(0).0.findings, []);
    let other = FileSystem::create(fs.pool(), "other", 8 << 20, &options()).unwrap();
    assert_eq!(other.list(other.root(), 0).unwrap(), []);
    assert!(is_gone(fs.list(root, 0).err()));
    assert_eq!(fs.scrub(0).0.findings, []);
}

/// A coarse or corrected clock gives two changes the same time.
#[test]
fn fsync_covers_changes_with_equal_times() {
    type Fs = FileSystem<SimMedium>;
    /// A change of the file `f`, and a check of its effect after a crash.
    type Change<'c> = (&'c dyn Fn(&Fs, InodeNo), &'c dyn Fn(&Fs));
    let _clock = plant(Bug::ClockStands);
    let find = |fs: &Fs, text| fs.lookup(fs.root(), name(text)).map(|found| found.inode);
    let first_byte = |fs: &Fs| {
        let mut byte = [0];
        fs.read(find(fs, "f").unwrap(), 0, &mut byte).unwrap();
        byte[0]
    };
    let changes: [Change<'_>; 5] = [
        (&|fs, f| _ = fs.write(f, 0, &[2; 100]).unwrap(), &|fs| assert_eq!(first_byte(fs), 2)),
        (&|fs, f| fs.allocate(f, (0, 100), Allocation::Zero, true).unwrap(), &|fs| {
            assert_eq!(first_byte(fs), 0);
        }),
        (
            &|fs, f| {
                let place = |inode| FilePlace { inode, offset: 0 };
                fs.copy(place(find(fs, "other").unwrap()), place(f), 100).unwrap();
            },
            &|fs| assert_eq!(first_byte(fs), 9),
        ),
        (
            &|fs, f| {
                let hole = FilePlace { inode: find(fs, "other").unwrap(), offset: 8192 };
                fs.copy(hole, FilePlace { inode: f, offset: 0 }, 100).unwrap();
            },
            &|fs| assert_eq!(first_byte(fs), 0),
        ),
        (
            &|fs, _| {
                let (root, mode) = (fs.root(), everbyte_fs::RenameMode::Replace);
                fs.rename((root, name("f")), (root, name("g")), mode).unwrap();
            },
            &|fs| assert!(find(fs, "g").is_ok() && find(fs, "f").is_err()),
        ),
    ];
    // A sync of the directory or of the file makes a renaming durable.
    let rename = changes[4];
    let of_file = changes.into_iter().map(|change| (change, false));
    for ((make, check), of_directory) in of_file.chain([(rename, true)]) {
        let (medium, real) = new();
        let fs = &real.fs;
        let make_file = |text, byte| {
            let new = file(FileType::Regular, 0o644);
            let inode = fs.create_inode(fs.root(), name(text), &new).unwrap().inode;
            fs.write(inode, 0, &[byte; 5000]).unwrap();
            inode
        };
        let (other, inode) = (make_file("other", 9), make_file("f", 1));
        fs.truncate(other, 12_000).unwrap();
        fs.sync().unwrap();
        make(fs, inode);
        fs.sync_inode(if of_directory { fs.root() } else { inode }).unwrap();
        let crashed = Arc::new(SimMedium::from_image(medium.image()));
        check(&Real::open(&crashed).unwrap().fs);
    }
}

#[test]
fn failed_fallocate_keeps_the_size() {
    let (_medium, real) = new();
    let fs = &real.fs;
    let inode =
        fs.create_inode(fs.root(), name("f"), &file(FileType::Regular, 0o644)).unwrap().inode;
    for what in [Allocation::Reserve, Allocation::Zero] {
        fs.write(inode, 0, &[7; 5000]).unwrap();
        let free = fs.status().free_blocks;
        let error = fs.allocate(inode, (0, 64 << 20), what, false);
        assert!(matches!(error, Err(FsError::NoSpace)), "{error:?}");
        assert_eq!(fs.attr(inode).unwrap().size, 5000);
        assert!(fs.status().free_blocks < free, "a part was done");
        fs.truncate(inode, 4999).unwrap();
        fs.sync().unwrap();
        let now = fs.status().free_blocks;
        assert!(now + 2 >= free, "all but nodes of the map are cut off: {now} of {free}");
        fs.allocate(inode, (0, 5 << 20), what, false).unwrap();
        assert_eq!(fs.attr(inode).unwrap().size, 5 << 20);
        fs.truncate(inode, 5000).unwrap();
        fs.sync().unwrap();
    }
    assert!(fs.pool().check().unwrap().is_clean());
}
