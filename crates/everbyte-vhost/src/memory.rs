//! The memory of a guest, as its virtual machine shares it.
//!
//! Invariant: all accesses are volatile, atomic or copies, because the guest may change any byte at any time.

use std::fs::File;
use std::io;
use std::sync::Arc;

use everbyte_media::PeerMemory;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion,
    GuestMemoryRegionBytes, GuestRegionCollection, GuestUsize, MemoryRegionAddress, VolatileSlice,
};

/// Most regions of a guest.
pub(crate) const REGIONS_MAX: usize = 32;

/// All memory of a guest, by its physical addresses.
pub(crate) type GuestMap = GuestRegionCollection<Region>;

/// A part of a guest's memory in one mapping.
pub(crate) struct Region {
    memory: PeerMemory,
    guest: GuestAddress,
    /// The address of the first byte in the process of the virtual machine.
    user: u64,
}

impl Region {
    /// Maps a region of a guest.
    ///
    /// # Errors
    /// The file is not memory of that size, or the addresses overflow.
    pub(crate) fn map(region: &VhostUserMemoryRegion, file: &File) -> io::Result<Self> {
        let &VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset } =
            region;
        let overflow = || io::Error::new(io::ErrorKind::InvalidInput, "the addresses overflow");
        let len = usize::try_from(memory_size).map_err(io::Error::other)?;
        let fits = |start: u64| start.checked_add(memory_size).is_some();
        if !fits(guest_phys_addr) || !fits(user_addr) {
            return Err(overflow());
        }
        let memory = PeerMemory::map(file, mmap_offset, len)?;
        Ok(Self { memory, guest: GuestAddress(guest_phys_addr), user: user_addr })
    }

    /// Maps `len` bytes of a file that has no guest addresses.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub(crate) fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let memory = PeerMemory::map(file, offset, len)?;
        Ok(Self { memory, guest: GuestAddress(0), user: 0 })
    }

    /// Returns true if this is the described region.
    pub(crate) fn is(&self, region: &VhostUserMemoryRegion) -> bool {
        let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        (self.guest.0, self.user, self.len()) == (guest, user, len)
    }

    /// Returns true if an access hit missing memory.
    pub(crate) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }
}

impl GuestMemoryRegion for Region {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.memory.len() as u64
    }

    fn start_addr(&self) -> GuestAddress {
        self.guest
    }

    fn bitmap(&self) {}

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_>, GuestMemoryError> {
        let invalid = GuestMemoryError::InvalidBackendAddress;
        let Ok(at) = usize::try_from(offset.raw_value()) else { return Err(invalid) };
        if at.checked_add(count).is_none_or(|end| end > self.memory.len()) {
            return Err(invalid);
        }
        let place = self.memory.address().wrapping_add(at);
        // SAFETY: the range lies in the mapping, which lives as long as `self`. All accesses of this process are
        // volatile, and the guest's are those of another process.
        Ok(unsafe { VolatileSlice::new(place, count) })
    }
}

impl GuestMemoryRegionBytes for Region {}

/// Returns the memory of these regions.
///
/// # Errors
/// There is none, there are too many, or they overlap.
pub(crate) fn guest_map(mut regions: Vec<Arc<Region>>) -> io::Result<GuestMap> {
    if regions.len() > REGIONS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many regions"));
    }
    regions.sort_by_key(|region| region.guest);
    GuestMap::from_arc_regions(regions).map_err(io::Error::other)
}

/// Translates an address of the virtual machine's process.
pub(crate) fn guest_address(map: &GuestMap, user: u64) -> Option<GuestAddress> {
    map.iter().find_map(|region| {
        let offset = user.checked_sub(region.user).filter(|offset| *offset < region.len())?;
        Some(GuestAddress(region.guest.0 + offset))
    })
}

/// Returns true if an access hit missing memory.
pub(crate) fn is_lost(map: &GuestMap) -> bool {
    map.iter().any(Region::is_lost)
}
