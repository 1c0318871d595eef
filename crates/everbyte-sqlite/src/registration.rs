//! The registration of a VFS, and its settings.
//!
//! Owns the choice between SQLite's own batches and emulated ones. Knows nothing of files.

#![allow(unsafe_code, reason = "hands a table of C functions to SQLite")]

use std::ffi::{CString, c_int, c_void};
#[cfg(feature = "linked")]
use std::sync::Arc;

#[cfg(feature = "linked")]
use parking_lot::Mutex;

use crate::database::Commits;
use crate::durability::Durability;
use crate::ffi::{self, sqlite3_vfs};
use crate::host::{self, Host};
use crate::pools::{OpenPool, Pools};
#[cfg(feature = "linked")]
use crate::store::Store;
use crate::vfs::{App, Source, new_vfs};

/// Settings of a VFS.
#[derive(Clone, Copy, Debug)]
pub struct VfsOptions {
    /// Lets SQLite commit by atomic batches instead of its journal.
    pub batch_atomic: bool,
    /// Uses the batches of a SQLite that has them. Without them, or with this option off, the VFS emulates batches:
    /// see the crate's head.
    pub native_batches: bool,
    /// The moment of durability of commits.
    pub durability: Durability,
    /// Makes this VFS the default for connections.
    pub make_default: bool,
}

impl Default for VfsOptions {
    fn default() -> Self {
        let durability = Durability::default();
        Self { batch_atomic: true, native_batches: true, durability, make_default: false }
    }
}

/// A VFS could not be registered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A name with a NUL byte in it.
    #[error("{name:?} cannot be the name of a VFS")]
    Name {
        /// The name.
        name: String,
    },
    /// There is a VFS of this name.
    #[error("a VFS named {name:?} is registered already")]
    Taken {
        /// The name.
        name: String,
    },
    /// SQLite refused.
    #[error("SQLite cannot {what}: result code {code}")]
    Sqlite {
        /// The failed SQLite call.
        what: &'static str,
        /// Its result code.
        code: c_int,
    },
}

/// A registered VFS. Dropping it ends the registration: it opens no further file, not even a
/// journal, so that open connections can do little except close.
pub struct Registration {
    host: &'static Host,
    vfs: *mut sqlite3_vfs,
    batches: Batches,
    app: &'static App,
}

// SAFETY: the pointer is only handed to `sqlite3_vfs_unregister`, which takes SQLite's own lock and
// may be called on any thread; what it points to is never freed. Of the data only the store is used, under its lock.
unsafe impl Send for Registration {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Registration {}

impl Registration {
    /// Returns true if commits are atomic batches of the device, by SQLite or emulated. Otherwise SQLite writes its
    /// journal to the device: about seven more writes a commit.
    #[must_use]
    pub fn commits_in_batches(&self) -> bool {
        self.batches != Batches::Off
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: `register_vfs` registered it, and only here the registration ends.
        unsafe { self.host.unregister(self.vfs) };
        if let Source::Store(store) = &self.app.source {
            *store.lock() = None;
        }
    }
}

/// The use of atomic batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Batches {
    /// SQLite commits by batches.
    Native,
    /// The VFS makes batches of transactions with a journal.
    Emulated,
    /// The options turn batches off.
    Off,
}

impl Batches {
    /// The use under options, by a SQLite with or without batches.
    fn of(options: VfsOptions, has: bool) -> Self {
        match (options.batch_atomic, options.native_batches && has) {
            (true, true) => Self::Native,
            (true, false) => Self::Emulated,
            (false, _) => Self::Off,
        }
    }
}

/// Returns true if the SQLite in this program was built to use atomic batches.
#[cfg(feature = "linked")]
#[must_use]
pub fn has_batch_atomic() -> bool {
    Host::linked().is_ok_and(Host::has_batch_atomic)
}

/// Makes the databases of `store` known to the linked SQLite as files of the VFS `name`. If the options ask for
/// SQLite's batches and this SQLite has none, a warning goes to SQLite's error log, and the VFS emulates them.
///
/// # Errors
/// The name is taken or has a NUL byte; SQLite cannot be initialised.
#[cfg(feature = "linked")]
pub fn register(
    name: &str,
    store: &Arc<Store>,
    options: VfsOptions,
) -> Result<Registration, RegisterError> {
    let host =
        Host::linked().map_err(|code| RegisterError::Sqlite { what: "be initialised", code })?;
    let (batches, vfs, app) =
        register_vfs(host, name, Source::Store(Mutex::new(Some(Arc::clone(store)))), options)?;
    if batches == Batches::Emulated && options.native_batches {
        host::log(
            ffi::SQLITE_WARNING,
            "everbyte-sqlite: this SQLite has no batch atomic writes, so they are emulated at the price of a copy of \
             each journal; build it with SQLITE_ENABLE_BATCH_ATOMIC_WRITE",
        );
    }
    Ok(Registration { host, vfs, batches, app })
}

/// Makes databases in all pools of the machine known to the SQLite that loads an extension, as files `POOL/VOLUME` of
/// the VFS `name`. `routines` is the third argument of the extension's entry point. Returns the result code of the
/// entry point: the extension stays loaded, because the VFS is never unregistered. An entry point called again, by
/// another connection, changes nothing.
///
/// # Safety
/// `routines` is SQLite's table of functions for an extension, unchanged.
pub unsafe fn register_extension(
    name: &str,
    routines: *const c_void,
    open: OpenPool,
    options: VfsOptions,
) -> c_int {
    // SAFETY: by this function's contract.
    let Some(host) = (unsafe { Host::of_extension(routines.cast()) }) else {
        return ffi::SQLITE_ERROR;
    };
    match register_vfs(host, name, Source::Pools(Pools::new(open)), options) {
        Ok(_) | Err(RegisterError::Taken { .. }) => ffi::SQLITE_OK_LOAD_PERMANENTLY,
        Err(error) => {
            host::report(ffi::SQLITE_ERROR, &error.to_string());
            ffi::SQLITE_ERROR
        }
    }
}

fn register_vfs(
    host: &'static Host,
    name: &str,
    source: Source,
    options: VfsOptions,
) -> Result<(Batches, *mut sqlite3_vfs, &'static App), RegisterError> {
    let c_name = CString::new(name).map_err(|_| RegisterError::Name { name: name.to_owned() })?;
    if host.find(Some(&c_name)).is_some() {
        return Err(RegisterError::Taken { name: name.to_owned() });
    }
    let Some(parent) = host.find(None) else {
        return Err(RegisterError::Sqlite { what: "name a default VFS", code: ffi::SQLITE_ERROR });
    };
    let batches = Batches::of(options, host.has_batch_atomic());
    let emulated = batches == Batches::Emulated;
    let commits = Commits { emulated, durability: options.durability };
    let app = App::new(source, batches == Batches::Native, commits, parent);
    let app: &'static App = Box::leak(Box::new(app));
    let vfs = new_vfs(c_name, parent, app);
    // SAFETY: it is filled as SQLite wants it, and never freed.
    match unsafe { host.register(vfs, options.make_default) } {
        ffi::SQLITE_OK => Ok((batches, vfs, app)),
        code => Err(RegisterError::Sqlite { what: "register it", code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_batches_are_emulated() {
        let options = VfsOptions::default();
        assert_eq!(Batches::of(options, true), Batches::Native);
        assert_eq!(Batches::of(options, false), Batches::Emulated);
        let emulating = VfsOptions { native_batches: false, ..options };
        assert_eq!(Batches::of(emulating, true), Batches::Emulated);
        let without = VfsOptions { batch_atomic: false, ..options };
        assert_eq!(Batches::of(without, true), Batches::Off);
    }
}
