//! libpmemblk. The program loads it at run time, so a build does not need it.
//!
//! Invariants: the library stays loaded as long as one of its pools is open. A pool is closed once. Several threads may call
//! the library.

#![allow(unsafe_code, reason = "calls into a C library that is loaded at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result, bail};
use libloading::Library;

/// Name of the library in Debian's package libpmemblk1.
const LIBRARY: &str = "libpmemblk.so.1";

/// Makes libpmem flush lines of volatile memory, as all subjects do.
const FORCE_FLUSH: (&str, &str) = ("PMEM_IS_PMEM_FORCE", "1");

type Create = unsafe extern "C" fn(*const c_char, usize, usize, u32) -> *mut c_void;
type Transfer = unsafe extern "C" fn(*mut c_void, *mut c_void, c_long) -> c_int;

/// Sets the environment of libpmem. Requires a process with one thread.
pub(crate) fn set_environment() {
    // SAFETY: called first in `main`, before any thread was started that could read or write the
    // environment.
    unsafe { std::env::set_var(FORCE_FLUSH.0, FORCE_FLUSH.1) }
}

/// A pool of blocks.
pub(crate) struct PmemblkPool {
    pool: NonNull<c_void>,
    read: Transfer,
    write: Transfer,
    close: unsafe extern "C" fn(*mut c_void),
    blocks: u64,
    block_bytes: usize,
    _library: Library,
}

// SAFETY: the library documents its pools as usable from any thread.
unsafe impl Send for PmemblkPool {}
// SAFETY: the library documents reads and writes of one pool as safe from several threads at a
// time; the other members never change.
unsafe impl Sync for PmemblkPool {}

impl PmemblkPool {
    /// Makes a pool of `pool_bytes` with blocks of `block_bytes` in a new file at `path`.
    ///
    /// # Errors
    /// The library is not installed, or refuses.
    pub(crate) fn create(path: &Path, block_bytes: usize, pool_bytes: usize) -> Result<Self> {
        // SAFETY: libpmemblk's initialisers set up its own state and touch nothing of ours.
        let library = unsafe { Library::new(LIBRARY) }
            .with_context(|| format!("{LIBRARY} is not installed"))?;
        // SAFETY: the type is that of the function in libpmemblk.h.
        let create = *unsafe { library.get::<Create>(b"pmemblk_create\0") }?;
        // SAFETY: as above.
        let read = *unsafe { library.get::<Transfer>(b"pmemblk_read\0") }?;
        // SAFETY: as above; the block is not changed, though the type here is not const.
        let write = *unsafe { library.get::<Transfer>(b"pmemblk_write\0") }?;
        // SAFETY: as above.
        let close =
            *unsafe { library.get::<unsafe extern "C" fn(*mut c_void)>(b"pmemblk_close\0") }?;
        // SAFETY: as above.
        let nblock = *unsafe {
            library.get::<unsafe extern "C" fn(*mut c_void) -> usize>(b"pmemblk_nblock\0")
        }?;
        let c_path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path is a C string that lives on; the rest are plain numbers.
        let pool = unsafe { create(c_path.as_ptr(), block_bytes, pool_bytes, 0o600) };
        let Some(pool) = NonNull::new(pool) else {
            bail!("libpmemblk cannot make a pool in {}: {}", path.display(), message(&library)?);
        };
        // SAFETY: a pool that was just made.
        let blocks = unsafe { nblock(pool.as_ptr()) } as u64;
        Ok(Self { pool, read, write, close, blocks, block_bytes, _library: library })
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads block `block` into `out`, of the size of a block.
    ///
    /// # Errors
    /// The library refuses.
    #[inline]
    pub(crate) fn read(&self, block: u64, out: &mut [u8]) -> Result<()> {
        assert!(block < self.blocks && out.len() == self.block_bytes, "not a block");
        // SAFETY: the pool is open, and `out` has room for a block.
        let failed = unsafe {
            (self.read)(self.pool.as_ptr(), out.as_mut_ptr().cast(), block.cast_signed())
        };
        if failed != 0 { bail!("libpmemblk cannot read block {block}") } else { Ok(()) }
    }

    /// Writes block `block` durably from `data`, of the size of a block.
    ///
    /// # Errors
    /// The library refuses.
    #[inline]
    pub(crate) fn write(&self, block: u64, data: &[u8]) -> Result<()> {
        assert!(block < self.blocks && data.len() == self.block_bytes, "not a block");
        let from = data.as_ptr().cast::<c_void>().cast_mut();
        // SAFETY: the pool is open, and `data` has a block, which the library only reads.
        let failed = unsafe { (self.write)(self.pool.as_ptr(), from, block.cast_signed()) };
        if failed != 0 { bail!("libpmemblk cannot write block {block}") } else { Ok(()) }
    }
}

/// The library's message of this thread's last error.
fn message(library: &Library) -> Result<String> {
    // SAFETY: the type is that of the function in libpmemblk.h.
    let errormsg =
        *unsafe { library.get::<unsafe extern "C" fn() -> *const c_char>(b"pmemblk_errormsg\0") }?;
    // SAFETY: takes nothing and returns a string of the library's own.
    let text = unsafe { errormsg() };
    if text.is_null() {
        return Ok("no reason given".into());
    }
    // SAFETY: a C string that stays as it is until this thread's next error.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

impl Drop for PmemblkPool {
    fn drop(&mut self) {
        // SAFETY: the pool is open, and nobody uses it any more.
        unsafe { (self.close)(self.pool.as_ptr()) }
    }
}
