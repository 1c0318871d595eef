//! Opening time of a large file system after a clean shutdown and after a crash. A manual measurement: it
//! prints times, and fails only if data are lost.
//!
//! `EVERBYTE_FILES` sets the number of files (2,560,000 by default) of 16 KiB of reserved bytes, and
//! `EVERBYTE_INDEX` the index.

use std::sync::Arc;
use std::time::Instant;

use everbyte_fs::{
    Allocation, FileSystem, FileType, FsOptions, IndexKind, InodeNo, Name, NewInode,
};
use everbyte_media::{Mapped, MediaOptions};

use crate::real::open_pool;

const FILES: u64 = 2_560_000;
const FILES_OF_DIRECTORY: u64 = 1000;
const FILE_BYTES: u64 = 16 << 10;
/// Bytes of the pool for each file. The test touches only its inode and name.
const POOL_BYTES_OF_FILE: u64 = 18 << 10;

fn asked(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// Processor time of this thread in nanoseconds, which is less sensitive to other load.
fn cpu_ns() -> u64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    spent.split(' ').next().unwrap().parse().unwrap()
}

/// Elapsed time and processor time in words.
fn took((start, cpu_start): (Instant, u64)) -> String {
    let on_cpu = std::time::Duration::from_nanos(cpu_ns() - cpu_start);
    format!("{:.1?} ({on_cpu:.1?} on a processor)", start.elapsed())
}

fn make(fs: &FileSystem<Mapped>, (parent, name): (InodeNo, String), kind: FileType) -> InodeNo {
    let new =
        NewInode { kind, permissions: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: &[] };
    let name = Name::new(name.as_bytes()).unwrap();
    fs.create_inode(parent, name, &new).unwrap().inode
}

fn fill(fs: &FileSystem<Mapped>, files: u64) {
    let mut parent = fs.root();
    for number in 0..files {
        if number.is_multiple_of(FILES_OF_DIRECTORY) {
            let name = format!("d{}", number / FILES_OF_DIRECTORY);
            parent = make(fs, (fs.root(), name), FileType::Directory);
        }
        let inode = make(fs, (parent, format!("file-{number}")), FileType::Regular);
        fs.allocate(inode, (0, FILE_BYTES), Allocation::Reserve, false).unwrap();
    }
}

#[test]
#[ignore = "a measurement that takes a minute and 2 GiB"]
fn large_file_system_open_time() {
    let files = asked("EVERBYTE_FILES").map_or(FILES, |files| files.parse().unwrap());
    let index = asked("EVERBYTE_INDEX").map_or(IndexKind::default(), |name| {
        IndexKind::from_name(&name).expect("the name of an index")
    });
    let bytes = files * POOL_BYTES_OF_FILE + (256 << 20);
    let medium = Arc::new(Mapped::anonymous(bytes / 4096 * 4096, &MediaOptions::new()).unwrap());
    everbyte_pool::Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = open_pool(&medium).unwrap();
    let options = FsOptions {
        index,
        inodes_max: Some(files + files / 100 + 1000),
        log_bytes: Some(64 << 20),
        ..FsOptions::default()
    };
    let start = (Instant::now(), cpu_ns());
    let fs = FileSystem::create(&pool, "files", bytes, &options).unwrap();
    fill(&fs, files);
    fs.sync().unwrap();
    println!("{}: made {files} files in {}", index.name(), took(start));
    let mut free_inodes = fs.status().free_inodes;
    drop(fs);
    pool.close().unwrap();
    drop(pool);
    for what in ["a clean end", "a crash"] {
        let start = (Instant::now(), cpu_ns());
        let pool = open_pool(&medium).unwrap();
        let pool_took = took(start);
        assert_eq!(pool.recovery().was_clean, what == "a clean end");
        let fs = FileSystem::open(&pool, "files").unwrap();
        println!("opened after {what} in {}, of which the pool {pool_took}", took(start));
        assert_eq!(fs.status().free_inodes, free_inodes);
        free_inodes -= 1;
        let start = (Instant::now(), cpu_ns());
        make(&fs, (fs.root(), what.replace(' ', "-")), FileType::Directory);
        println!("the first file took {}", took(start));
        fs.sync().unwrap();
    }
}
