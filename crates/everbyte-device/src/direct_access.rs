//! Devices whose bytes can be used where they lie.
//!
//! Owns the contract between who lends bytes and who loads them. Knows no memory.

/// Bytes of a device, where they lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The address of the first one. What it points to is not this process's alone, so nobody makes a
    /// reference of it.
    pub address: *const u8,
    /// The number of the first one in the memory that the device knows; of use to the device alone.
    pub place: u64,
    /// Bytes of it.
    pub len: usize,
}

/// A device that can tell where bytes of it lie.
///
/// # Contract
/// - Lent bytes are those of the device for as long as nobody writes, discards or zeroes any block of
///   4 KiB in which some of them lie, the device is neither made smaller nor deleted, and it is not
///   dropped. Whoever borrows sees to it that nobody does. After that the address may lead to bytes of
///   anything else; it stays readable until the device is dropped.
/// - Another 4 KiB behind the lent bytes can be loaded, too, and mean nothing: programs that look beyond the end of
///   a damaged page by mistake do not crash.
/// - Bytes that are known to be unreadable, or not to be what was stored, are not lent.
/// - Memory can fail later. It reads as zeroes from then on, and `has_failed` says so; whatever was
///   loaded since the bytes were lent counts only if `has_failed` says no after the loads.
pub trait Lends {
    /// Tells where `len` bytes from `offset` on lie, if they do so in one piece: holes lie nowhere.
    /// `None` is no error: what is not lent can be read.
    fn lend(&self, offset: u64, len: usize) -> Option<Lent>;

    /// Returns true if memory of `lent` has failed.
    fn has_failed(&self, lent: &Lent) -> bool;
}
