//! The check for free space before a file is allocated.
//!
//! Owns the free space of a file system, and of memory for a file in memory. Invariant: a file system without
//! a reported limit counts as unlimited. Quotas and control groups are unknown here: allocation itself fails at
//! them.

use std::fs::{self, File};

use rustix::fs::{FsWord, fstatfs, fstatvfs};
use rustix::process::geteuid;

use crate::error::OpenError;

const MIB: u64 = 1 << 20;

/// Of linux/magic.h; the C library's headers lack it.
pub(crate) const RAMFS_MAGIC: FsWord = 0x8584_58f6;

/// Free bytes and their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FreeSpace {
    place: &'static str,
    free_bytes: u64,
}

/// Checks that `bytes` more fit on the file system of `place`, a file or directory; on tmpfs and ramfs also
/// into memory, since the system would otherwise end processes to find it. `name` is for messages.
///
/// # Errors
/// `NoRoom` with the name of the full place and its free bytes; `Io`.
pub fn check_free_space(place: &File, name: &str, bytes: u64) -> Result<(), OpenError> {
    let spaces = [file_system_space(place, name)?, memory_space(place, name)?];
    check(name, bytes, spaces.into_iter().flatten())
}

fn check(name: &str, bytes: u64, spaces: impl Iterator<Item = FreeSpace>) -> Result<(), OpenError> {
    match spaces.min_by_key(|space| space.free_bytes) {
        Some(FreeSpace { place, free_bytes }) if free_bytes < bytes => Err(OpenError::NoRoom {
            name: name.to_owned(),
            needed_mib: bytes.div_ceil(MIB),
            free_mib: free_bytes / MIB,
            place,
        }),
        _ => Ok(()),
    }
}

fn file_system_space(place: &File, name: &str) -> Result<Option<FreeSpace>, OpenError> {
    let system = fstatvfs(place).map_err(|e| OpenError::io("inspect", name)(e.into()))?;
    // Root may use the blocks that are reserved for root.
    let blocks = if geteuid().is_root() { system.f_bfree } else { system.f_bavail };
    let free_bytes = blocks.saturating_mul(system.f_frsize);
    Ok((system.f_blocks > 0).then_some(FreeSpace { place: "its file system", free_bytes }))
}

fn memory_space(place: &File, name: &str) -> Result<Option<FreeSpace>, OpenError> {
    let system = fstatfs(place).map_err(|e| OpenError::io("inspect", name)(e.into()))?;
    if !matches!(system.f_type, libc::TMPFS_MAGIC | RAMFS_MAGIC) {
        return Ok(None);
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_bytes = memory_bytes(&meminfo, "MemAvailable").map(|available| {
        available.saturating_add(memory_bytes(&meminfo, "SwapFree").unwrap_or_default())
    });
    Ok(free_bytes.map(|free_bytes| FreeSpace { place: "memory", free_bytes }))
}

/// Bytes of memory for a copy that drives no other memory out: half of the available memory.
pub(crate) fn memory_to_spare() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_bytes(&meminfo, "MemAvailable").map_or(u64::MAX, |bytes| bytes / 2)
}

/// The figure under `key` in the text of `/proc/meminfo`, in bytes.
fn memory_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let figure = |line: &str| {
        let kib = line.strip_prefix(key)?.strip_prefix(':')?.trim().strip_suffix(" kB")?;
        kib.parse::<u64>().ok()?.checked_mul(1024)
    };
    meminfo.lines().find_map(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_free_space_is_named() {
        let spaces = [
            FreeSpace { place: "its file system", free_bytes: 64 * MIB },
            FreeSpace { place: "memory", free_bytes: 3 * MIB + 1 },
        ];
        check("pool", 3 * MIB + 1, spaces.into_iter()).unwrap();
        let error = check("pool", 3 * MIB + 2, spaces.into_iter()).unwrap_err().to_string();
        for words in ["pool", "4 MiB", "memory has 3 MiB"] {
            assert!(error.contains(words), "{error}");
        }
        check("pool", u64::MAX, std::iter::empty()).unwrap();
    }

    #[test]
    fn free_memory_is_read() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:   24 kB\nSwapFree: 2 kB\nMemX: 3\n";
        assert_eq!(memory_bytes(meminfo, "MemAvailable"), Some(24 * 1024));
        assert_eq!(memory_bytes(meminfo, "SwapFree"), Some(2048));
        assert_eq!(memory_bytes(meminfo, "Mem"), None);
        assert_eq!(memory_bytes(meminfo, "MemX"), None);
    }
}
