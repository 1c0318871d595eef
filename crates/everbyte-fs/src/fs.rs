//! The file system: creation, opening, and shared state.
//!
//! Lock order: the lock of renames, the volume's gate, inode locks, the lock for adding an inode table, a
//! lane, the lock of an extent's structure, locks of inode tables.

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
    /// Bytes of a node of the index: a power of two from 64 to 4096; `None` for the default. A direct index
    /// and a window have no nodes.
    pub index_node_bytes: Option<u32>,
    /// Limit of inodes; `None` for one for each 16 KiB of the volume.
    pub inodes_max: Option<u64>,
    /// Makes inode tables of 2 MiB instead of 4 KiB.
    pub large_tables: bool,
    /// The owner of the root directory.
    pub root_uid: u32,
    /// The group of the root directory.
    pub root_gid: u32,
    /// Bytes of log over all lanes; `None` for a default by the volume's size.
    pub log_bytes: Option<u64>,
    /// Lanes of the log: a limit of concurrent writers.
    pub lanes: u32,
    /// Dirty lines of 64 bytes that start a background checkpoint; 0 for 65,536.
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
/// Every method is thread-safe. An operation is atomic: a crash keeps all or nothing of it.
/// Operations survive in the order of their answers. A [`FileSystem::sync`] makes every operation durable
/// that was answered before. Writing and truncating are atomic in parts only.
pub struct FileSystem<M: Medium> {
    pool: Arc<Pool<M>>,
    handle: VolumeHandle<M>,
    pub(crate) superblock: FsSuperblock,
    pub(crate) tables: InodeTables<M>,
    pub(crate) locks: InodeLocks,
    pub(crate) files: OpenFiles<M>,
    pub(crate) dentries: DentryCache,
    pub(crate) free_units: FreeUnitsCache,
    /// Held while a directory changes its parent, so no directory becomes its own ancestor.
    pub(crate) renames: Mutex<()>,
    /// Held while the size changes.
    pub(crate) resizing: Mutex<()>,
    pub(crate) size_blocks: AtomicU64,
}

impl<M: Medium> FileSystem<M> {
    /// Creates an empty file system of `size_bytes` in `pool`.
    ///
    /// # Errors
    /// As [`Pool::create_volume`]; too many inodes; an invalid size of the index's nodes; too few adjacent
    /// blocks for the first inode table. No volume is left then.
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
        // A random key keeps attackers from choosing names with equal hashes.
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
        // The volume is durable from here on. A crash before the format leaves a superblock without
        // tables.
        pool.create_volume(&spec, NewRoot::Blocks(&superblock.image()))?;
        Self::open_or_format(pool, name, options).inspect_err(|error| {
            // A volume without a file system is useless. The caller gets the error of the creation.
            if let Err(left) = pool.delete_volume(name) {
                tracing::warn!(volume = name, %error, %left, "a volume without a file system is left");
            }
        })
    }

    /// Opens the file system `name` of `pool`. It can be opened again after the drop of the handle.
    ///
    /// # Errors
    /// The volume is missing, of another kind, open already, or unreadable.
    pub fn open(pool: &Arc<Pool<M>>, name: &str) -> Result<Self, PoolError> {
        // If a crash interrupted the creation, its options are lost.
        Self::open_or_format(pool, name, &FsOptions::default())
    }

    /// Opens the volume. Creates missing first structures, with the settings of `options` beyond the
    /// superblock.
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
        // A crash between creation and formatting leaves a volume without tables.
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
        // Before any operation: the free lists come from the tables.
        let orphans = tables.gather(reader)?;
        // Bounded by the number of files, so a small file system opens fast.
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
        // Before the orphans are freed, because their batches are subject to the limit.
        fs.set_size_blocks(fs.volume().size_bytes()? / BLOCK_U64);
        // A deletion of the volume waits for the holders of inode locks.
        fs.handle.set_users(Arc::new(fs.locks.clone()));
        if fs.volume().read_only_reason().is_none() {
            orphans
                .into_iter()
                // Orphans of a crash have no users any longer.
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

    /// Makes all answered operations durable.
    ///
    /// # Errors
    /// The volume's; the durability of pending changes is unknown then.
    pub fn sync(&self) -> Result<(), FsError> {
        Ok(self.volume().flush()?)
    }

    /// Number of open files without a name. Their close frees their space.
    #[must_use]
    pub fn nameless_files(&self) -> u64 {
        self.files.nameless()
    }

    /// Limits the dentry cache to `entries` names of 80 bytes, rounded up to a power of two, at most 16,384.
    /// With 0 the cache is off, and every lookup reads the directory. The default is the limit of inodes
    /// within these bounds.
    pub fn set_dentries_max(&mut self, entries: usize) {
        self.dentries =
            DentryCache::new(entries.min(DENTRIES_MAX) as u64, self.superblock.hash_key[0]);
    }

    /// Adds an inode table ahead of need. Otherwise the next file without a free inode adds one.
    ///
    /// # Errors
    /// `NoInodes`, `NoSpace`, or the volume's.
    pub fn add_inode_table(&self) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        self.tables.grow(self.volume())
    }

    /// The address of inode table number `table`, from 0 on, by the index.
    ///
    /// # Errors
    /// There is no such table, or the index is damaged.
    pub fn inode_table_at(&self, table: u64) -> Result<PoolOffset, FsError> {
        Ok(self.tables.known_table_at(self.reader(), table)?)
    }

    /// Checks that the volume is not deleted. Later loads under the lock of an inode, or within an operation,
    /// read the volume: a deletion first marks the volume and then waits for both before it frees blocks.
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

/// The word of the present time in an inode. A clock outside of the range gives the nearer end.
pub(crate) fn now() -> u64 {
    // A fixed time, as a coarse clock gives it.
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

/// A random word.
fn random_word() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Creates the index, the first table and the root directory in one batch.
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
    // The creation is answered only when it is durable.
    Ok(volume.flush()?)
}

pub(crate) fn pool_error(error: FsError) -> PoolError {
    match error {
        FsError::Corrupt(corrupt) => corrupt.into(),
        FsError::Write(error) => error.into(),
        other => PoolError::Invalid(other.to_string()),
    }
}
