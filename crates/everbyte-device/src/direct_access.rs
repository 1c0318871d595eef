//! Direct access to the bytes of a device in memory.
//!
//! Owns the contract between a device and a borrower of its bytes. Knows no memory.

/// Bytes of a device in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedBytes {
    /// Address of the first byte. Other processes may change the bytes, so a borrower makes no
    /// reference to them.
    pub address: *const u8,
    /// Number of the first byte in the device's own memory. For the device only.
    pub place: u64,
    /// Number of bytes.
    pub len: usize,
}

/// A device whose bytes are in memory.
///
/// # Contract
/// - The mapped bytes are those of the device until a write, discard or zeroing of one of their
///   blocks of 4 KiB, a shrink or deletion of the device, or its drop. The borrower prevents these. After that,
///   other bytes may be at the address. The address stays readable until the drop of the device.
/// - Another 4 KiB behind the mapped bytes are readable and have no meaning. So a program does not crash if it
///   reads beyond the end of a damaged page.
/// - Bytes that are known to be unreadable or corrupt are not mapped.
/// - Memory can fail later. It reads as zeroes from then on, and `has_failed` returns true. Bytes that a
///   borrower loaded are valid only if `has_failed` returns false after the loads.
pub trait DirectAccess {
    /// Returns the place of `len` bytes from `offset` on, if they are in memory in one piece. Holes are
    /// not. `None` is not an error: a read returns the bytes.
    fn map_range(&self, offset: u64, len: usize) -> Option<MappedBytes>;

    /// Returns true if memory under `mapped` has failed.
    fn has_failed(&self, mapped: &MappedBytes) -> bool;
}
