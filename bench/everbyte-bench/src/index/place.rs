//! Pools of the benchmark in memory, and the check for enough free memory.
//!
//! Invariants: the size of a pool is known before its workload begins. A reserved block takes no memory.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_fs::{FileSystem, FsOptions, IndexKind, kinds};
use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium, check_free_space};
use everbyte_pool::{OpenOptions, Pool};
use rustix::fs::{MemfdFlags, memfd_create};

use super::library::{Bytes, Library};
use super::personality::Personality;

const INODE_BYTES: u64 = 256;
/// Memory of a directory entry: a record in a bucket that is half full.
const NAME_BYTES: u64 = 128;
/// Memory of this program for a file: its entry in the file set, its state, its cached inode.
const PROGRAM_BYTES: u64 = 64;
/// Memory for logs, indexes and threads with their buffers.
const OTHER_BYTES: u64 = 1 << 30;
/// Largest file whose blocks the inode itself maps.
const INLINE_BYTES: u64 = 16 * BLOCK_U64;
/// Most operations have a record of some hundred bytes.
const LOG_BYTES: u64 = 256 << 20;
const LANES: u32 = 32;
pub(crate) const NAME: &str = "index";

/// Upper bounds of a workload's space in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Inodes, directories and maps in the pool, and memory outside of the pool.
    pub(crate) metadata: u64,
    /// Blocks of files.
    pub(crate) data: u64,
}

/// A file in memory without a name. Only touched pages take memory.
///
/// # Errors
/// The system's.
pub(crate) fn sparse_file(bytes: u64) -> Result<File> {
    let file = File::from(memfd_create("everbyte-bench", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// Creates a pool with an empty file system for `inodes` inodes on all of `medium`. A tree over its inode tables has
/// nodes of `node_bytes` bytes, or of the size that suits the index.
///
/// # Errors
/// The library's.
pub(crate) fn file_system(
    medium: Mapped,
    index: IndexKind,
    index_node_bytes: Option<u32>,
    inodes: u64,
) -> Result<FileSystem<Mapped>> {
    let bytes = medium.len();
    Pool::format(&medium, 2, [1; 16])?;
    let options = FsOptions {
        index,
        index_node_bytes,
        inodes_max: Some(inodes),
        log_bytes: Some(LOG_BYTES.min(bytes / 8)),
        lanes: LANES,
        ..FsOptions::default()
    };
    let mut fs = FileSystem::create(&open_pool(medium)?, NAME, bytes, &options)?;
    // The study's file system looks up the inode of each name in a path.
    fs.set_dentries_max(0);
    Ok(fs)
}

/// Opens a pool.
///
/// # Errors
/// The pool's.
pub(crate) fn open_pool(medium: Mapped) -> Result<Arc<Pool<Mapped>>> {
    let capacity_blocks = medium.len() / BLOCK_U64;
    Ok(Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions { capacity_blocks })?))
}

impl Need {
    /// The space of a workload on `files` files.
    pub(crate) fn of(personality: Personality, files: u64) -> Self {
        let mean = u64::from(personality.definition().file_bytes);
        // The last block of a file is half full on average.
        let data = files * (mean + BLOCK_U64 / 2);
        let map = if mean > INLINE_BYTES / 2 { BLOCK_U64 } else { 0 };
        // The head of a table takes one of sixteen slots.
        let inode = INODE_BYTES + INODE_BYTES / 8;
        let metadata = files * (inode + NAME_BYTES + map + PROGRAM_BYTES) + OTHER_BYTES;
        Self { metadata, data }
    }

    /// Size of a pool. Deleted blocks are free only after the next checkpoint, and files grow.
    pub(crate) fn pool_bytes(self) -> u64 {
        let bytes = self.metadata + self.data + self.data / 2;
        bytes.next_multiple_of(2 << 20)
    }

    /// Stores the data if they fit into memory, else reserves their blocks.
    ///
    /// # Errors
    /// The metadata do not fit into memory.
    pub(crate) fn bytes(self) -> Result<Bytes> {
        let memory = sparse_file(0)?;
        if check_free_space(&memory, "a pool with its data", self.pool_bytes()).is_ok() {
            return Ok(Bytes::Stored);
        }
        check_free_space(&memory, "a pool without its data", self.metadata)
            .map(|()| Bytes::Reserved)
            .context("--files asks for more")
    }
}

/// Inodes for a file set. Directories take inodes, and deleted inodes are free only after the next checkpoint.
pub(crate) fn inodes_for(files: u64) -> u64 {
    files * 5 / 4 + 100_000
}

/// Creates an empty file system for a workload on touched pages. The first touch of a page takes longer than the
/// creation of a file of 16 KiB, so an untouched pool measures the kernel instead of the index.
///
/// `kept` has the file of the previous pool. A pool of the same size takes its file with all pages. The caller has dropped
/// the previous pool.
///
/// # Errors
/// Memory is short; the library's.
pub(super) fn library(
    kept: &mut Option<File>,
    (index, node_bytes): (IndexKind, Option<u32>),
    personality: Personality,
    files: u64,
) -> Result<Library> {
    let need = Need::of(personality, files);
    let bytes = need.pool_bytes();
    // A file of another size is freed here, before the check of free memory.
    let same = kept.take().filter(|file| file.metadata().is_ok_and(|found| found.len() == bytes));
    let (file, fate) = match same {
        Some(file) => (file, Bytes::Stored),
        None => {
            let fate = need.bytes()?;
            (sparse_file(bytes)?, fate)
        }
    };
    // A pool with reserved blocks touches few pages, far apart.
    let is_stored = fate == Bytes::Stored;
    let options = MediaOptions::new().force_flush(true).populate(is_stored);
    let medium = Mapped::from_file(&file, &options)?;
    *kept = Some(file).filter(|_| is_stored);
    Ok(Library { fs: file_system(medium, index, node_bytes, inodes_for(files))?, bytes: fate })
}

/// Creates an empty file system for a workload on untouched pages.
///
/// # Errors
/// Memory is short; the library's.
pub(super) fn new_library(personality: Personality, files: u64) -> Result<Library> {
    let need = Need::of(personality, files);
    let bytes = need.bytes()?;
    let options = MediaOptions::new().force_flush(true);
    let medium = Mapped::from_file(&sparse_file(need.pool_bytes())?, &options)?;
    let fs = file_system(medium, IndexKind::default(), None, inodes_for(files))?;
    Ok(Library { fs, bytes })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::index::drive;
    use crate::index::target::Target;

    /// A library with stored bytes in a new pool.
    pub(crate) fn stored(index: IndexKind, bytes: u64) -> Library {
        let options = MediaOptions::new().force_flush(true);
        let medium = Mapped::from_file(&sparse_file(bytes).unwrap(), &options).unwrap();
        Library { fs: file_system(medium, index, None, 2000).unwrap(), bytes: Bytes::Stored }
    }

    #[test]
    fn every_index_runs_every_workload_in_process() {
        for index in IndexKind::ALL {
            drive::tests::check_target(&stored(index, 256 << 20));
            for personality in Personality::ALL {
                drive::tests::check_run(&stored(index, 512 << 20), personality, 3);
            }
        }
    }

    #[test]
    fn one_thread_takes_its_own_steps() {
        for personality in Personality::ALL {
            drive::tests::check_run(&stored(IndexKind::Direct, 512 << 20), personality, 1);
        }
    }

    #[test]
    fn reserved_bytes_take_no_memory_and_are_zero() {
        const FILE_BYTES: usize = 1 << 20;
        let file = sparse_file(64 << 30).unwrap();
        let medium = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        let fs = file_system(medium, IndexKind::Direct, None, 2000).unwrap();
        let library = Library { fs, bytes: Bytes::Reserved };
        let taken = |file: &File| file.metadata().unwrap().blocks() * 512;
        let before = taken(&file);
        let data = vec![7; FILE_BYTES];
        let mut read = vec![1; FILE_BYTES];
        for number in 0..200 {
            let made = library.create(&format!("file {number}")).unwrap();
            library.write(&made, 0, &data[..FILE_BYTES / 2]).unwrap();
            library.append(&made, &data[FILE_BYTES / 2..]).unwrap();
            assert_eq!(library.read(&made, 0, &mut read).unwrap(), FILE_BYTES);
            assert!(read.iter().all(|&byte| byte == 0));
            library.close(made).unwrap();
        }
        library.sync().unwrap();
        let more = taken(&file) - before;
        assert!(more < 16 << 20, "200 MiB of reserved bytes took {more} bytes");
    }

    #[test]
    fn successive_pools_reuse_memory() {
        const FILES: u64 = 500;
        let (mut kept, personality) = (None, Personality::Webproxy);
        let bytes = Need::of(personality, FILES).pool_bytes();
        let mut before = None;
        for index in IndexKind::ALL {
            let made = library(&mut kept, (index, None), personality, FILES).unwrap();
            drive::tests::check_run(&made, personality, 2);
            let file = kept.as_ref().unwrap().metadata().unwrap();
            assert_eq!(file.blocks() * 512, bytes, "pages are missing");
            assert_eq!(*before.get_or_insert(file.ino()), file.ino(), "other memory");
        }
        library(&mut kept, (IndexKind::Direct, None), personality, 2 * FILES).unwrap();
        assert_ne!(before, Some(kept.unwrap().metadata().unwrap().ino()));
    }

    #[test]
    fn oversized_data_is_reserved_or_refused() {
        let small = Need { metadata: 1 << 20, data: 1 << 20 };
        assert_eq!(small.bytes().unwrap(), Bytes::Stored);
        let sparse = Need { metadata: 1 << 20, data: 1 << 50 };
        assert_eq!(sparse.bytes().unwrap(), Bytes::Reserved);
        let error = format!("{:#}", Need { metadata: 1 << 50, data: 0 }.bytes().unwrap_err());
        assert!(error.contains("without its data") && error.contains("memory has"), "{error}");
        let paper = Need::of(Personality::Fileserver, 640_000);
        assert_eq!(paper.data >> 30, 79, "the paper's 84 GB, and half a block for each file");
    }
}
