//! The tables of C functions for SQLite.
//!
//! Owns the unsafe entry points: every function here turns C's arguments into Rust's, calls safe
//! code, and turns its answer into a result code. Panics become an error code. SQLite promises the
//! following, and every SAFETY comment here relies on it: a passed `sqlite3_vfs` is a registered
//! one. A `sqlite3_file` passed to a method was filled by `xOpen` with that method's table, is used
//! by one thread at a time, and not after `xClose`. Pointers to results are valid for the write.
//! Strings end in NUL and live during the call.
//!
//! A registered VFS is never freed, because connections keep a pointer to it even after
//! `sqlite3_vfs_unregister`; it lets go of the store then.

#![allow(unsafe_code, reason = "SQLite calls through tables of C functions, with raw pointers")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null, null_mut};
use std::sync::Arc;

use everbyte_media::BLOCK;
use parking_lot::Mutex;

use crate::database::Commits;
use crate::error::DatabaseError;
use crate::ffi::{self, Symbol, sqlite3_file, sqlite3_io_methods, sqlite3_vfs};
use crate::file::File;
use crate::format::FileKind;
use crate::host;
use crate::locks::Level;
use crate::pools::{PoolUser, Pools, full_path, split_path};
use crate::store::{Store, check_name, file_of};

/// Bytes of the longest path, NUL included.
const PATH_BYTES_MAX: c_int = 4096;
/// Flags of temporary files.
const TEMPORARY: c_int = ffi::SQLITE_OPEN_TEMP_DB
    | ffi::SQLITE_OPEN_TRANSIENT_DB
    | ffi::SQLITE_OPEN_TEMP_JOURNAL
    | ffi::SQLITE_OPEN_SUBJOURNAL;

/// The data of a registered VFS.
pub(crate) struct App {
    pub(crate) source: Source,
    pub(crate) batch_atomic: bool,
    pub(crate) commits: Commits,
    /// SQLite's default, for temporary files, time, randomness and libraries.
    parent: *mut sqlite3_vfs,
}

/// The origin of the databases of a VFS.
pub(crate) enum Source {
    /// One store: a path is a name in it. Gone once the VFS is unregistered.
    #[cfg_attr(not(feature = "linked"), expect(dead_code, reason = "only `register` makes one"))]
    Store(Mutex<Option<Arc<Store>>>),
    /// All pools of this machine: a path is that of a pool, and the name of a volume.
    Pools(Pools),
}

/// A file of a database, named by a path. Its parts are dropped from the end, so that the user of the pool is the last.
struct Found<'a> {
    pool: Option<PoolUser>,
    store: Arc<Store>,
    name: &'a str,
    kind: FileKind,
}

/// Makes a VFS over the data in `app`. It is never freed.
pub(crate) fn new_vfs(
    name: CString,
    parent: *mut sqlite3_vfs,
    app: &'static App,
) -> *mut sqlite3_vfs {
    // Temporary files are the parent's in the same place, so it must be large enough for either.
    // SAFETY: SQLite returned it, and a VFS that is the default must stay as long as connections.
    let sqlite3_vfs { iVersion: parent_version, szOsFile: parent_bytes, .. } = unsafe { *parent };
    let own_bytes = c_int::try_from(size_of::<OpenFile>()).unwrap_or(c_int::MAX);
    Box::into_raw(Box::new(sqlite3_vfs {
        iVersion: parent_version.min(2),
        szOsFile: own_bytes.max(parent_bytes),
        mxPathname: PATH_BYTES_MAX,
        pNext: null_mut(),
        zName: name.into_raw(),
        pAppData: ptr::from_ref(app).cast_mut().cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: Some(dl_open),
        xDlError: Some(dl_error),
        xDlSym: Some(dl_sym),
        xDlClose: Some(dl_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }))
}

/// The memory of a `sqlite3_file`.
#[repr(C)]
struct OpenFile {
    /// First, because SQLite reads the table of methods there.
    base: sqlite3_file,
    /// From `Box::into_raw`, until `xClose`.
    file: *mut File,
    /// The user of the file's pool, from `Box::into_raw` until `xClose`. NULL for a file of a store.
    pool: *mut PoolUser,
}

impl OpenFile {
    /// The methods of its files. Without shared memory between connections.
    const METHODS: &'static sqlite3_io_methods = &sqlite3_io_methods {
        iVersion: 3,
        xClose: Some(close),
        xRead: Some(read),
        xWrite: Some(write),
        xTruncate: Some(truncate),
        xSync: Some(sync),
        xFileSize: Some(file_size),
        xLock: Some(lock),
        xUnlock: Some(unlock),
        xCheckReservedLock: Some(check_reserved_lock),
        xFileControl: Some(file_control),
        xSectorSize: Some(sector_size),
        xDeviceCharacteristics: Some(device_characteristics),
        xShmMap: None,
        xShmLock: None,
        xShmBarrier: None,
        xShmUnmap: None,
        xFetch: Some(fetch),
        xUnfetch: Some(unfetch),
    };
}

/// Runs safe code for SQLite: errors go to its log, except the absence of a file to delete, which
/// SQLite expects. Panics become `otherwise`.
fn guard(otherwise: c_int, body: impl FnOnce() -> Result<c_int, DatabaseError>) -> c_int {
    let (code, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => return code,
        Ok(Err(error)) => (error.code(otherwise), error.to_string()),
        Err(_) => (otherwise, "everbyte-sqlite panicked; this is a bug in it".to_owned()),
    };
    match code {
        ffi::SQLITE_IOERR_DELETE_NOENT => {}
        // SQLite's own message for it has no reason.
        ffi::SQLITE_CANTOPEN => host::report(code, &message),
        _ => host::log(code, &message),
    }
    code
}

/// An open file.
///
/// # Safety
/// `file` was filled by `open` and not closed, and is used by this thread alone, without another
/// reference to it for `'a`.
unsafe fn opened<'a>(file: *mut sqlite3_file) -> &'a mut File {
    // SAFETY: by this function's contract it is the `base` of an `OpenFile`.
    let file = unsafe { (*file.cast::<OpenFile>()).file };
    // SAFETY: `open` put a box there, which lives until `close`.
    unsafe { &mut *file }
}

/// Returns the data of a VFS.
///
/// # Safety
/// `vfs` was made by `register`.
unsafe fn app(vfs: *mut sqlite3_vfs) -> &'static App {
    // SAFETY: by this function's contract; nobody changes the field.
    let app = unsafe { (*vfs).pAppData };
    // SAFETY: `register` leaked an `App` and put it there.
    unsafe { &*app.cast::<App>() }
}

impl App {
    pub(crate) fn new(
        source: Source,
        batch_atomic: bool,
        commits: Commits,
        parent: *mut sqlite3_vfs,
    ) -> Self {
        Self { source, batch_atomic, commits, parent }
    }

    /// Finds the file of a path.
    fn find<'a>(&'static self, path: &'a str) -> Result<Found<'a>, DatabaseError> {
        match &self.source {
            Source::Store(store) => {
                let store = store.lock().clone().ok_or(DatabaseError::Unregistered)?;
                let (name, kind) = file_of(path);
                Ok(Found { pool: None, store, name, kind })
            }
            Source::Pools(pools) => {
                let (pool, file) = split_path(path)?;
                let (name, kind) = file_of(file);
                let (store, user) = pools.open(pool)?;
                Ok(Found { pool: Some(user), store, name, kind })
            }
        }
    }
}

/// Returns a string of SQLite's.
///
/// # Safety
/// `path` ends in NUL and lives as long as `'a`.
unsafe fn text<'a>(path: *const c_char) -> Result<&'a str, DatabaseError> {
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_str().map_err(|_| DatabaseError::Unsupported { what: "a name that is not UTF-8" })
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    path: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a place for a file of this VFS. Without methods, it is not closed.
    unsafe { (*file).pMethods = null() };
    // SAFETY: SQLite passes the VFS that was registered.
    let app = unsafe { app(vfs) };
    if path.is_null() || flags & TEMPORARY != 0 {
        // SAFETY: the parent was SQLite's default VFS, which stays as long as connections; the
        // place is large enough for its files; it fills in its own methods, so that the file never
        // comes back here.
        return match unsafe { (*app.parent).xOpen } {
            // SAFETY: as before.
            Some(open) => unsafe { open(app.parent, path, file, flags, out_flags) },
            None => ffi::SQLITE_CANTOPEN,
        };
    }
    guard(ffi::SQLITE_CANTOPEN, || {
        if flags & ffi::SQLITE_OPEN_SUPER_JOURNAL != 0 {
            return Err(DatabaseError::several_databases());
        }
        // SAFETY: SQLite's string, not NULL.
        let path = unsafe { text(path) }?;
        if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            check_name(path)?;
        }
        let Found { pool, store, name, kind } = app.find(path)?;
        let database = store.database(name)?;
        let opened = File::open(database, kind, flags, app.batch_atomic, app.commits)?;
        if !out_flags.is_null() {
            // SAFETY: SQLite's place for the result.
            unsafe { *out_flags = opened.flags(flags) };
        }
        let base = sqlite3_file { pMethods: OpenFile::METHODS };
        let pool = pool.map_or(null_mut(), |user| Box::into_raw(Box::new(user)));
        let open_file = OpenFile { base, file: Box::into_raw(Box::new(opened)), pool };
        // SAFETY: `szOsFile` makes the place large enough, and SQLite aligns it for any type.
        unsafe { file.cast::<OpenFile>().write(open_file) };
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes what `open` filled, once.
    let open_file = unsafe { file.cast::<OpenFile>().read() };
    guard(ffi::SQLITE_IOERR_CLOSE, || {
        // SAFETY: if not NULL, `open` made the box. It is dropped at the end, after the file.
        let _pool = (!open_file.pool.is_null()).then(|| unsafe { Box::from_raw(open_file.pool) });
        // SAFETY: `open` made the box, and SQLite uses no file after it closed it.
        let file = unsafe { Box::from_raw(open_file.file) };
        file.close()?;
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    out: *mut c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    let (out, len) = (out.cast::<u8>(), usize::try_from(len).unwrap_or(0));
    // Bytes beyond the file must be zero, and Rust may only see bytes that are set.
    // SAFETY: SQLite passes a buffer of `len` bytes.
    unsafe { out.write_bytes(0, len) };
    // SAFETY: the same buffer, now set, and nobody else's during the call.
    let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_READ, || {
        let short = file.read(offset.unsigned_abs(), out)? < len;
        Ok(if short { ffi::SQLITE_IOERR_SHORT_READ } else { ffi::SQLITE_OK })
    })
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: SQLite passes a buffer of `len` bytes that nobody changes during the call.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_WRITE, || {
        file.write(offset.unsigned_abs(), data)?;
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: i64) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_TRUNCATE, || {
        file.truncate(length.unsigned_abs())?;
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_FSYNC, || {
        file.sync()?;
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, out: *mut i64) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_FSTAT, || {
        let Ok(length) = i64::try_from(file.length()) else { return Ok(ffi::SQLITE_IOERR_FSTAT) };
        // SAFETY: SQLite's place for the result.
        unsafe { *out = length };
        Ok(ffi::SQLITE_OK)
    })
}

fn level(code: c_int) -> Level {
    match code {
        ffi::SQLITE_LOCK_NONE => Level::None,
        ffi::SQLITE_LOCK_SHARED => Level::Shared,
        ffi::SQLITE_LOCK_RESERVED => Level::Reserved,
        ffi::SQLITE_LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, wanted: c_int) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_LOCK, || {
        Ok(if file.lock(level(wanted)) { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY })
    })
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, to: c_int) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_UNLOCK, || {
        file.unlock(level(to));
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_CHECKRESERVEDLOCK, || {
        let reserved = c_int::from(file.is_reserved());
        // SAFETY: SQLite's place for the result.
        unsafe { *out = reserved };
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn file_control(
    file: *mut sqlite3_file,
    op: c_int,
    argument: *mut c_void,
) -> c_int {
    if op == ffi::SQLITE_FCNTL_MMAP_SIZE {
        // SAFETY: an open file of SQLite's.
        let file = unsafe { opened(file) };
        // SAFETY: with this operation it passes a place for a number.
        let size = unsafe { &mut *argument.cast::<i64>() };
        return guard(ffi::SQLITE_IOERR, || {
            let before = i64::try_from(file.lent_max()).unwrap_or(i64::MAX);
            if let Ok(wanted) = u64::try_from(*size) {
                file.set_lent_max(wanted);
            }
            *size = before;
            Ok(ffi::SQLITE_OK)
        });
    }
    if op == ffi::SQLITE_FCNTL_HAS_MOVED {
        // SAFETY: an open file of SQLite's.
        let file = unsafe { opened(file) };
        return guard(ffi::SQLITE_IOERR, || {
            let moved = c_int::from(file.has_moved());
            // SAFETY: with this operation it passes a place for the answer.
            unsafe { *argument.cast::<c_int>() = moved };
            Ok(ffi::SQLITE_OK)
        });
    }
    // SQLite turns to its journal if a batch fails with a code of the IOERR family.
    let otherwise = match op {
        ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE => ffi::SQLITE_IOERR_BEGIN_ATOMIC,
        ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE => ffi::SQLITE_IOERR_COMMIT_ATOMIC,
        ffi::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE => ffi::SQLITE_IOERR_ROLLBACK_ATOMIC,
        _ => return ffi::SQLITE_NOTFOUND,
    };
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(otherwise, || {
        if !file.has_batches() {
            return Ok(ffi::SQLITE_NOTFOUND);
        }
        match op {
            ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE => file.begin_batch()?,
            ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE => file.commit_batch()?,
            _ => file.roll_back_batch(),
        }
        Ok(ffi::SQLITE_OK)
    })
}

/// Gives SQLite a page where it lies, or NULL, and it reads the page.
unsafe extern "C" fn fetch(
    file: *mut sqlite3_file,
    offset: i64,
    len: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_MMAP, || {
        let (offset, len) = (offset.unsigned_abs(), usize::try_from(len).unwrap_or(0));
        let page = file.lend(offset, len).map_or(null_mut(), |page| page.cast_mut().cast());
        // SAFETY: SQLite's place for the result. It only loads from such pages.
        unsafe { *out = page };
        Ok(ffi::SQLITE_OK)
    })
}

/// Takes a page back. NULL means that SQLite uses none, and no kept place has to go.
unsafe extern "C" fn unfetch(file: *mut sqlite3_file, offset: i64, page: *mut c_void) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(ffi::SQLITE_IOERR_MMAP, || {
        if !page.is_null() {
            file.take_back(offset.unsigned_abs())?;
        }
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn sector_size(_file: *mut sqlite3_file) -> c_int {
    c_int::try_from(BLOCK).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    // SAFETY: an open file of SQLite's.
    let file = unsafe { opened(file) };
    guard(0, || Ok(file.characteristics()))
}

unsafe extern "C" fn delete(
    vfs: *mut sqlite3_vfs,
    path: *const c_char,
    _sync_directory: c_int,
) -> c_int {
    guard(ffi::SQLITE_IOERR_DELETE, || {
        // SAFETY: the VFS that was registered.
        let app = unsafe { app(vfs) };
        // SAFETY: SQLite's string, not NULL.
        let Found { pool: _pool, store, name, kind } = app.find(unsafe { text(path) }?)?;
        if kind == FileKind::Main {
            return Err(DatabaseError::Unsupported { what: "deleting a database through SQLite" });
        }
        store.database(name)?.delete(kind, app.commits.durability)?;
        Ok(ffi::SQLITE_OK)
    })
}

unsafe extern "C" fn access(
    vfs: *mut sqlite3_vfs,
    path: *const c_char,
    _how: c_int,
    out: *mut c_int,
) -> c_int {
    guard(ffi::SQLITE_IOERR_ACCESS, || {
        // SAFETY: the VFS that was registered.
        let app = unsafe { app(vfs) };
        // SAFETY: SQLite's string, not NULL.
        let Found { pool: _pool, store, name, kind } = app.find(unsafe { text(path) }?)?;
        // As in SQLite's VFS for Unix, an empty file counts as missing: an empty WAL is not a
        // reason to open one.
        let there =
            store.has(name) && store.database(name)?.length(kind).is_some_and(|length| length > 0);
        // SAFETY: SQLite's place for the result.
        unsafe { *out = c_int::from(there) };
        Ok(ffi::SQLITE_OK)
    })
}

/// The name in a store is the path without the leading slashes of a URI's path: volumes have no directory. The path of
/// a pool is made absolute, so that each pool has one path.
unsafe extern "C" fn full_pathname(
    vfs: *mut sqlite3_vfs,
    path: *const c_char,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    guard(ffi::SQLITE_CANTOPEN, || {
        // SAFETY: the VFS that was registered.
        let app = unsafe { app(vfs) };
        // SAFETY: SQLite's string, not NULL.
        let path = unsafe { text(path) }?;
        let full = match &app.source {
            Source::Store(_) => path.trim_start_matches('/').to_owned(),
            Source::Pools(_) => full_path(path)?,
        };
        let Some(full) = CString::new(full).ok().filter(|full| {
            let bytes = full.as_bytes_with_nul().len();
            usize::try_from(out_bytes).is_ok_and(|room| bytes <= room)
        }) else {
            return Ok(ffi::SQLITE_CANTOPEN);
        };
        let bytes = full.as_bytes_with_nul();
        // SAFETY: the buffer has `out_bytes` bytes, no fewer than the name, and is not SQLite's
        // string.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
        Ok(ffi::SQLITE_OK)
    })
}

/// No error here has a number of the system's.
unsafe extern "C" fn last_error(_: *mut sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    0
}

/// Hands a call on to the parent, or answers `$otherwise` if it has no such function.
macro_rules! parents {
    ($vfs:ident, $function:ident, $otherwise:expr $(, $argument:ident)*) => {{
        // SAFETY: the VFS that was registered.
        let parent = unsafe { app($vfs) }.parent;
        // SAFETY: the parent was SQLite's default VFS, which stays as long as connections.
        match unsafe { (*parent).$function } {
            // SAFETY: the arguments are those that SQLite passes to any VFS.
            Some(function) => unsafe { function(parent $(, $argument)*) },
            None => $otherwise,
        }
    }};
}

unsafe extern "C" fn dl_open(vfs: *mut sqlite3_vfs, path: *const c_char) -> *mut c_void {
    parents!(vfs, xDlOpen, null_mut(), path)
}

unsafe extern "C" fn dl_error(vfs: *mut sqlite3_vfs, bytes: c_int, out: *mut c_char) {
    parents!(vfs, xDlError, (), bytes, out);
}

unsafe extern "C" fn dl_sym(
    vfs: *mut sqlite3_vfs,
    library: *mut c_void,
    symbol: *const c_char,
) -> Option<Symbol> {
    parents!(vfs, xDlSym, None, library, symbol)
}

unsafe extern "C" fn dl_close(vfs: *mut sqlite3_vfs, library: *mut c_void) {
    parents!(vfs, xDlClose, (), library);
}

unsafe extern "C" fn randomness(vfs: *mut sqlite3_vfs, bytes: c_int, out: *mut c_char) -> c_int {
    parents!(vfs, xRandomness, 0, bytes, out)
}

unsafe extern "C" fn sleep(vfs: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    parents!(vfs, xSleep, 0, microseconds)
}

unsafe extern "C" fn current_time(vfs: *mut sqlite3_vfs, out: *mut f64) -> c_int {
    parents!(vfs, xCurrentTime, ffi::SQLITE_ERROR, out)
}

unsafe extern "C" fn current_time_int64(vfs: *mut sqlite3_vfs, out: *mut i64) -> c_int {
    parents!(vfs, xCurrentTimeInt64, ffi::SQLITE_ERROR, out)
}
