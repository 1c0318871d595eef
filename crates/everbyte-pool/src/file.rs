//! Pools in files and devices: making them, and the lock for exclusive use by one process.
//!
//! Owns the lock and its rules. Invariants: a process that may change or serve a pool holds the exclusive
//! lock of its file. A process that only inspects the pool holds a shared lock and works on a private copy,
//! so that inspection changes nothing although recovery runs. The mapping owns the lock,
//! so it lasts exactly as long as the medium. The kernel releases it if the process ends otherwise.
//!
//! Knows nothing of the contents of volumes.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use everbyte_media::{
    BLOCK_U64, BlockNo, Description, Mapped, MediaKind, MediaOptions, Medium, OpenError, Stack,
    allocate_file, check_free_space, create_file, remove_created, writeback_and_invalidate,
};
use everbyte_path::{Access, FileLock, Identity, Kind, Place, WrongKind, look, open, open_at};

use rustix::fs::OFlags;

use crate::format::{SUPERBLOCK_COPIES, Superblock};
use crate::kind::Kinds;
use crate::pool::{OpenOptions, Pool, PoolError, check_len, volumes_max_default};
use crate::range_locks::is_range_locked;

/// A device is blank if this many bytes at its start are zero.
const BLANK_BYTES: u64 = 1 << 20;
/// A file is allocated in about this many steps; each step reports progress.
const ALLOCATION_STEPS: u64 = 64;
/// No step of allocation is smaller, in bytes.
const STEP_BYTES_MIN: u64 = 64 << 20;
/// Unit of `st_blocks`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// Errors of making, opening, checking and repairing the file of a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The pool's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist.
    #[error("there is no pool at {}", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// A new pool would overwrite a file.
    #[error("{} exists already", path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// A link without a file behind it, where a new pool is to be.
    #[error("{} is a link without a target", path.display())]
    LeadsNowhere {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is neither a pool nor a place for one.
    #[error("{} is no pool: {why}", path.display())]
    NoPool {
        /// The path asked for.
        path: PathBuf,
        /// Description of the object at the path.
        why: String,
    },
    /// A new file needs a size.
    #[error("a pool in a file needs a size: {}", path.display())]
    NoSize {
        /// The path asked for.
        path: PathBuf,
    },
    /// The caller has cancelled the creation.
    #[error("{} was not made: it was interrupted", path.display())]
    GivenUp {
        /// The path asked for.
        path: PathBuf,
    },
    /// Programs have memory of the pool on loan.
    #[error("programs still have memory of {} that was lent to them", path.display())]
    Lent {
        /// The pool's file.
        path: PathBuf,
    },
    /// A new pool would overwrite a device.
    #[error("{} is not blank", path.display())]
    NotBlank {
        /// The device.
        path: PathBuf,
    },
    /// The system uses the block device.
    #[error("{} is in use by the system: it, or a partition of it, is mounted or swapped to", path.display())]
    Mounted {
        /// The device.
        path: PathBuf,
    },
    /// Another process has the pool.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// The file cannot be mapped.
    #[error(transparent)]
    Media(#[from] OpenError),
    /// The contents of the file cannot be opened as a pool.
    #[error("{}: {source}", path.display())]
    Pool {
        /// The pool's file.
        path: PathBuf,
        /// The error of opening it.
        source: PoolError,
    },
}

/// The user of a pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} is in use by {}",
    path.display(),
    pid.map_or("another process".into(), |pid| format!("process {pid}"))
)]
pub struct InUse {
    /// The pool's file.
    pub path: PathBuf,
    /// The process, if it could be found.
    pub pid: Option<u32>,
}

impl FileError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Io { action, path, source },
        }
    }

    /// For the parent folder of a new `path`.
    fn folder(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action: "open the folder of", path, source }
    }

    /// For an object opened as a pool.
    fn media(path: &Path) -> impl FnOnce(OpenError) -> Self {
        let path = path.to_owned();
        move |source| match source {
            OpenError::BadLength { len, unit, .. } => {
                let why = format!("it has {len} bytes, which is not a positive multiple of {unit}");
                Self::NoPool { path, why }
            }
            OpenError::NotMappable { .. } => {
                let why = "it is neither a file nor a block device nor a DAX device".to_owned();
                Self::NoPool { path, why }
            }
            _ => Self::Media(source),
        }
    }

    fn pool(path: &Path) -> impl FnOnce(PoolError) -> Self {
        let path = path.to_owned();
        move |source| Self::Pool { path, source }
    }
}

/// Settings of a new pool.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Size in bytes, a multiple of 4096; `None` for the whole of a device.
    pub len_bytes: Option<u64>,
    /// Volumes there can be; `None` for [`volumes_max_default`].
    pub volumes_max: Option<u64>,
    /// True if any contents of the file may be destroyed.
    pub force: bool,
}

impl CreateOptions {
    /// Volumes there can be in a pool of `len_bytes`.
    fn volumes_max_in(&self, len_bytes: u64) -> u64 {
        self.volumes_max.unwrap_or_else(|| volumes_max_default(len_bytes))
    }
}

/// Makes an empty pool at `path`, in a new, fully allocated file or on a device, and shuts it down cleanly.
/// Returns the size in bytes.
///
/// # Errors
/// The path exists and `force` was not given; the file or device is in use; it has no room; or the system
/// refuses. A file made here is removed again, and no other one.
pub fn create(path: &Path, options: &CreateOptions) -> Result<u64, FileError> {
    let created = create_with_progress(path, options, &mut |_, _| ControlFlow::Continue(()));
    created.map(|created| created.len_bytes)
}

/// A new pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Created {
    /// Size in bytes.
    pub len_bytes: u64,
    /// Volumes there can be.
    pub volumes_max: u64,
    /// Kind of its medium.
    pub media: MediaKind,
    /// True if a fence waits for a disk: the medium is behind the page cache, and not in memory.
    pub is_on_disk: bool,
}

/// Called repeatedly with the allocated bytes and the total bytes; may cancel the creation.
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// The same, where allocating the file may take long.
///
/// # Errors
/// As [`create`]; `GivenUp`, if `progress` breaks off. A file made here is then removed, too.
pub fn create_with_progress(
    path: &Path,
    options: &CreateOptions,
    progress: &mut Progress<'_>,
) -> Result<Created, FileError> {
    if let Some(len) = options.len_bytes.filter(|len| *len == 0 || !len.is_multiple_of(BLOCK_U64)) {
        return Err(invalid(
            path,
            format!("a pool of {len} bytes cannot be: use a multiple of 4096"),
        ));
    }
    if is_there(path)? {
        let (file, _lock) = take(path, options, progress)?;
        return format(path, &file, options);
    }
    let len = needed_len(path, options)?;
    let file = make(path, len)?;
    // Locked before the long allocation, so no other process takes the new file.
    let made = lock(path, &file).and_then(|_lock| {
        allocate(path, &file, len, progress)?;
        format(path, &file, options)
    });
    // A file locked by another process is not ours to remove.
    if made.is_err() && !matches!(made, Err(FileError::InUse(_))) {
        remove_created(path, &file);
    }
    made
}

fn invalid(path: &Path, what: String) -> FileError {
    FileError::pool(path)(PoolError::Invalid(what))
}

/// The size of a pool in a file, large enough for its volumes: known before anything is emptied.
fn needed_len(path: &Path, options: &CreateOptions) -> Result<u64, FileError> {
    let len = options.len_bytes.ok_or_else(|| FileError::NoSize { path: path.to_owned() })?;
    check_len(len, options.volumes_max_in(len)).map_err(FileError::pool(path))?;
    Ok(len)
}

/// Returns true if there is a file or device at `path`.
fn is_there(path: &Path) -> Result<bool, FileError> {
    match look(path) {
        Ok(_) => return Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::io("look for", path)(error)),
    }
    // To `look` a link without a target is absent, but a new file would be made behind it.
    match Place::of(path).and_then(|place| place.find()) {
        Ok(Some(_)) => Err(FileError::LeadsNowhere { path: path.to_owned() }),
        _ => Ok(false),
    }
}

/// A new file with the first of `len` bytes allocated, on a file system with room for all of them.
fn make(path: &Path, len: u64) -> Result<File, FileError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let (folder, _) =
        open(folder, Access::Read, &[Kind::Directory]).map_err(FileError::folder(path))?;
    // Before the file exists, so a refusal leaves nothing behind.
    check_free_space(&folder, &path.display().to_string(), len)?;
    match create_file(path, len.min(step_bytes(len))) {
        // Another process made the file since the look.
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
            Err(FileError::Exists { path: path.to_owned() })
        }
        made => Ok(made?),
    }
}

/// The existing file or device, locked and allocated.
fn take(
    path: &Path,
    options: &CreateOptions,
    progress: &mut Progress<'_>,
) -> Result<(File, FileLock), FileError> {
    let file = open_file(path, Access::ReadWrite)?;
    let metadata = file.metadata().map_err(FileError::io("inspect", path))?;
    if !metadata.is_file() {
        let lock = lock(path, &file)?;
        check_unlent(path, &file)?;
        check_device(path, &file, options)?;
        return Ok((file, lock));
    }
    if !options.force {
        return Err(FileError::Exists { path: path.to_owned() });
    }
    let len = needed_len(path, options)?;
    let lock = lock(path, &file)?;
    check_unlent(path, &file)?;
    // The old file's blocks become free when it is emptied.
    let own = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
    check_free_space(&file, &path.display().to_string(), len.saturating_sub(own))?;
    file.set_len(0).map_err(FileError::io("empty", path))?;
    allocate(path, &file, len, progress)?;
    Ok((file, lock))
}

/// Checks that the device may be taken, and as a whole.
fn check_device(path: &Path, file: &File, options: &CreateOptions) -> Result<(), FileError> {
    if file.metadata().map_err(FileError::io("inspect", path))?.file_type().is_block_device() {
        check_unmounted(path)?;
    }
    // Read-only: these checks decide whether the device may change.
    let device = Mapped::from_file(file, &MediaOptions::new().read_only(true))?;
    if let Some(len) = options.len_bytes.filter(|len| *len != device.len()) {
        let has = device.len();
        return Err(invalid(
            path,
            format!(
                "the device has {has} bytes and is taken as a whole: pass no size instead of {len}"
            ),
        ));
    }
    if !options.force && !is_blank(&device) {
        return Err(FileError::NotBlank { path: path.to_owned() });
    }
    Ok(())
}

/// Checks that the system does not use a block device: opens it exclusively.
fn check_unmounted(path: &Path) -> Result<(), FileError> {
    match open_at(path, Access::Read, OFlags::EXCL, &[Kind::BlockDevice]) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            Err(FileError::Mounted { path: path.to_owned() })
        }
        Err(error) => Err(FileError::io("open", path)(error)),
    }
}

/// Opens a possible pool, without waiting for anything.
fn open_file(path: &Path, access: Access) -> Result<File, FileError> {
    let kinds = [Kind::File, Kind::BlockDevice, Kind::CharDevice];
    match open(path, access, &kinds) {
        Ok((file, _)) => Ok(file),
        Err(error) => match WrongKind::of(&error) {
            Some(wrong) => {
                let why = format!("{wrong}, neither a file nor a block device nor a DAX device");
                Err(FileError::NoPool { path: path.to_owned(), why })
            }
            None => Err(FileError::io("open", path)(error)),
        },
    }
}

fn step_bytes(len: u64) -> u64 {
    let step = (len / ALLOCATION_STEPS).max(STEP_BYTES_MIN);
    step.next_multiple_of(BLOCK_U64)
}

fn allocate(
    path: &Path,
    file: &File,
    len: u64,
    progress: &mut Progress<'_>,
) -> Result<(), FileError> {
    let mut done = 0;
    while done < len {
        done = (done + step_bytes(len)).min(len);
        allocate_file(file, done)?;
        if progress(done, len).is_break() {
            return Err(FileError::GivenUp { path: path.to_owned() });
        }
    }
    Ok(())
}

fn is_blank(device: &Mapped) -> bool {
    let zeroes = vec![0; everbyte_media::BLOCK];
    let blocks = device.len().min(BLANK_BYTES) / BLOCK_U64;
    (0..blocks).all(|block| device.changed_lines(BlockNo(block), 0, &zeroes).is_empty())
}

fn format(path: &Path, file: &File, options: &CreateOptions) -> Result<Created, FileError> {
    let medium = Mapped::from_file(file, &MediaOptions::new())?;
    let failed = || FileError::pool(path);
    let volumes_max = options.volumes_max_in(medium.len());
    Pool::format(&medium, volumes_max, rand::random()).map_err(failed())?;
    let media = medium.describe().kind;
    let reaches_storage = || Stack::of(file).map_or(true, |stack| stack.reaches_storage());
    let is_on_disk = media == MediaKind::File && reaches_storage();
    let created = Created { len_bytes: medium.len(), volumes_max, media, is_on_disk };
    // The first shutdown saves the free map and marks the pool clean.
    let pool = Pool::open(Arc::new(medium), Kinds::new([]), &OpenOptions::default());
    pool.and_then(|pool| pool.close()).map_err(failed())?;
    warn_of_others(path, file);
    Ok(created)
}

/// Deletes the pool at `path`, if `agree` allows it after inspection of the pool: removes its file, or
/// overwrites the beginning of its device with zeroes. No other process can open the pool during the
/// deletion.
///
/// # Errors
/// The error of `agree`; as [`open_locked`]; programs have memory of the pool on loan. The pool is then
/// unchanged, unless the device fails while it is overwritten.
pub fn delete<E: From<FileError>>(
    path: &Path,
    kinds: Kinds<Mapped>,
    agree: impl FnOnce(&Pool<Mapped>) -> Result<(), E>,
) -> Result<(), E> {
    let file = open_file(path, Access::ReadWrite)?;
    let _lock = lock(path, &file)?;
    check_unlent(path, &file)?;
    let media = MediaOptions::new();
    // A private copy: recovery must not change a pool that `agree` may keep.
    let private = Mapped::from_file(&file, &media.clone().private(true));
    let private = Arc::new(private.map_err(FileError::media(path))?);
    let pool = Pool::open(private, kinds, &OpenOptions::default());
    agree(&pool.map_err(FileError::pool(path))?)?;
    let metadata = file.metadata().map_err(FileError::io("look at", path))?;
    if metadata.is_file() {
        // Where a link leads, as opening it did.
        let place = Place::following(path).map_err(FileError::io("find", path))?;
        // By identity: another file may have come to this name since it was opened.
        let removed = place
            .name()
            .and_then(|name| place.dir.remove_exact(name, Identity::of(&metadata)))
            .map_err(FileError::io("remove", path))?;
        if !removed {
            let why = "another file has come into its place".to_owned();
            return Err(FileError::NoPool { path: path.to_owned(), why }.into());
        }
        return Ok(());
    }
    let device = Mapped::from_file(&file, &media).map_err(FileError::media(path))?;
    let blank = || {
        let zeroes = vec![0; everbyte_media::BLOCK];
        // `is_blank` reads the same bytes, and both superblocks are among them.
        for block in 0..device.len().min(BLANK_BYTES) / BLOCK_U64 {
            device.stream(BlockNo(block).offset(), &zeroes);
        }
        device.fence()
    };
    let blanked = blank().map_err(|error| FileError::pool(path)(error.into()));
    Ok(blanked?)
}

/// Opens the pool at `path` for use, and recovers it. No other process can open it until the pool, and
/// everything that shares its medium, is dropped.
///
/// # Errors
/// Another process has it; the file is not a pool, or damaged; the system refuses.
pub fn open_locked(
    path: &Path,
    media: &MediaOptions,
    kinds: Kinds<Mapped>,
    options: &OpenOptions,
) -> Result<Pool<Mapped>, FileError> {
    let file = open_file(path, Access::ReadWrite)?;
    let lock = lock(path, &file)?;
    // Under the lock: no other process stores between the sync and the mapping.
    settle(path, &file)?;
    let medium = Mapped::from_file(&file, media).map_err(FileError::media(path))?;
    let medium = Arc::new(medium.with_lock(lock));
    let pool = Pool::open(medium, kinds, options).map_err(FileError::pool(path))?;
    warn_of_others(path, &file);
    Ok(pool)
}

/// Makes reads of a pool equal to its device's contents, unless it was shut down cleanly.
///
/// If a process ended or a fence failed, the kernel may hold the only copy of some stores, and on a DAX file
/// system the processor may. Recovery undoes or redoes every store with a record, durably. But it believes a
/// store without a record as found: the entry changed by a durable write, the state in a header. If the
/// device has another value, the block free by the found value gets another owner, and after the next crash
/// both owners name it.
fn settle(path: &Path, file: &File) -> Result<(), FileError> {
    // All else was durable before this mark was stored, and is not changed before it is durably gone.
    if is_marked_clean(file) {
        return Ok(());
    }
    writeback_and_invalidate(file).map_err(FileError::media(path))
}

/// Returns true if both superblocks are marked as cleanly shut down.
fn is_marked_clean(file: &File) -> bool {
    SUPERBLOCK_COPIES.into_iter().all(|at| {
        let mut bytes = [0; size_of::<Superblock>()];
        // An unread or invalid copy is not a clean mark, so the pool is settled.
        let is_read = file.read_exact_at(&mut bytes, at.0).is_ok();
        is_read && Superblock::parse(&bytes, at, u64::MAX).is_ok_and(|sb| sb.clean == 1)
    })
}

/// An inspected pool.
pub struct Inspected {
    /// The pool, on a private copy: changes to it are lost when it is dropped.
    pub pool: Pool<Mapped>,
    /// The medium of the pool.
    pub medium: Description,
}

/// Lock of a pool opened only for reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Other processes may inspect the pool as well; no process may change or serve it.
    Shared,
    /// No other process may open the pool: for a read-only server.
    Exclusive,
}

/// Opens the pool at `path` to look at it. Recovery runs on a private copy; the file is not
/// changed and need not be writable.
///
/// # Errors
/// As [`open_locked`].
pub fn inspect(
    path: &Path,
    sharing: Sharing,
    media: MediaOptions,
    kinds: Kinds<Mapped>,
) -> Result<Inspected, FileError> {
    let file = open_file(path, Access::Read)?;
    let lock = match sharing {
        Sharing::Shared => locked(path, &file, FileLock::shared(&file))?,
        Sharing::Exclusive => lock(path, &file)?,
    };
    // The description is of the pool's own medium. Recovery works on a private copy.
    let real = Mapped::from_file(&file, &media.clone().read_only(true));
    let real = real.map_err(FileError::media(path))?;
    let description = real.describe();
    drop(real);
    let medium = Arc::new(Mapped::from_file(&file, &media.private(true))?.with_lock(lock));
    let pool = Pool::open(medium, kinds, &OpenOptions::default()).map_err(FileError::pool(path))?;
    warn_of_others(path, &file);
    Ok(Inspected { pool: pool.on_copy(), medium: description })
}

/// A repaired pool.
pub struct Repaired {
    /// Damage that was repaired, or would be.
    pub mended: Vec<String>,
    /// The pool after the repair.
    pub inspected: Inspected,
}

/// Repairs everything repairable without guessing in the pool at `path`. No other process may have the pool.
/// With `dry_run` only a private copy is repaired. A pool without need of repair is not changed.
///
/// # Errors
/// As [`open_locked`], and those of [`crate::repair()`].
pub fn repair(
    path: &Path,
    dry_run: bool,
    kinds: impl Fn() -> Kinds<Mapped>,
) -> Result<Repaired, FileError> {
    let file = open_file(path, if dry_run { Access::Read } else { Access::ReadWrite })?;
    let lock = lock(path, &file)?;
    // A dry run changes nothing, so it may look at a pool with lent memory.
    if !dry_run {
        check_unlent(path, &file)?;
        settle(path, &file)?;
    }
    let media = MediaOptions::new();
    let private = Mapped::from_file(&file, &media.clone().private(true));
    let private = Arc::new(private.map_err(FileError::media(path))?.with_lock(lock));
    let failed = || FileError::pool(path);
    // On the private copy first: without damage the file is not even mapped for writing.
    let mended = crate::repair::repair(&*private, &kinds()).map_err(failed())?;
    let real = Mapped::from_file(&file, &media.read_only(dry_run || mended.is_empty()))?;
    let medium = real.describe();
    if !dry_run && !mended.is_empty() {
        // The file has the bytes of the private copy, so it gets the same repairs.
        crate::repair::repair(&real, &kinds()).map_err(failed())?;
    }
    drop(real);
    let pool = Pool::open(private, kinds(), &OpenOptions::default()).map_err(failed())?;
    warn_of_others(path, &file);
    Ok(Repaired { mended, inspected: Inspected { pool, medium } })
}

/// Warns if others than its owner can open a pool: they could read every volume and the key of log records,
/// and keep the pool locked. The group can open a device; it is the administrators' group.
fn warn_of_others(path: &Path, file: &File) {
    let Ok(metadata) = file.metadata() else { return };
    let (kept_out, mode) = if metadata.is_file() { (0o066, "600") } else { (0o006, "660") };
    if metadata.mode() & kept_out != 0 {
        let path = path.display();
        tracing::warn!(
            "other users can open {path} (mode {:o}) and read every volume in it; a mode of {mode} \
             prevents it",
            metadata.mode() & 0o777
        );
    }
}

fn lock(path: &Path, file: &File) -> Result<FileLock, FileError> {
    locked(path, file, FileLock::exclusive(file))
}

/// Checks that no program has memory of the pool on loan: a new or repaired pool gives space to others that
/// may be in a swap volume now.
fn check_unlent(path: &Path, file: &File) -> Result<(), FileError> {
    // A lease may lie anywhere in the file.
    let all = 0..i64::MAX.unsigned_abs();
    match is_range_locked(file, &all).map_err(FileError::io("look at the locks of", path))? {
        true => Err(FileError::Lent { path: path.to_owned() }),
        false => Ok(()),
    }
}

fn locked(
    path: &Path,
    file: &File,
    result: Result<FileLock, TryLockError>,
) -> Result<FileLock, FileError> {
    match result {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(who_has(path, file).into()),
        Err(TryLockError::Error(error)) => Err(FileError::io("lock", path)(error)),
    }
}

fn who_has(path: &Path, file: &File) -> InUse {
    InUse { path: path.to_owned(), pid: lock_holder(file) }
}

/// A process with a lock on `file`, if the system reports it.
fn lock_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let major = rustix::fs::major(device);
    let minor = rustix::fs::minor(device);
    let identity = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = fs::read_to_string("/proc/locks").ok()?;
    find_holder(&locks, &identity)
}

/// The process of the first granted lock on the file named `identity` in `/proc/locks`.
fn find_holder(locks: &str, identity: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ["FLOCK", _, _, pid, file, ..] = fields.get(1..)? else { return None };
        (*file == identity).then(|| pid.parse().ok()).flatten().filter(|pid| *pid != 0)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use parking_lot::Mutex;

    use super::*;

    fn make(path: &Path, len: u64, force: bool) -> Result<u64, FileError> {
        let options = CreateOptions { len_bytes: Some(len), volumes_max: Some(4), force };
        create(path, &options)
    }

    fn open(path: &Path) -> Result<Pool<Mapped>, FileError> {
        open_locked(path, &MediaOptions::new(), Kinds::new([]), &OpenOptions::default())
    }

    fn look(path: &Path) -> Result<Inspected, FileError> {
        inspect(path, Sharing::Shared, MediaOptions::new(), Kinds::new([]))
    }

    #[test]
    fn abandoned_creation_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p");
        let options = CreateOptions { len_bytes: Some(1 << 20), ..CreateOptions::default() };
        let made = create_with_progress(&path, &options, &mut |_, _| ControlFlow::Break(()));
        assert!(matches!(made, Err(FileError::GivenUp { .. })), "{made:?}");
        assert!(!path.exists());
        create(&path, &options).unwrap();
    }

    #[test]
    fn volume_slots_by_default_depend_on_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        // Sparse: an allocated file of this size would be slow to make.
        fs::write(&path, []).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let slots = |len: u64, volumes_max| {
            file.set_len(len).unwrap();
            let options = CreateOptions { volumes_max, ..CreateOptions::default() };
            let created = format(&path, &file, &options).unwrap();
            assert_eq!(created.volumes_max, look(&path).unwrap().pool.info().volumes_max);
            created.volumes_max
        };
        assert_eq!(slots((1 << 30) - BLOCK_U64, None), 64);
        assert_eq!(slots(1 << 30, None), 1024);
        assert_eq!(slots(1 << 30, Some(7)), 7);
    }

    #[test]
    fn new_pool_is_clean_and_allocated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        assert_eq!(make(&path, 1 << 20, false).unwrap(), 1 << 20);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20, "sparse");
        let before = fs::read(&path).unwrap();
        let inspected = look(&path).unwrap();
        assert!(inspected.pool.recovery().was_clean);
        let uid = inspected.pool.info().uid;
        drop(inspected);
        assert_eq!(fs::read(&path).unwrap(), before, "looking changed the pool");
        let error = make(&path, 2 << 20, false).unwrap_err();
        assert!(error.to_string().contains("exists already"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
        make(&path, 512 << 10, true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 512 << 10);
        assert_ne!(look(&path).unwrap().pool.info().uid, uid);
    }

    #[test]
    fn pool_in_use_is_not_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("pool"), folder.path().join("link"));
        make(&path, 1 << 20, false).unwrap();
        let before = fs::read(&path).unwrap();
        let agree = |pool: &Pool<Mapped>| match pool.info().volumes {
            0 => Ok(()),
            _ => Err(FileError::NoSize { path: PathBuf::new() }),
        };
        let refuse = |_: &Pool<Mapped>| Err(FileError::NoSize { path: PathBuf::new() });
        assert!(matches!(delete(&path, Kinds::new([]), refuse), Err(FileError::NoSize { .. })));
        assert_eq!(fs::read(&path).unwrap(), before);
        let pool = open(&path).unwrap();
        let error = delete(&path, Kinds::new([]), agree).unwrap_err();
        assert!(matches!(error, FileError::InUse(_)) && path.exists(), "{error}");
        drop(pool);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        delete(&link, Kinds::new([]), agree).unwrap();
        assert!(!path.exists());
        fs::write(&path, vec![1; 8192]).unwrap();
        let error = delete(&path, Kinds::new([]), agree).unwrap_err().to_string();
        assert!(error.contains("this is no pool") && path.exists(), "{error}");
    }

    #[test]
    fn deletion_spares_replacement_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["pool", "moved", "other"].map(|name| folder.path().join(name));
        make(&path, 1 << 20, false).unwrap();
        fs::write(&other, "precious").unwrap();
        let swap = |_: &Pool<Mapped>| {
            fs::rename(&path, &moved).unwrap();
            std::os::unix::fs::symlink(&other, &path).unwrap();
            Ok::<(), FileError>(())
        };
        let error = delete(&path, Kinds::new([]), swap).unwrap_err().to_string();
        assert!(error.contains("another file has come"), "{error}");
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(moved.exists());
    }

    /// Returns the messages logged during `run`.
    fn logged(run: impl FnOnce()) -> String {
        let (lines, subscriber) = (Arc::new(Mutex::new(Vec::new())), tracing_subscriber::fmt());
        let writer = Lines(Arc::clone(&lines));
        let subscriber = subscriber.with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, run);
        String::from_utf8(lines.lock().clone()).unwrap()
    }

    #[derive(Clone)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pool_open_to_others_is_logged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        make(&path, 1 << 20, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let open_all: [&dyn Fn(); 4] = [
            &|| drop(open(&path).unwrap()),
            &|| drop(look(&path).unwrap()),
            &|| drop(repair(&path, true, || Kinds::new([])).unwrap()),
            &|| assert_eq!(make(&path, 1 << 20, true).unwrap(), 1 << 20),
        ];
        // A place that logs is registered by the first thread that meets it while any thread has a subscriber, and is
        // off from then on if that thread has none. Others' tests meet this place; a new subscriber puts it right.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let is_heard = || logged(|| drop(open(&path).unwrap())).contains("other users can open");
        assert!((0..100).any(|_| is_heard()), "nothing is logged");
        for (mode, warns) in [(0o600, false), (0o640, true), (0o604, true), (0o622, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            for (which, open) in open_all.iter().enumerate() {
                let logged = logged(open);
                let text = format!("other users can open {}", path.display());
                assert_eq!(logged.contains(&text), warns, "{which} of mode {mode:o}: {logged}");
                assert_eq!(logged.contains(&format!("mode {mode:o}")), warns, "{logged}");
            }
        }
    }

    #[test]
    fn impossible_pool_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        for (len, expected) in
            [(0, "multiple of 4096"), (1000, "multiple of 4096"), (8192, "needs at least")]
        {
            let error = make(&path, len, false).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!path.exists());
        }
        let error = create(&path, &CreateOptions::default()).unwrap_err();
        assert!(error.to_string().contains("needs a size"), "{error}");
        let error = make(&folder.path().join("no/pool"), 1 << 20, false).unwrap_err();
        assert!(error.to_string().contains("no/pool"), "{error}");
        let error = make(folder.path(), 1 << 20, true).unwrap_err();
        assert!(error.to_string().contains("it is a directory"), "{error}");
    }

    #[test]
    fn clean_mark_follows_open_and_close() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        make(&path, 1 << 20, false).unwrap();
        let file = File::open(&path).unwrap();
        assert!(is_marked_clean(&file));
        drop(open(&path).unwrap());
        assert!(!is_marked_clean(&file));
        open(&path).unwrap().close().unwrap();
        assert!(is_marked_clean(&file));
        File::options().write(true).open(&path).unwrap().write_all_at(&[0], 4096).unwrap();
        assert!(!is_marked_clean(&file), "a copy is damaged");
    }

    #[test]
    fn pool_has_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        make(&path, 1 << 20, false).unwrap();
        let pool = open(&path).unwrap();
        for error in [open(&path).err(), look(&path).err(), make(&path, 1 << 20, true).err()] {
            let error = error.unwrap();
            let FileError::InUse(holder) = &error else { panic!("{error}") };
            if let Some(pid) = holder.pid {
                assert_eq!(pid, std::process::id());
            }
            assert!(error.to_string().contains("is in use by"), "{error}");
        }
        let medium = Arc::clone(pool.medium());
        drop(pool);
        assert!(open(&path).is_err(), "the medium is still mapped");
        drop(medium);
        let first = look(&path).unwrap();
        let second = look(&path).unwrap();
        assert!(open(&path).is_err(), "somebody looks");
        drop((first, second));
        open(&path).unwrap();
    }

    #[test]
    fn other_file_is_not_a_pool() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let error = open(&path).err().unwrap();
        assert!(error.to_string().contains("there is no pool at"), "{error}");
        for (bytes, expected) in [
            (vec![], "has 0 bytes"),
            (vec![1; 5000], "not a positive multiple of 4096"),
            (vec![1; 8192], "this is no pool"),
        ] {
            fs::write(&path, &bytes).unwrap();
            for error in [open(&path).err(), look(&path).err()] {
                let error = error.unwrap().to_string();
                assert!(error.contains(expected) && error.contains("pool"), "{error}");
            }
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        make(&path, 1 << 20, true).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
        let error = open(&path).err().unwrap().to_string();
        assert!(error.contains("truncated") && error.contains("1048576"), "{error}");
    }

    #[test]
    fn lock_holder_is_found_in_proc_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 fd:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 fd:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 fd:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  0 00:2a:8 0 EOF\n";
        assert_eq!(find_holder(locks, "fd:01:77"), Some(1234));
        assert_eq!(find_holder(locks, "00:2a:8"), None);
        assert_eq!(find_holder(locks, "fd:01:7"), None);
    }
}
