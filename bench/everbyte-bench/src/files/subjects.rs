//! Construction of the subjects.
//!
//! Invariants: the pool's file has no name, and its memory is touched before the first measurement. The mount of ext4 is
//! detached by then, and lives as long as the open directory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_block::Delta;
use everbyte_fs::{FileSystem, FsOptions};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{CheckpointTimer, Pool};

use super::names::{EXT4, LIBRARY, TMPFS, VOLUME};
use super::operation::Operation;
use super::places::{Files, Floor, Place, Volume};

use super::Settings;
use crate::index::directory::{self, Access, Directory};
use crate::index::library::{Bytes, Library};
use crate::index::place::open_pool;
use crate::rows::Row;
use crate::subject::Counts;
use crate::subjects::ext4;
use crate::subjects::floor::{medium_counts, nameless_file, touch};
use crate::subjects::raw_memory::RawMemory;
use crate::subjects::volume::BenchPool;

/// Interval of checkpoints in the background, the server's default.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes for the load's files, twice, and for all that is no file's.
const OTHER_BYTES: u64 = 768 << 20;
const INODES: u64 = 100_000;

/// All subjects, and what they need while they are there.
pub(super) struct All {
    pub(super) places: Vec<Box<dyn Place>>,
    /// Rows of those that could not be made.
    pub(super) absent: Vec<Row>,
    /// The medium's description.
    pub(super) medium: String,
    // Dropped last.
    _timer: CheckpointTimer,
    _pool: BenchPool,
}

/// Makes all subjects.
///
/// # Errors
/// Our own cannot be made.
pub(super) fn all(settings: &Settings) -> Result<All> {
    let shape = (settings.own.names(), settings.own.file_bytes());
    let memory = RawMemory::map(&nameless_file(settings.folder(), settings.own.file_bytes())?);
    let memory = memory.context("cannot map the floor's memory")?;
    let (library, timer, medium) = library(settings)?;
    let pool = BenchPool::new(settings.folder(), settings.own.file_bytes(), 1)?;
    let volume = pool.volume(VOLUME, settings.own.file_bytes(), Delta::Auto)?;
    let mut places: Vec<Box<dyn Place>> = vec![
        Box::new(Floor::new(memory, settings.own.file_bytes())),
        Box::new(Files::new(LIBRARY, library, library_counts, shape)?),
        Box::new(Volume::new(volume.into_device(), settings.own.file_bytes())?),
    ];
    let mut absent = Vec::new();
    let mut keep = |name, made: Result<Directory>| {
        let made = made.and_then(|directory| Files::new(name, directory, |_| None, shape));
        match made {
            Ok(files) => places.push(Box::new(files)),
            Err(error) => absent.extend(skipped(settings, name, &format!("{error:#}"))),
        }
    };
    let tmpfs = directory::Place { name: TMPFS.to_owned(), path: settings.folder().to_owned() };
    keep(TMPFS, tmpfs.open(Access::Buffered));
    if !settings.quick {
        let bytes = settings.own.file_bytes() + OTHER_BYTES;
        keep(EXT4, ext4::mount_directory(settings.folder(), bytes).map(Directory::over));
    }
    Ok(All { places, absent, medium, _timer: timer, _pool: pool })
}

fn skipped(settings: &Settings, name: &str, why: &str) -> Vec<Row> {
    let titles = Operation::ALL.map(|operation| operation.title(settings.own.names()));
    let wanted = titles.iter().filter(|title| settings.wants(name, title));
    wanted.map(|title| Row::skipped(name, title, why.to_owned())).collect()
}

fn library(settings: &Settings) -> Result<(Library, CheckpointTimer, String)> {
    let bytes = settings.own.file_bytes() + OTHER_BYTES;
    let file = nameless_file(settings.folder(), bytes)?;
    let medium = Mapped::from_file(&file, &MediaOptions::new().force_flush(true))?;
    touch(&medium, 0, bytes)?;
    let description = medium.describe().to_string();
    Pool::format(&medium, 2, [3; 16])?;
    let pool = open_pool(medium)?;
    let timer = pool.start_timer(CHECKPOINT_INTERVAL).context("no checkpoint thread")?;
    let options = FsOptions { inodes_max: Some(INODES), ..FsOptions::default() };
    let fs = FileSystem::create(&Arc::clone(&pool), "files", bytes, &options)?;
    Ok((Library::new(fs, Bytes::Stored), timer, description))
}

fn library_counts(library: &Library) -> Option<Counts> {
    let volume = library.fs.volume();
    Some(medium_counts(volume.medium(), volume.log_bytes()))
}
