//! The file system: its creation and opening, and what its parts share.
//!
//! Locks are taken in this order: the lock of renames, the volume's gate, inode locks, that of whoever
//! makes an inode table, a lane, the lock of an extent's structure, those of inode tables.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::encode_word;
use everbyte_pool::sync::Mutex;
use everbyte_pool::{
    LANES_DEFAULT, NewRoot, Pool, PoolError, Volume, VolumeHandle, VolumeSpec, WriteError,
};

use crate::dentry::cache::{DENTRIES_MAX, DentryCache};
use crate::dir::FreeUnitsCache;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{
    FS, Field, FsSuperblock, InodeWords, TABLES_AT, TIME_RANGE_NS, TableGeometry, encode_time,
};
use crate::index::{self, IndexKind};
use crate::inode::blocks::check_map;
use crate::inode::locks::InodeLocks;
use crate::inode::open_files::OpenFiles;
use crate::inode::tables::{InodeTables, reader_of};
use crate::plant::Bug;

/// Settings of a new file system.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// The index over inode tables.
    pub index: IndexKind,
    /// Bytes of a node of the index: a power of two from 64 to 4096; `None` for a size that suits it. A
    /// direct index and a window have no nodes.
    pub index_node_bytes: Option<u32>,
    /// Most inodes; `None` for one for each 16 KiB of the volume.
    pub inodes_max: Option<u64>,
    /// Makes inode tables of 2 MiB instead of 4 KiB.
    pub large_tables: bool,
    /// The user whom the root directory belongs to.
    pub root_uid: u32,
    /// The group whom the root directory belongs to.
    pub root_gid: u32,
    /// Bytes of log over all lanes; `None` for a size that suits the volume's.
    pub log_bytes: Option<u64>,
    /// Lanes of the log: how many threads can write at once.
    pub lanes: u32,
    /// Dirty lines of 64 bytes at which a background checkpoint begins; 0 for 65,536.
    pub checkpoint_lines: u32,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            index: IndexKind::default(),
            index_node_bytes: None,
            inodes_max: None,
            large_tables: false,
            root_uid: 0,
            root_gid: 0,
            log_bytes: None,
            lanes: LANES_DEFAULT,
            checkpoint_lines: 0,
        }
    }
}

/// A file system over a volume of a pool.
///
/// Every method may be called by any number of threads. An operation is atomic: it is there as a whole
/// or not at all after a crash, in the order of its answers, and durable once a [`FileSystem::sync`] that
/// began when it had been answered has returned. Writing and truncating are atomic in parts only.
pub struct FileSystem<M: Medium> {
    pool: Arc<Pool<M>>,
    handle: VolumeHandle<M>,
    pub(crate) superblock: FsSuperblock,
    pub(crate) tables: InodeTables<M>,
    pub(crate) locks: InodeLocks,
    pub(crate) files: OpenFiles<M>,
    pub(crate) dentries: DentryCache,
    pub(crate) free_units: FreeUnitsCache,
    /// Held while a directory gets another parent, so that none becomes its own ancestor.
    pub(crate) renames: Mutex<()>,
    /// Whoever sets the size.
    pub(crate) resizing: Mutex<()>,
    pub(crate) size_blocks: AtomicU64,
}

impl<M: Medium> FileSystem<M> {
    /// Makes an empty file system of `size_bytes` in `pool`.
    ///
    /// # Errors
    /// As [`Pool::create_volume`]; there cannot be so many inodes, or nodes of the index of that size; the
    /// pool has too few adjacent blocks for the first inode table. There is no such volume then.
    pub fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        size_bytes: u64,
        options: &FsOptions,
    ) -> Result<Self, PoolError> {
        let geometry = TableGeometry::new(if options.large_tables { 512 } else { 1 })
            .expect("both are sizes of tables");
        let inodes = options.inodes_max.unwrap_or(size_bytes / (4 * BLOCK_U64)).max(1);
        let tables_max = inodes.div_ceil(geometry.usable());
        let node_bytes = options.index.node_bytes(options.index_node_bytes);
        let node_bytes = node_bytes.map_err(PoolError::Invalid)?;
        if tables_max > options.index.tables_max(geometry) {
            return Err(PoolError::Invalid(format!("{inodes} inodes are more than there can be")));
        }
        let superblock = FsSuperblock::new(
            (options.index.code(), node_bytes),
            geometry,
            tables_max,
            [random_word(), random_word()],
        );
        let mut spec = VolumeSpec::new(name, FS, size_bytes);
        spec.log_bytes = options.log_bytes;
        spec.lanes = options.lanes;
        spec.checkpoint_lines = options.checkpoint_lines;
        pool.create_volume(&spec, NewRoot::Blocks(&superblock.image()))?;
        Self::open_or_format(pool, name, options).inspect_err(|error| {
            // A volume without a file system is of no use to anybody. It is the error that matters.
            if let Err(left) = pool.delete_volume(name) {
                tracing::warn!(volume = name, %error, %left, "a volume without a file system is left");
            }
        })
    }

    /// Opens the file system `name` of `pool`. It can be opened again once this is dropped.
    ///
    /// # Errors
    /// There is no such volume, it is of another kind, open already, or cannot be read.
    pub fn open(pool: &Arc<Pool<M>>, name: &str) -> Result<Self, PoolError> {
        // Of one whose creation a crash cut off the options are lost.
        Self::open_or_format(pool, name, &FsOptions::default())
    }

    /// Opens the volume, and makes the first structures in it where they are missing; `options` say
    /// what the superblock does not.
    fn open_or_format(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &FsOptions,
    ) -> Result<Self, PoolError> {
        let handle = pool.open_volume(name, FS)?;
        let volume = handle.volume();
        let reader = reader_of(volume);
        let (superblock, at) = FsSuperblock::load(reader, volume.root_at())?;
        check_map(volume.descriptor().map, volume.root_at())?;
        let is_empty = FsSuperblock::tables_word(reader, at)? == 0;
        if is_empty && volume.read_only_reason().is_none() {
            format(volume, &superblock, at, options).map_err(|error| match error {
                FsError::NoSpace => PoolError::NoSpace {
                    what: "the inode tables of the file system",
                    needed_blocks: index::adjacent_blocks(&superblock),
                    free_blocks: pool.info().free_bytes / BLOCK_U64,
                },
                other => pool_error(other),
            })?;
        }
        let tables = InodeTables::open(&superblock, at, reader)?;
        let orphans = tables.gather(reader)?;
        // No more than there can be files, so that a small one is open at once.
        let dentries = DentryCache::new(tables.inodes_max(), superblock.hash_key[0]);
        let fs = Self {
            size_blocks: AtomicU64::new(0),
            resizing: Mutex::new(()),
            pool: Arc::clone(pool),
            superblock,
            tables,
            locks: InodeLocks::new(),
            files: OpenFiles::new(Arc::clone(volume)),
            dentries,
            free_units: FreeUnitsCache::new(),
            renames: Mutex::new(()),
            handle,
        };
        fs.set_size_blocks(fs.volume().size_bytes()? / BLOCK_U64);
        fs.handle.set_users(Arc::new(fs.locks.clone()));
        if fs.volume().read_only_reason().is_none() {
            orphans
                .into_iter()
                .try_for_each(|inode| fs.reclaim_or_leave(inode))
                .map_err(pool_error)?;
        }
        Ok(fs)
    }

    /// The pool's view of the volume: epochs, log, checkpoints.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        self.handle.volume()
    }

    pub(crate) fn medium(&self) -> &M {
        self.volume().medium()
    }

    pub(crate) fn reader(&self) -> Reader<'_, M> {
        reader_of(self.volume())
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeNo {
        self.superblock.geometry().root()
    }

    /// Makes everything durable that was answered before.
    ///
    /// # Errors
    /// The volume's; what was not durable before may be or not.
    pub fn sync(&self) -> Result<(), FsError> {
        Ok(self.volume().flush()?)
    }

    /// The number of files without a name that somebody has open. Their space is free once they are closed.
    #[must_use]
    pub fn nameless_files(&self) -> u64 {
        self.files.nameless()
    }

    /// Keeps at most `entries` names in its dentry cache from now on, rounded up to a power of two, at most
    /// 16,384, of 80 bytes each; with 0 none, so that every look-up reads the directory. A file system that
    /// was opened keeps as many as it can have inodes, within these limits.
    pub fn set_dentries_max(&mut self, entries: usize) {
        self.dentries =
            DentryCache::new(entries.min(DENTRIES_MAX) as u64, self.superblock.hash_key[0]);
    }

    /// Makes an inode table in advance, which would else be made for the next file that finds no free inode.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub fn add_inode_table(&self) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        self.tables.grow(self.volume())
    }

    /// The address of inode table number `table`, from 0 on, as the index has it.
    ///
    /// # Errors
    /// There is no such table, or the index cannot be right.
    pub fn inode_table_at(&self, table: u64) -> Result<PoolOffset, FsError> {
        Ok(self.tables.known_table_at(self.reader(), table)?)
    }

    /// Checks that the volume is there. What is loaded after it, under the lock of an inode or beside an operation, is
    /// the volume's: who deletes it says so first, and waits for both before it frees anything.
    fn check_there(&self) -> Result<(), FsError> {
        if self.volume().is_gone() { Err(WriteError::Gone.into()) } else { Ok(()) }
    }

    /// The address of `inode`, which must be in use.
    pub(crate) fn find_inode(&self, inode: InodeNo) -> Result<PoolOffset, FsError> {
        self.check_there()?;
        self.tables.find(self.reader(), inode)?.ok_or(FsError::Stale(inode))
    }

    /// Reads `inode`. The caller holds its lock.
    pub(crate) fn load_inode(&self, inode: InodeNo) -> Result<(PoolOffset, InodeWords), FsError> {
        self.check_there()?;
        self.tables.load(self.reader(), inode)?.ok_or(FsError::Stale(inode))
    }
}

/// The word of the present time in an inode. A clock outside of the range counts as its nearer end.
pub(crate) fn now() -> u64 {
    if planted(Bug::ClockStands) {
        return 1 << 60;
    }
    let now = SystemTime::now();
    let ns = match now.duration_since(UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => i128::try_from(before.duration().as_nanos()).map_or(i128::MIN, |ns| -ns),
    };
    encode_time(ns.clamp(*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end())).unwrap_or(0)
}

/// A word that nobody can guess.
fn random_word() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Makes the index, the first table and the root directory, in one batch.
fn format<M: Medium>(
    volume: &Volume<M>,
    superblock: &FsSuperblock,
    at: PoolOffset,
    options: &FsOptions,
) -> Result<(), FsError> {
    let geometry = superblock.geometry();
    let number = geometry.root();
    volume.change(|batch, _| {
        let mut root = InodeWords::new(number, batch.writer().epoch());
        root.set_type(FileType::Directory, 0o755);
        root.set_links(2);
        root.set_owner(options.root_uid, options.root_gid);
        root.set(Field::Special, number.0);
        root.stamp(now(), &[Field::Accessed, Field::Modified, Field::Changed, Field::Created]);
        root.seal();
        let table_at = index::plan_create(superblock, at, batch)?.offset();
        batch.stream(table_at, &geometry.head(0, &[number]));
        batch.stream(geometry.inode_at(table_at, number), &root.image(&[]));
        batch.change_word(at.plus(TABLES_AT), encode_word(1));
        Ok::<(), FsError>(())
    })?;
    Ok(volume.flush()?)
}

pub(crate) fn pool_error(error: FsError) -> PoolError {
    match error {
        FsError::Corrupt(corrupt) => corrupt.into(),
        FsError::Write(error) => error.into(),
        other => PoolError::Invalid(other.to_string()),
    }
}
