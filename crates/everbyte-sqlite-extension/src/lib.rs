//! A loadable extension of SQLite: `file:POOL/VOLUME?vfs=everbyte` is a database on a volume.
//!
//! Owns the entry point, and opens pools with the library. The VFS of `everbyte-sqlite` does all else. It calls the
//! SQLite of the program through the passed table of functions, and links no other.

#![allow(unsafe_code, reason = "SQLite calls the entry point")]

use std::error::Error;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use everbyte_sqlite::{PoolStore, Store, VfsOptions, register_extension};

/// Name of the VFS.
const VFS: &str = "everbyte";

/// Registers the VFS with the loading SQLite.
///
/// # Safety
/// `routines` is SQLite's table of functions for an extension, unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _connection: *mut c_void,
    _error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { register_extension(VFS, routines, open_pool, VfsOptions::default()) }
}

fn open_pool(path: &Path) -> Result<PoolStore, Box<dyn Error>> {
    let pool = everbyte::Pool::open(path)?;
    Ok(PoolStore { store: Store::new(Arc::clone(pool.engine())), pool: Box::new(pool) })
}
