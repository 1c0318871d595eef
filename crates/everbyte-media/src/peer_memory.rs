//! Memory of another process: a mapping of a file that the process can truncate at any time.
//!
//! Invariant: the whole range stays mapped until the drop. If a page of the file is missing, private zeroes
//! replace the whole mapping, so each access ends and no later access faults.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_void;

use crate::fault_handler::{FaultRange, PageFault, ResolveFaults};

const PAGE: u64 = 4096;

/// The magic number of hugetlbfs (`statfs`).
const HUGETLBFS: i64 = 0x9584_58f6;

/// The magic numbers of file systems with a server: FUSE, NFS, 9P, SMB and Ceph. The server can be the other
/// process, and a page fault would wait for it without an end.
const SERVED: [i64; 6] = [0x6573_5546, 0x6969, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400];

/// A shared mapping of another process's file, such as a guest's memory.
///
/// The other process may change the bytes at any time, so no caller makes a reference to them. If the other
/// process truncates the file, later loads return zeroes, stores have no effect, and
/// [`is_lost`](Self::is_lost) returns true. Bytes that a caller loaded are valid only if it returns false after
/// the loads.
pub struct PeerMemory {
    address: *mut u8,
    len: usize,
    /// Dropped before the mapping: then no fault is resolved in foreign memory.
    range: Option<FaultRange>,
    mapped: Box<MappedFile>,
}

/// The mapping, as the handler of faults needs it.
struct MappedFile {
    base: usize,
    len: usize,
    is_lost: AtomicBool,
}

// SAFETY: the handler stores to an atomic and makes one system call.
unsafe impl ResolveFaults for MappedFile {
    fn resolve(&self, _: PageFault) -> bool {
        // Before the zeroes: a caller that loads them must find out.
        self.is_lost.store(true, Ordering::SeqCst);
        let place = ptr::without_provenance_mut(self.base);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: replaces the mapping that this value describes. It outlives the access that faulted.
        let zeroes = unsafe { libc::mmap(place, self.len, protection, flags, -1, 0) };
        zeroes != libc::MAP_FAILED
    }
}

// SAFETY: the mapping has no thread affinity. The pointer never changes, and the flag is an atomic.
unsafe impl Send for PeerMemory {}
// SAFETY: as above.
unsafe impl Sync for PeerMemory {}

impl PeerMemory {
    /// Maps `len` bytes of `file` from `offset` on, for loads and stores.
    ///
    /// # Errors
    /// The file is not a regular file, is on a file system with a server, or is shorter than the range. `len` is 0.
    /// The system cannot map the range, or the process has no place for another protected range.
    pub fn map(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned());
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(invalid("the memory is not a regular file"));
        }
        let end = offset.checked_add(len as u64).filter(|end| *end <= found.len());
        if len == 0 || end.is_none() {
            return Err(invalid("the file is shorter than its memory"));
        }
        let page = page_of(file)?;
        // A mapping begins and ends at pages, and those of huge pages are longer.
        let skew = to_usize(offset % page);
        let mapped_len =
            skew.checked_add(len).and_then(|len| len.checked_next_multiple_of(to_usize(page)));
        let mapped_len = mapped_len.ok_or_else(|| invalid("the range is too long"))?;
        let start = i64::try_from(offset - offset % page).map_err(io::Error::other)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a free place.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), mapped_len, protection, flags, file.as_raw_fd(), start)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = Box::new(MappedFile {
            base: base.expose_provenance(),
            len: mapped_len,
            is_lost: AtomicBool::new(false),
        });
        let address = base.cast::<u8>().wrapping_add(skew);
        let mut memory = Self { address, len, range: None, mapped };
        // SAFETY: the box keeps its place until the drop, which ends the range first. Nobody touches the
        // addresses then.
        let range = unsafe {
            FaultRange::register(memory.mapped.base, mapped_len, &raw const *memory.mapped)
        }?;
        memory.range = Some(range.ok_or_else(|| io::Error::other("too many protected ranges"))?);
        Ok(memory)
    }

    /// Returns the address of the first byte, valid until the drop.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Returns the number of bytes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if an access hit a missing page.
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.mapped.is_lost.load(Ordering::SeqCst)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        self.range = None;
        let base = ptr::with_exposed_provenance_mut::<c_void>(self.mapped.base);
        // SAFETY: the own mapping. Callers use its address only during its life.
        let _cannot_fail = unsafe { libc::munmap(base, self.mapped.len) };
    }
}

/// The size of the file's pages in bytes.
fn page_of(file: &File) -> io::Result<u64> {
    let system = rustix::fs::fstatfs(file)?;
    if SERVED.contains(&system.f_type) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the file system has a server"));
    }
    match system.f_type == HUGETLBFS {
        true => Ok(u64::try_from(system.f_bsize).unwrap_or(PAGE)),
        false => Ok(PAGE),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "both are 64 bits wide")]
const fn to_usize(bytes: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) }
    bytes as usize
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn load(memory: &PeerMemory, at: usize) -> u8 {
        assert!(at < memory.len());
        // SAFETY: inside the mapping.
        unsafe { memory.address().wrapping_add(at).read_volatile() }
    }

    #[test]
    fn truncated_peer_memory_reads_zero() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 * PAGE).unwrap();
        file.write_all_at(&[7; 9], PAGE).unwrap();
        let memory = PeerMemory::map(&file, PAGE, to_usize(3 * PAGE)).unwrap();
        assert_eq!((load(&memory, 8), load(&memory, 9)), (7, 0));
        file.set_len(2 * PAGE).unwrap();
        assert_eq!((load(&memory, 8), memory.is_lost()), (7, false));
        // SAFETY: inside the mapping.
        unsafe { memory.address().wrapping_add(to_usize(2 * PAGE)).write_volatile(1) };
        assert!(memory.is_lost());
        assert_eq!(load(&memory, 8), 0, "all of it is replaced");
        assert_eq!(load(&memory, to_usize(2 * PAGE)), 1, "a store again, to private memory");
        assert_eq!(file.metadata().unwrap().len(), 2 * PAGE);
    }

    #[test]
    fn unaligned_range_of_file_is_mapped() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[3; 5000], 0).unwrap();
        let memory = PeerMemory::map(&file, 4097, 903).unwrap();
        assert_eq!(load(&memory, 902), 3);
        for (offset, len) in [(4097, 904), (u64::MAX, 2), (0, 0), (5000, 1)] {
            assert!(PeerMemory::map(&file, offset, len).is_err(), "{offset}+{len}");
        }
        let folder = File::open("/").unwrap();
        assert!(PeerMemory::map(&folder, 0, 1).is_err());
    }
}
