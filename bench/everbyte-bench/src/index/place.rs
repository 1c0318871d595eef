//! Pools of the benchmark in memory, and the check for enough free memory.
//!
//! Invariants: the size of a pool is known before its workload begins. A reserved block takes no memory.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use everbyte_fs::{FileSystem, FsOptions, IndexKind, kinds};
use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, check_free_space};
use everbyte_pool::{OpenOptions, Pool};

use super::library::{Bytes, Library};
use super::memory::{Memory, sparse_file};
use super::personality::Personality;

/// Bytes of a large table, and of a large page.
const LARGE_BYTES: u64 = 2 << 20;
const INODE_BYTES: u64 = 256;
/// Memory of a directory's entry: a record in a bucket that is half full.
const NAME_BYTES: u64 = 128;
/// Memory of the program for a file: its entry in the file set, its state, what is cached of it.
const PROGRAM_BYTES: u64 = 64;
/// Memory for everything else: logs, indexes, threads with their buffers.
const OTHER_BYTES: u64 = 1 << 30;
/// Blocks that an inode maps itself.
const INLINE_BYTES: u64 = 16 * BLOCK_U64;
/// Most operations have a record of some hundred bytes.
const LOG_BYTES: u64 = 256 << 20;
const LANES: u32 = 32;
pub(crate) const NAME: &str = "index";

/// Pages of the memory that a pool lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Those of a file in memory: 4 KiB, unless the system gives such files larger ones.
    Small,
    /// 2 MiB, of this process's own memory.
    Large,
}

/// Settings of a file system that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) index: IndexKind,
    pub(crate) node_bytes: Option<u32>,
    pub(crate) large_tables: bool,
    pub(crate) pages: Pages,
}

/// Bytes that a workload takes at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Inodes, directories, maps, and what is not in the pool.
    pub(crate) metadata: u64,
    /// Blocks of files.
    pub(crate) data: u64,
}

impl Setting {
    /// An index with what suits it.
    pub(crate) fn of(index: IndexKind) -> Self {
        Self { index, node_bytes: None, large_tables: false, pages: Pages::Small }
    }

    /// Its name in the results.
    pub(crate) fn name(&self) -> String {
        let mut name = self.index.name().to_owned();
        if let Some(bytes) = self.node_bytes {
            name += &format!(", nodes of {bytes} B");
        }
        if self.large_tables {
            name += ", tables of 2 MiB";
        }
        if self.pages == Pages::Large {
            name += ", pages of 2 MiB";
        }
        name
    }

    /// Bytes of an inode table.
    pub(crate) fn table_bytes(&self) -> u64 {
        if self.large_tables { LARGE_BYTES } else { BLOCK_U64 }
    }

    /// The number of the table that an inode lies in.
    pub(crate) fn table_of(&self, inode: u64) -> u64 {
        inode / (self.table_bytes() / INODE_BYTES)
    }

    /// Makes an empty file system for `inodes` inodes, in a pool of so many bytes.
    ///
    /// # Errors
    /// The library's; there is no address space.
    pub(crate) fn file_system(&self, inodes: u64, bytes: u64) -> Result<FileSystem<Mapped>> {
        let medium = match self.pages {
            Pages::Large => Mapped::anonymous(bytes, &media_options())?,
            Pages::Small => Mapped::from_file(&sparse_file(bytes)?, &media_options())?,
        };
        self.file_system_on(medium, inodes)
    }

    /// The same on a medium.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn file_system_on(&self, medium: Mapped, inodes: u64) -> Result<FileSystem<Mapped>> {
        let bytes = everbyte_media::Medium::len(&medium);
        Pool::format(&medium, 2, [1; 16])?;
        let pool = open_pool(medium)?;
        let options = FsOptions {
            index: self.index,
            index_node_bytes: self.node_bytes,
            inodes_max: Some(inodes),
            large_tables: self.large_tables,
            log_bytes: Some(LOG_BYTES.min(bytes / 8)),
            lanes: LANES,
            ..FsOptions::default()
        };
        let mut fs = FileSystem::create(&pool, NAME, bytes, &options)?;
        // A path leads over an inode for each of its names, as in the study.
        fs.set_dentries_max(0);
        Ok(fs)
    }
}

/// Flushes run as on persistent memory.
fn media_options() -> MediaOptions {
    MediaOptions::new().force_flush(true)
}

/// Opens a pool.
///
/// # Errors
/// The pool's.
pub(crate) fn open_pool(medium: Mapped) -> Result<Arc<Pool<Mapped>>> {
    let capacity_blocks = everbyte_media::Medium::len(&medium) / BLOCK_U64;
    Ok(Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions { capacity_blocks })?))
}

impl Need {
    /// Of a workload on a file set of so many files.
    pub(crate) fn of(personality: Personality, files: u64) -> Self {
        let mean = personality.file_bytes().mean();
        // A file's last block is half full.
        let data = files * (mean + BLOCK_U64 / 2);
        let map = if mean > INLINE_BYTES / 2 { BLOCK_U64 } else { 0 };
        // One of sixteen slots of a table is its head.
        let inode = INODE_BYTES + INODE_BYTES / 8;
        let metadata = files * (inode + NAME_BYTES + map + PROGRAM_BYTES) + OTHER_BYTES;
        Self { metadata, data }
    }

    /// Bytes of a pool for it: what is deleted is free only after the next checkpoint, and files grow.
    pub(crate) fn pool_bytes(self) -> u64 {
        let bytes = self.metadata + self.data + self.data / 2;
        bytes.next_multiple_of(LARGE_BYTES)
    }

    /// The most that fits into memory: that bytes are stored, or else that they are reserved.
    ///
    /// # Errors
    /// Not even the rest fits: what there is, and what it takes.
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

/// Inodes for a file set: directories take some, and what was deleted is free for others only after the
/// next checkpoint.
pub(crate) fn inodes_for(files: u64) -> u64 {
    files * 5 / 4 + 100_000
}

/// An empty file system of ours for a workload, on pages that are there.
///
/// # Errors
/// There is no memory for it, or the library's.
pub(super) fn library(
    memory: &Memory,
    setting: &Setting,
    personality: Personality,
    files: u64,
) -> Result<Library> {
    let (need, inodes) = (Need::of(personality, files), inodes_for(files));
    if setting.pages == Pages::Large {
        ensure!(
            need.bytes()? == Bytes::Stored,
            "the data do not fit into memory, and reserved blocks would take some in pages of 2 MiB"
        );
        let medium = Mapped::anonymous(need.pool_bytes(), &media_options().populate(true))?;
        return Ok(Library::new(setting.file_system_on(medium, inodes)?, Bytes::Stored));
    }
    let (file, bytes) = memory.file(need.pool_bytes(), || need.bytes())?;
    let options = media_options().populate(bytes == Bytes::Stored);
    let medium = Mapped::from_file(&file, &options)?;
    Ok(Library::new(setting.file_system_on(medium, inodes)?, bytes).holding(file))
}

/// The same in memory that nobody has touched.
///
/// # Errors
/// There is no memory for it, or the library's.
pub(super) fn new_library(
    setting: &Setting,
    personality: Personality,
    files: u64,
) -> Result<Library> {
    let need = Need::of(personality, files);
    let bytes = need.bytes()?;
    Ok(Library::new(setting.file_system(inodes_for(files), need.pool_bytes())?, bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::index::drive;
    use crate::index::target::Target;

    #[test]
    fn every_index_runs_every_workload_in_process() {
        for index in IndexKind::ALL {
            let fs = Setting::of(index).file_system(2000, 256 << 20).unwrap();
            drive::tests::check_target(&Library::new(fs, Bytes::Stored));
            for personality in Personality::ALL {
                let fs = Setting::of(index).file_system(2000, 512 << 20).unwrap();
                drive::tests::check_run(&Library::new(fs, Bytes::Stored), personality, 3);
            }
        }
    }

    #[test]
    fn one_thread_takes_its_own_steps() {
        for personality in Personality::ALL {
            let setting = Setting { large_tables: true, ..Setting::of(IndexKind::Direct) };
            let fs = setting.file_system(2000, 512 << 20).unwrap();
            drive::tests::check_run(&Library::new(fs, Bytes::Stored), personality, 1);
        }
    }

    #[test]
    fn reserved_bytes_take_no_memory_and_are_zero() {
        const FILE_BYTES: usize = 1 << 20;
        let file = sparse_file(64 << 30).unwrap();
        let medium = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        let fs = Setting::of(IndexKind::Direct).file_system_on(medium, 2000).unwrap();
        let library = Library::new(fs, Bytes::Reserved);
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
        let (memory, personality) = (Memory::default(), Personality::Webproxy);
        let bytes = Need::of(personality, FILES).pool_bytes();
        let taken = || {
            let kept = memory.file(bytes, || anyhow::bail!("nothing is kept")).unwrap().0;
            let file = kept.metadata().unwrap();
            (file.ino(), file.blocks() * 512)
        };
        let mut before = None;
        for index in IndexKind::ALL {
            let made = library(&memory, &Setting::of(index), personality, FILES).unwrap();
            drive::tests::check_run(&made, personality, 2);
            drop(made);
            assert_eq!(taken().1, bytes, "pages are missing");
            assert_eq!(*before.get_or_insert(taken()), taken(), "other memory");
        }
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
