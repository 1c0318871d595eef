//! The lock of the process's own memory in DRAM. The memory of mediums is exempt.
//!
//! A server of a system short of memory must not wait for memory itself, so it locks all its present and
//! future memory (`mlockall`). The mappings of mediums would be locked with it: a medium may be larger than
//! DRAM. Invariants: while the lock is held, no registered mapping is locked, for any way and time of its
//! creation and growth; the last holder ends the lock.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MlockAllFlags, mlockall, munlock, munlockall};

use crate::fault_handler::Registration;

/// Number of held locks.
static HOLDERS: Mutex<u32> = Mutex::new(0);
/// True while the process's memory is locked, or is about to be.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// The lock of the process's own memory. Ends when the last one is dropped.
#[derive(Debug)]
pub struct OwnMemory(());

impl OwnMemory {
    /// Locks all present and future memory of the process, except mappings of mediums.
    ///
    /// # Errors
    /// The system refuses. Nothing is locked then.
    pub fn lock() -> io::Result<Self> {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if *holders == 0 {
            // First of all: a mapping that is made from here on exempts itself.
            IS_LOCKED.store(true, Ordering::SeqCst);
            // On fault: to bring in all that is mapped would take more than is in use.
            let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
            let locked = mlockall(flags).map_err(io::Error::from).and_then(|()| exempt_all());
            if let Err(error) = locked {
                end();
                return Err(error);
            }
        }
        *holders += 1;
        Ok(Self(()))
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        *holders -= 1;
        if *holders == 0 {
            end();
        }
    }
}

fn end() {
    let _cannot_fail = munlockall();
    IS_LOCKED.store(false, Ordering::SeqCst);
}

fn exempt_all() -> io::Result<()> {
    for (base, len) in Registration::all_ranges() {
        match exempt_range(base, len) {
            // A mapping removed since.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {}
            other => other?,
        }
    }
    Ok(())
}

/// Exempts a medium's just mapped range from the lock, if the lock is held.
///
/// # Errors
/// The system's.
pub(crate) fn exempt(base: *mut u8, len: usize) -> io::Result<()> {
    match IS_LOCKED.load(Ordering::SeqCst) {
        true => exempt_range(base.addr(), len),
        false => Ok(()),
    }
}

fn exempt_range(base: usize, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: unlocking changes neither contents nor protection of any mapping.
    Ok(unsafe { munlock(ptr::without_provenance_mut(base), len) }?)
}
