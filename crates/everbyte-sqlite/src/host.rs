//! The SQLite behind the VFS: the linked one, or the one of a program with the extension.
//!
//! Owns the choice, made once for the process, and all messages to its user. Knows nothing of databases.

#![allow(unsafe_code, reason = "calls SQLite's C functions")]

use std::ffi::{CStr, CString, c_int};
use std::ptr::null;
use std::sync::OnceLock;

use crate::ffi::{
    CompileOptionUsed, Log, VfsFind, VfsRegister, VfsUnregister, sqlite3_api_routines, sqlite3_vfs,
};

/// Functions of SQLite.
pub(crate) struct Host {
    find: VfsFind,
    register: VfsRegister,
    unregister: VfsUnregister,
    log: Log,
    /// Missing in a SQLite without diagnostics.
    compile_option_used: Option<CompileOptionUsed>,
    /// True in a program that knows nothing of this crate. Its error log usually goes nowhere.
    is_foreign: bool,
}

static HOST: OnceLock<Host> = OnceLock::new();

impl Host {
    /// The SQLite linked with this program, unless an extension has another.
    #[cfg(feature = "linked")]
    pub(crate) fn linked() -> Result<&'static Self, c_int> {
        // SAFETY: it takes nothing and may be called at any time.
        let code = unsafe { libsqlite3_sys::sqlite3_initialize() };
        if code != crate::ffi::SQLITE_OK {
            return Err(code);
        }
        Ok(HOST.get_or_init(|| Self {
            find: linked::sqlite3_vfs_find,
            register: linked::sqlite3_vfs_register,
            unregister: linked::sqlite3_vfs_unregister,
            log: linked::sqlite3_log,
            compile_option_used: Some(linked::sqlite3_compileoption_used),
            is_foreign: false,
        }))
    }

    /// The SQLite of the program that loads the extension; `None` if it lacks a function.
    ///
    /// # Safety
    /// `routines` is SQLite's table of functions for an extension. The functions stay valid until the process ends.
    pub(crate) unsafe fn of_extension(
        routines: *const sqlite3_api_routines,
    ) -> Option<&'static Self> {
        // SAFETY: by this function's contract; SQLite's table is never freed or changed.
        let routines = unsafe { routines.as_ref() }?;
        let host = Self {
            find: routines.vfs_find?,
            register: routines.vfs_register?,
            unregister: routines.vfs_unregister?,
            log: routines.log?,
            compile_option_used: routines.compileoption_used,
            is_foreign: true,
        };
        Some(HOST.get_or_init(|| host))
    }

    /// Finds a VFS by name, or the default one.
    pub(crate) fn find(&self, name: Option<&CStr>) -> Option<*mut sqlite3_vfs> {
        // SAFETY: a string that ends in NUL, or NULL for the default.
        let vfs = unsafe { (self.find)(name.map_or(null(), CStr::as_ptr)) };
        (!vfs.is_null()).then_some(vfs)
    }

    /// Registers a VFS.
    ///
    /// # Safety
    /// `vfs` is filled as SQLite wants it, and never freed.
    pub(crate) unsafe fn register(&self, vfs: *mut sqlite3_vfs, make_default: bool) -> c_int {
        // SAFETY: by this function's contract.
        unsafe { (self.register)(vfs, c_int::from(make_default)) }
    }

    /// Ends the registration of a VFS.
    ///
    /// # Safety
    /// `vfs` was registered and is never freed.
    pub(crate) unsafe fn unregister(&self, vfs: *mut sqlite3_vfs) {
        // SAFETY: by this function's contract.
        unsafe { (self.unregister)(vfs) };
    }

    /// Returns true if this SQLite was built to use atomic batches.
    pub(crate) fn has_batch_atomic(&self) -> bool {
        let option = c"ENABLE_BATCH_ATOMIC_WRITE".as_ptr();
        // SAFETY: the option is a string that ends in NUL.
        self.compile_option_used.is_some_and(|used| unsafe { used(option) != 0 })
    }
}

/// Writes a message to SQLite's error log.
pub(crate) fn log(code: c_int, message: &str) {
    if let (Some(host), Ok(message)) = (HOST.get(), CString::new(message)) {
        // SAFETY: the format has one argument, a string that ends in NUL.
        unsafe { (host.log)(code, c"%s".as_ptr(), message.as_ptr()) };
    }
}

/// Reports a fact to the user of the process: in SQLite's error log, and on standard error if the program knows
/// nothing of this crate.
pub(crate) fn report(code: c_int, message: &str) {
    log(code, message);
    if HOST.get().is_some_and(|host| host.is_foreign) {
        use std::io::Write;
        // A program without standard error still has the log.
        let _unheard = writeln!(std::io::stderr(), "everbyte-sqlite: {message}");
    }
}

/// Functions of the linked SQLite, with this crate's types.
#[cfg(feature = "linked")]
mod linked {
    use std::ffi::{c_char, c_int};

    use libsqlite3_sys as _;

    use crate::ffi::sqlite3_vfs;

    unsafe extern "C" {
        pub(super) fn sqlite3_vfs_find(name: *const c_char) -> *mut sqlite3_vfs;
        pub(super) fn sqlite3_vfs_register(vfs: *mut sqlite3_vfs, make_default: c_int) -> c_int;
        pub(super) fn sqlite3_vfs_unregister(vfs: *mut sqlite3_vfs) -> c_int;
        pub(super) fn sqlite3_compileoption_used(name: *const c_char) -> c_int;
        pub(super) fn sqlite3_log(code: c_int, format: *const c_char, ...);
    }
}
