//! Open files with lock-free reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everbyte_crash::SimMedium;
use everbyte_fs::{Allocation, FileSystem, FsError, FsOptions, InodeNo, OpenFile};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped, MediaOptions, Medium, PoolOffset};

use crate::operations::written;
use crate::posix::{create, name, new};
use crate::real::open_pool;

fn bytes<M: Medium>(fs: &FileSystem<M>, file: &OpenFile<M>) -> Vec<u8> {
    let mut bytes = vec![0xee; 200_000];
    let len = fs.read_file(file, 0, &mut bytes).unwrap();
    assert!(bytes[len..].iter().all(|&byte| byte == 0xee || byte == 0));
    bytes.truncate(len);
    bytes
}

/// The address of the size word of `inode`.
fn size_at<M: Medium>(fs: &FileSystem<M>, inode: InodeNo) -> PoolOffset {
    let slots = BLOCK_U64 / 256;
    fs.inode_table_at(inode.0 / slots).unwrap().plus(inode.0 % slots * 256 + 40)
}

#[test]
fn open_file_read_sees_other_writers() {
    let fs = new();
    let inode = create(&fs, fs.root(), "f");
    let file = fs.open_file(inode).unwrap();
    assert_eq!((file.inode(), bytes(&fs, &file).len()), (inode, 0));
    let mut expected = Vec::new();
    // Includes a leaf of the map that is found and then removed.
    for (offset, len, byte) in [(0, 9000, 1), (70_000, 60_000, 2), (100, 7, 3), (65_530, 12, 4)] {
        let data = written(offset, len, byte);
        fs.write(inode, offset, &data).unwrap();
        let at = usize::try_from(offset).unwrap();
        expected.resize(expected.len().max(at + len), 0);
        expected[at..at + len].copy_from_slice(&data);
        // First under the lock, then without it.
        for _ in 0..2 {
            assert!(bytes(&fs, &file) == expected);
            let mut some = [0; 300];
            assert_eq!(fs.read_file(&file, 100, &mut some).unwrap(), 300);
            assert_eq!(some, expected[100..400]);
        }
    }
    let mut end = [0; 9];
    for (at, len) in [(130_000 - 4, 4), (130_000, 0), (u64::MAX, 0)] {
        assert_eq!(fs.read_file(&file, at, &mut end).unwrap(), len, "at {at}");
    }
    fs.allocate(inode, (0, 8192), Allocation::Punch, false).unwrap();
    expected[..8192].fill(0);
    assert!(bytes(&fs, &file) == expected && bytes(&fs, &file) == expected);
    for size in [90_000, 66_000, 66_100, 0, 5000] {
        fs.truncate(inode, size).unwrap();
        expected.resize(usize::try_from(size).unwrap(), 0);
        assert!(bytes(&fs, &file) == expected && bytes(&fs, &file) == expected, "{size}");
    }
    fs.unlink(fs.root(), name("f")).unwrap();
    assert_eq!(bytes(&fs, &file).len(), 5000, "it is open");
    fs.close_file(file).unwrap();
    assert!(matches!(fs.attr(inode), Err(FsError::Stale(_))));
}

#[test]
fn stale_open_file_is_detected_after_reuse() {
    let fs = new();
    let inode = create(&fs, fs.root(), "f");
    fs.write(inode, 0, &[1; 5000]).unwrap();
    let file = fs.open_file(inode).unwrap();
    assert_eq!(bytes(&fs, &file), [1; 5000]);
    fs.close_inode(inode).unwrap();
    fs.unlink(fs.root(), name("f")).unwrap();
    let read = |fs: &FileSystem<SimMedium>| fs.read_file(&file, 0, &mut [0; 10]);
    assert!(matches!(read(&fs), Err(FsError::Stale(_))));
    fs.sync().unwrap();
    let next = (0..).map(|number| create(&fs, fs.root(), &format!("n{number}")));
    let next = next.into_iter().find(|&next| next == inode).unwrap();
    fs.write(next, 0, &[2; 5000]).unwrap();
    let mut room = [9; 10];
    assert!(matches!(fs.read_file(&file, 0, &mut room), Err(FsError::Stale(_))));
    assert_eq!(room, [0; 10]);
    assert!(matches!(read(&new()), Err(FsError::Invalid { .. })), "another file system");
}

/// The number belongs to another open file without a name here.
#[test]
fn foreign_open_file_is_refused() {
    let both = [new(), new()];
    let inodes = both.each_ref().map(|fs| create(fs, fs.root(), "f"));
    assert_eq!(inodes[0], inodes[1]);
    let [file, of_other] = both.each_ref().map(|fs| fs.open_file(inodes[0]).unwrap());
    let fs = &both[0];
    fs.write(inodes[0], 0, &[1; 5000]).unwrap();
    fs.unlink(fs.root(), name("f")).unwrap();
    assert!(matches!(fs.close_file(of_other), Err(FsError::Invalid { .. })));
    assert_eq!(bytes(fs, &file), [1; 5000]);
    fs.close_file(file).unwrap();
    assert!(matches!(fs.attr(inodes[0]), Err(FsError::Stale(_))));
}

/// A verified inode is not loaded again. The next load finds later damage.
#[test]
fn damaged_open_inode_is_found_on_next_load() {
    let fs = new();
    let medium = fs.volume().medium();
    let inode = create(&fs, fs.root(), "f");
    fs.write(inode, 0, &[1; 5000]).unwrap();
    let file = fs.open_file(inode).unwrap();
    assert_eq!(bytes(&fs, &file), [1; 5000]);
    let at = size_at(&fs, inode);
    assert_eq!(medium.load_word(at), 5000);
    medium.store_word(at, 5001);
    assert_eq!(bytes(&fs, &file), [1; 5000], "the inode was looked at");
    assert_eq!(fs.read(inode, 0, &mut [0; 10]).unwrap(), 10, "the inode was looked at");
    let is_damage = |result: Result<(), FsError>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("its checksum is wrong"), "{error}");
    };
    is_damage(fs.open_file(inode).map(drop));
    is_damage(fs.open_inode(inode).map(drop));
    is_damage(fs.attr(inode).map(drop));
    assert!(fs.scrub(0).0.findings.iter().any(|found| found.what.contains("checksum")));
    is_damage(fs.write(inode, 0, &[2]).map(drop));
    // The write took the lock for writing.
    is_damage(fs.read_file(&file, 0, &mut [0; 10]).map(drop));
    is_damage(fs.read(inode, 0, &mut [0; 10]).map(drop));
    medium.store_word(at, 5000);
    assert_eq!(bytes(&fs, &file), [1; 5000]);
}

#[test]
fn open_file_read_reports_media_errors() {
    for of_inode in [false, true] {
        let fs = new();
        let medium = fs.volume().medium();
        let inode = create(&fs, fs.root(), "f");
        fs.write(inode, 0, &[1; 5000]).unwrap();
        let file = fs.open_file(inode).unwrap();
        assert_eq!(bytes(&fs, &file), [1; 5000]);
        let at = if of_inode { size_at(&fs, inode) } else { block_of_ones(medium) };
        medium.inject_poison(at, 8);
        if of_inode {
            // The damage is unknown before a load.
            assert_eq!(bytes(&fs, &file), [1; 5000]);
            assert!(fs.attr(inode).is_err());
        }
        let mut room = [9; 5000];
        assert!(fs.read_file(&file, 0, &mut room).is_err());
        assert!(fs.read(inode, 0, &mut room.clone()).is_err());
        assert_eq!(room, [0; 5000]);
    }
}

/// The only block with ones in all bytes.
fn block_of_ones(medium: &SimMedium) -> PoolOffset {
    let mut block = [0; BLOCK];
    let places = (0..medium.len() / BLOCK_U64).map(|block| PoolOffset(block * BLOCK_U64));
    let mut ones = places.into_iter().filter(|&at| {
        medium.read(at, &mut block);
        block == [1; BLOCK]
    });
    ones.next().unwrap()
}

/// Writers fill a file with equal bytes, truncate it, and reuse its blocks. Each read is a snapshot.
#[test]
fn open_file_read_is_a_snapshot() {
    const BYTES: usize = 2 * BLOCK;
    let medium = Arc::new(Mapped::anonymous(16 << 20, &MediaOptions::new()).unwrap());
    everbyte_pool::Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = open_pool(&medium).unwrap();
    let fs = &FileSystem::create(&pool, "files", 16 << 20, &FsOptions::default()).unwrap();
    let make = |text| {
        let new = crate::posix::new_inode(everbyte_fs::FileType::Regular, 0o600);
        fs.create_inode(fs.root(), name(text), &new).unwrap().inode
    };
    let (inode, other) = (make("f"), make("other"));
    fs.write(inode, 0, &[1; BYTES]).unwrap();
    let (is_over, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let file = fs.open_file(inode).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            let mut reads = 0_u64;
            while !is_over.load(Ordering::Relaxed) || reads < 1000 {
                let mut room = [0xff; BYTES];
                let len = fs.read_file(&file, 0, &mut room).unwrap();
                assert!(len == 0 || len == BYTES, "{len}");
                let all = &room[..len];
                assert!(all.iter().all(|&byte| byte == all[0] && byte < 0x80), "{all:?}");
                seen.extend(all.first().copied());
                reads += 1;
                done.store(seen.len() > 20, Ordering::Relaxed);
            }
            fs.close_file(file).unwrap();
            (seen.len(), reads)
        });
        let mut round = 0_u64;
        while !done.load(Ordering::Relaxed) || round < 2000 {
            round += 1;
            let byte = u8::try_from(round % 0x7f).unwrap();
            fs.write(inode, 0, &[byte; BYTES]).unwrap();
            if round.is_multiple_of(3) {
                fs.truncate(inode, 0).unwrap();
                fs.sync().unwrap();
                fs.write(other, 0, &[0x90; 4 * BYTES]).unwrap();
                fs.truncate(other, 0).unwrap();
                fs.sync().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let (values, reads) = reader.join().unwrap();
        println!("{values} different contents in {reads} reads beside {round} writes");
    });
}
