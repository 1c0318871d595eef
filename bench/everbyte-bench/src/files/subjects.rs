//! Construction of the subjects.
//!
//! Invariants: the pool's file has no name, and its memory is touched before the first measurement. The mount of ext4 is
//! detached by then, and lives as long as the open directory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use everbyte_block::Delta;
use everbyte_device::Fua;
use everbyte_fs::{FileSystem, FsOptions};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{CheckpointTimer, Pool};

use super::Settings;
use super::batches::{Files, Sample, offsets};
use super::load::{self, LoadSample};
use super::operation::{Operation, READ_BYTES};
use crate::index::directory::{self, Access, Directory};
use crate::index::library::{Bytes, Library};
use crate::index::place::open_pool;
use crate::rows::Row;
use crate::subject::{Counts, Subject};
use crate::subjects::ext4;
use crate::subjects::floor::{Floor, medium_counts, nameless_file, touch};
use crate::subjects::volume::BenchPool;
use crate::workload::{Action, Workload};

pub(super) const FLOOR: &str = "floor";
pub(super) const LIBRARY: &str = "everbyte";
pub(super) const TMPFS: &str = "tmpfs";
pub(super) const EXT4: &str = "ext4";
pub(super) const VOLUME: &str = "volume";

/// Interval of checkpoints in the background, the server's default.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Space for the files of the load, twice, and for metadata.
const OTHER_BYTES: u64 = 768 << 20;
const INODES: u64 = 100_000;
/// Bytes of the floor of a metadata operation.
const FLOOR_BYTES: usize = 64;

/// The interface of a subject.
enum Capability {
    /// Requests to a device: reads, and for the floor a durable line for a change of metadata.
    Block(Box<dyn Subject>),
    Library(Box<Files<Library>>),
    Directory(Files<Directory>),
}

/// A subject with its name in the results.
pub(super) struct NamedSubject {
    pub(super) name: &'static str,
    capability: Capability,
}

impl NamedSubject {
    /// Returns true for the subjects that the library is compared with.
    pub(super) fn is_reference(&self) -> bool {
        self.name != LIBRARY
    }

    /// Returns true if it can do `operation`.
    pub(super) fn does(&self, operation: Operation) -> bool {
        match self.name {
            FLOOR => operation.changes_metadata() || operation == Operation::Read,
            VOLUME => operation == Operation::Read,
            _ => true,
        }
    }

    /// Returns true if it can do appends under load. An fsync on tmpfs does nothing.
    pub(super) fn bears_load(&self) -> bool {
        matches!(self.name, LIBRARY | EXT4)
    }

    /// Measures `operation` for about `slice`.
    ///
    /// # Errors
    /// The subject's.
    pub(super) fn run(
        &self,
        operation: Operation,
        settings: &Settings,
        round: usize,
    ) -> Result<Sample> {
        match &self.capability {
            Capability::Block(subject) => {
                requests(&**subject, operation, settings.own.file_bytes(), settings.slice, round)
            }
            Capability::Library(files) => files.run(operation, settings.slice, round),
            Capability::Directory(files) => files.run(operation, settings.slice, round),
        }
    }

    /// Measures appends with `fsync` under load.
    ///
    /// # Errors
    /// The subject's; it has no files.
    pub(super) fn load(&self, slice: Duration) -> Result<LoadSample> {
        match &self.capability {
            Capability::Block(_) => bail!("{} has no files", self.name),
            Capability::Library(files) => load::measure(&files.target, slice),
            Capability::Directory(files) => load::measure(&files.target, slice),
        }
    }
}

/// Times batches of requests to a device.
fn requests(
    subject: &dyn Subject,
    operation: Operation,
    bytes: u64,
    slice: Duration,
    round: usize,
) -> Result<Sample> {
    let mut session = subject.open(&Workload::new(Action::Read, READ_BYTES))?;
    let (mut sample, mut turn, mut room) = (Sample::default(), round, [0; READ_BYTES]);
    while sample.elapsed < slice {
        turn += 1;
        sample.time(offsets(bytes, turn), |offset| match operation {
            Operation::Read => session.read(offset, &mut room),
            _ => session.write(offset, &room[..FLOOR_BYTES], Fua::Yes),
        })?;
    }
    Ok(sample)
}

/// All subjects with their pools.
pub(super) struct All {
    pub(super) subjects: Vec<NamedSubject>,
    /// Rows of the subjects that could not be created.
    pub(super) absent: Vec<Row>,
    /// Description of the medium.
    pub(super) medium: String,
    // Dropped after the subjects.
    _timer: CheckpointTimer,
    _pool: BenchPool,
}

/// Creates all subjects.
///
/// # Errors
/// A subject of ours cannot be created.
pub(super) fn all(settings: &Settings) -> Result<All> {
    let (folder, bytes) = (settings.folder(), settings.own.file_bytes());
    let shape = (settings.own.names(), bytes);
    let (library, timer, medium) = library(settings)?;
    let pool = BenchPool::new(folder, bytes, 1)?;
    let volume = pool.volume(VOLUME, bytes, Delta::Auto)?;
    volume.prepare(&Workload::new(Action::Read, READ_BYTES))?;
    let files = Files::new(library, library_counts, shape)?;
    let mut subjects: Vec<NamedSubject> = [
        (FLOOR, Capability::Block(Box::new(Floor::new(folder, bytes)?))),
        (LIBRARY, Capability::Library(Box::new(files))),
        (VOLUME, Capability::Block(Box::new(volume))),
    ]
    .map(|(name, capability)| NamedSubject { name, capability })
    .into();
    let mut absent = Vec::new();
    let mut keep = |name, made: Result<Directory>| match made
        .and_then(|directory| Files::new(directory, |_| None, shape))
    {
        Ok(files) => subjects.push(NamedSubject { name, capability: Capability::Directory(files) }),
        Err(error) => absent.extend(skipped(settings, name, &format!("{error:#}"))),
    };
    let tmpfs = directory::Place { name: TMPFS.to_owned(), path: folder.to_owned() };
    keep(TMPFS, tmpfs.open(Access::Buffered));
    if !settings.quick {
        let mounted = ext4::mount_directory(folder, bytes + OTHER_BYTES);
        keep(EXT4, mounted.map(Directory::over));
    }
    Ok(All { subjects, absent, medium, _timer: timer, _pool: pool })
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
    Ok((Library { fs, bytes: Bytes::Stored }, timer, description))
}

fn library_counts(library: &Library) -> Option<Counts> {
    let volume = library.fs.volume();
    Some(medium_counts(volume.medium(), volume.log_bytes()))
}
