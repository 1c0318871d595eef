//! SQLite's C interface, as far as a VFS needs it.
//!
//! Owns the numbers, structures and function types of `sqlite3.h` and `sqlite3ext.h`. They are part of SQLite's stable
//! interface. A binding crate would link a SQLite: an extension must call the SQLite of its host program. The tests
//! compare everything here with such a crate.

#![allow(non_snake_case, non_camel_case_types, reason = "the names are SQLite's")]

use std::ffi::{c_char, c_int, c_void};

/// Defines SQLite's numbers, and a table of them for the tests.
macro_rules! numbers {
    ($($name:ident = $value:literal,)*) => {
        $(pub(crate) const $name: c_int = $value;)*

        #[cfg(test)]
        const NUMBERS: &[(c_int, c_int)] = &[$(($name, libsqlite3_sys::$name)),*];
    };
}

numbers! {
    SQLITE_OK = 0x0,
    SQLITE_ERROR = 0x1,
    SQLITE_BUSY = 0x5,
    SQLITE_READONLY = 0x8,
    SQLITE_IOERR = 0xa,
    SQLITE_NOTFOUND = 0xc,
    SQLITE_FULL = 0xd,
    SQLITE_CANTOPEN = 0xe,
    SQLITE_WARNING = 0x1c,
    SQLITE_IOERR_READ = 0x10a,
    SQLITE_IOERR_SHORT_READ = 0x20a,
    SQLITE_IOERR_WRITE = 0x30a,
    SQLITE_IOERR_FSYNC = 0x40a,
    SQLITE_IOERR_TRUNCATE = 0x60a,
    SQLITE_IOERR_FSTAT = 0x70a,
    SQLITE_IOERR_UNLOCK = 0x80a,
    SQLITE_IOERR_DELETE = 0xa0a,
    SQLITE_IOERR_ACCESS = 0xd0a,
    SQLITE_IOERR_CHECKRESERVEDLOCK = 0xe0a,
    SQLITE_IOERR_LOCK = 0xf0a,
    SQLITE_IOERR_CLOSE = 0x100a,
    SQLITE_IOERR_DELETE_NOENT = 0x170a,
    SQLITE_IOERR_MMAP = 0x180a,
    SQLITE_IOERR_BEGIN_ATOMIC = 0x1d0a,
    SQLITE_IOERR_COMMIT_ATOMIC = 0x1e0a,
    SQLITE_IOERR_ROLLBACK_ATOMIC = 0x1f0a,
    SQLITE_OPEN_READONLY = 0x1,
    SQLITE_OPEN_READWRITE = 0x2,
    SQLITE_OPEN_CREATE = 0x4,
    SQLITE_OPEN_DELETEONCLOSE = 0x8,
    SQLITE_OPEN_MAIN_DB = 0x100,
    SQLITE_OPEN_TEMP_DB = 0x200,
    SQLITE_OPEN_TRANSIENT_DB = 0x400,
    SQLITE_OPEN_TEMP_JOURNAL = 0x1000,
    SQLITE_OPEN_SUBJOURNAL = 0x2000,
    SQLITE_OPEN_SUPER_JOURNAL = 0x4000,
    SQLITE_LOCK_NONE = 0x0,
    SQLITE_LOCK_SHARED = 0x1,
    SQLITE_LOCK_RESERVED = 0x2,
    SQLITE_LOCK_PENDING = 0x3,
    SQLITE_IOCAP_ATOMIC512 = 0x2,
    SQLITE_IOCAP_ATOMIC1K = 0x4,
    SQLITE_IOCAP_ATOMIC2K = 0x8,
    SQLITE_IOCAP_ATOMIC4K = 0x10,
    SQLITE_IOCAP_SAFE_APPEND = 0x200,
    SQLITE_IOCAP_SEQUENTIAL = 0x400,
    SQLITE_IOCAP_POWERSAFE_OVERWRITE = 0x1000,
    SQLITE_IOCAP_BATCH_ATOMIC = 0x4000,
    SQLITE_FCNTL_MMAP_SIZE = 0x12,
    SQLITE_FCNTL_HAS_MOVED = 0x14,
    SQLITE_FCNTL_BEGIN_ATOMIC_WRITE = 0x1f,
    SQLITE_FCNTL_COMMIT_ATOMIC_WRITE = 0x20,
    SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE = 0x21,
}

/// The answer of an extension that stays loaded after its connection.
pub(crate) const SQLITE_OK_LOAD_PERMANENTLY: c_int = 0x100;

/// A function of a VFS or a file that this crate does not have.
type Absent = Option<unsafe extern "C" fn()>;

/// An open file of any VFS.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct sqlite3_file {
    pub(crate) pMethods: *const sqlite3_io_methods,
}

type OnFile = Option<unsafe extern "C" fn(*mut sqlite3_file) -> c_int>;
type OnFileWithNumber = Option<unsafe extern "C" fn(*mut sqlite3_file, c_int) -> c_int>;
type OnFileWithSize = Option<unsafe extern "C" fn(*mut sqlite3_file, i64) -> c_int>;

/// The methods of a file.
#[repr(C)]
pub(crate) struct sqlite3_io_methods {
    pub(crate) iVersion: c_int,
    pub(crate) xClose: OnFile,
    pub(crate) xRead:
        Option<unsafe extern "C" fn(*mut sqlite3_file, *mut c_void, c_int, i64) -> c_int>,
    pub(crate) xWrite:
        Option<unsafe extern "C" fn(*mut sqlite3_file, *const c_void, c_int, i64) -> c_int>,
    pub(crate) xTruncate: OnFileWithSize,
    pub(crate) xSync: OnFileWithNumber,
    pub(crate) xFileSize: Option<unsafe extern "C" fn(*mut sqlite3_file, *mut i64) -> c_int>,
    pub(crate) xLock: OnFileWithNumber,
    pub(crate) xUnlock: OnFileWithNumber,
    pub(crate) xCheckReservedLock:
        Option<unsafe extern "C" fn(*mut sqlite3_file, *mut c_int) -> c_int>,
    pub(crate) xFileControl:
        Option<unsafe extern "C" fn(*mut sqlite3_file, c_int, *mut c_void) -> c_int>,
    pub(crate) xSectorSize: OnFile,
    pub(crate) xDeviceCharacteristics: OnFile,
    pub(crate) xShmMap: Absent,
    pub(crate) xShmLock: Absent,
    pub(crate) xShmBarrier: Absent,
    pub(crate) xShmUnmap: Absent,
    pub(crate) xFetch:
        Option<unsafe extern "C" fn(*mut sqlite3_file, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(crate) xUnfetch: Option<unsafe extern "C" fn(*mut sqlite3_file, i64, *mut c_void) -> c_int>,
}

/// The address of a symbol in a library.
pub(crate) type Symbol = unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char);

/// A VFS.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct sqlite3_vfs {
    pub(crate) iVersion: c_int,
    pub(crate) szOsFile: c_int,
    pub(crate) mxPathname: c_int,
    pub(crate) pNext: *mut sqlite3_vfs,
    pub(crate) zName: *const c_char,
    pub(crate) pAppData: *mut c_void,
    pub(crate) xOpen: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vfs,
            *const c_char,
            *mut sqlite3_file,
            c_int,
            *mut c_int,
        ) -> c_int,
    >,
    pub(crate) xDelete:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, c_int) -> c_int>,
    pub(crate) xAccess:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub(crate) xFullPathname:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub(crate) xDlOpen:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char) -> *mut c_void>,
    pub(crate) xDlError: Option<unsafe extern "C" fn(*mut sqlite3_vfs, c_int, *mut c_char)>,
    pub(crate) xDlSym: Option<
        unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char) -> Option<Symbol>,
    >,
    pub(crate) xDlClose: Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void)>,
    pub(crate) xRandomness:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, c_int, *mut c_char) -> c_int>,
    pub(crate) xSleep: Option<unsafe extern "C" fn(*mut sqlite3_vfs, c_int) -> c_int>,
    pub(crate) xCurrentTime: Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut f64) -> c_int>,
    pub(crate) xGetLastError:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, c_int, *mut c_char) -> c_int>,
    pub(crate) xCurrentTimeInt64: Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut i64) -> c_int>,
    pub(crate) xSetSystemCall: Absent,
    pub(crate) xGetSystemCall: Absent,
    pub(crate) xNextSystemCall: Absent,
}

pub(crate) type VfsFind = unsafe extern "C" fn(*const c_char) -> *mut sqlite3_vfs;
pub(crate) type VfsRegister = unsafe extern "C" fn(*mut sqlite3_vfs, c_int) -> c_int;
pub(crate) type VfsUnregister = unsafe extern "C" fn(*mut sqlite3_vfs) -> c_int;
pub(crate) type CompileOptionUsed = unsafe extern "C" fn(*const c_char) -> c_int;
pub(crate) type Log = unsafe extern "C" fn(c_int, *const c_char, ...);

/// The functions of a host's SQLite for extensions. The table only grows at its end, and its first functions are
/// older than any SQLite in use: this type has them up to `log`, of SQLite 3.7.
#[repr(C)]
pub(crate) struct sqlite3_api_routines {
    before_vfs_find: [Absent; 141],
    pub(crate) vfs_find: Option<VfsFind>,
    pub(crate) vfs_register: Option<VfsRegister>,
    pub(crate) vfs_unregister: Option<VfsUnregister>,
    before_compileoption_used: [Absent; 17],
    pub(crate) compileoption_used: Option<CompileOptionUsed>,
    before_log: [Absent; 5],
    pub(crate) log: Option<Log>,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use libsqlite3_sys as sys;

    use super::*;

    #[test]
    fn numbers_are_those_of_sqlite() {
        assert!(NUMBERS.len() > 50);
        assert!(NUMBERS.iter().all(|(ours, theirs)| ours == theirs));
    }

    #[test]
    fn structures_have_layout_of_sqlite() {
        macro_rules! same_layout {
            ($type:ident: $($field:ident)*) => {
                assert_eq!(size_of::<$type>(), size_of::<sys::$type>());
                $(assert_eq!(offset_of!($type, $field), offset_of!(sys::$type, $field));)*
            };
        }
        same_layout!(sqlite3_file: pMethods);
        same_layout!(sqlite3_vfs: iVersion szOsFile mxPathname pNext zName pAppData xOpen xDelete
            xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose xRandomness xSleep xCurrentTime
            xGetLastError xCurrentTimeInt64 xSetSystemCall xGetSystemCall xNextSystemCall);
        same_layout!(sqlite3_io_methods: iVersion xClose xRead xWrite xTruncate xSync xFileSize
            xLock xUnlock xCheckReservedLock xFileControl xSectorSize xDeviceCharacteristics
            xShmMap xShmLock xShmBarrier xShmUnmap xFetch xUnfetch);
        // Places in `sqlite3ext.h`: a binding has this table only for extensions.
        let places = [
            (offset_of!(sqlite3_api_routines, vfs_find), 141),
            (offset_of!(sqlite3_api_routines, vfs_register), 142),
            (offset_of!(sqlite3_api_routines, vfs_unregister), 143),
            (offset_of!(sqlite3_api_routines, compileoption_used), 161),
            (offset_of!(sqlite3_api_routines, log), 167),
        ];
        assert!(places.iter().all(|(offset, place)| *offset == place * size_of::<Absent>()));
    }
}
