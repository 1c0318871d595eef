//! Numbers of pages, in the order in which they are met and, at the end, in the order of places.
//!
//! Pages are numbered by chunks of 16. Used pages are adjacent often enough that a table of chunks
//! stays in the processor's cache where a table of pages would not. Chunks are found in a flat
//! table for each densely used device, else in a hash map.
//!
//! Invariant: a table of `n` chunks belongs to a device with `n / SPREAD_MAX` of them at least, so
//! memory grows with the pages that are met, not with the places where they lie.

use rustc_hash::FxHashMap;

use super::Problem;
use crate::access::PageAddress;

/// Pages of a chunk.
const CHUNK_PAGES: usize = 16;
/// Entries of a device's table for each of its chunks, at most.
const SPREAD_MAX: usize = 8;
/// No number: a page or chunk that was not met.
const NONE: u32 = u32::MAX;

/// A run of pages of one device: its number there, and the device's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct ChunkAddress {
    device: u32,
    chunk: u64,
}

impl ChunkAddress {
    /// Returns the chunk of a page, and the page's place in it.
    #[inline]
    fn of(PageAddress { device, page }: PageAddress) -> (Self, usize) {
        let per_chunk = CHUNK_PAGES as u64;
        let in_chunk = usize::try_from(page % per_chunk).unwrap_or(0);
        (Self { device, chunk: page / per_chunk }, in_chunk)
    }
}

/// Chunks of one device, by their numbers there.
#[derive(Default, Debug)]
struct DeviceChunks {
    table: Vec<u32>,
    /// Chunks of the device that were met.
    chunks: usize,
}

/// Numbers for pages.
#[derive(Debug)]
pub(super) struct PageNumbers {
    pages_max: u64,
    pages: u32,
    /// The numbers of each chunk's pages.
    numbers: Vec<[u32; CHUNK_PAGES]>,
    addresses: Vec<ChunkAddress>,
    devices: Vec<DeviceChunks>,
    /// Chunks that were beyond the table of their device when they were met.
    elsewhere: FxHashMap<ChunkAddress, u32>,
}

impl PageNumbers {
    /// For `pages_max` pages at most.
    pub(super) fn new(pages_max: u64) -> Self {
        Self {
            pages_max,
            pages: 0,
            numbers: Vec::new(),
            addresses: Vec::new(),
            devices: Vec::new(),
            elsewhere: FxHashMap::default(),
        }
    }

    /// Returns the number of a page, a new one for a new page.
    ///
    /// # Errors
    /// [`Problem::TooMany`] pages.
    #[inline]
    pub(super) fn of(&mut self, address: PageAddress) -> Result<u32, Problem> {
        let (chunk, in_chunk) = ChunkAddress::of(address);
        // The table first: the hash map is only for sparse devices.
        let at = match self.in_table(chunk) {
            NONE => self.find_or_add(chunk)?,
            at => at,
        };
        match self.numbers[at as usize][in_chunk] {
            NONE => self.add_page(at, in_chunk),
            number => Ok(number),
        }
    }

    /// Returns the number of a page that was met.
    #[inline]
    pub(super) fn known(&self, address: PageAddress) -> Option<u32> {
        let (chunk, in_chunk) = ChunkAddress::of(address);
        let at = match self.in_table(chunk) {
            NONE => *self.elsewhere.get(&chunk)?,
            at => at,
        };
        Some(self.numbers[at as usize][in_chunk]).filter(|&number| number != NONE)
    }

    /// Returns a chunk's place in `numbers`; [`NONE`] if its device's table does not have it.
    #[inline]
    fn in_table(&self, address: ChunkAddress) -> u32 {
        let chunk = usize::try_from(address.chunk).unwrap_or(usize::MAX);
        let device = self.devices.get(address.device as usize);
        device.and_then(|device| device.table.get(chunk)).copied().unwrap_or(NONE)
    }

    #[cold]
    fn add_page(&mut self, at: u32, in_chunk: usize) -> Result<u32, Problem> {
        if u64::from(self.pages) >= self.pages_max || self.pages == NONE {
            return Err(self.too_many());
        }
        let number = self.pages;
        self.numbers[at as usize][in_chunk] = number;
        self.pages += 1;
        Ok(number)
    }

    #[inline(never)]
    fn find_or_add(&mut self, address: ChunkAddress) -> Result<u32, Problem> {
        let known = self.elsewhere.get(&address).copied();
        let at = match known {
            Some(at) => at,
            None => self.add_chunk(address)?,
        };
        // A device that became dense moves its chunks into the table one by one, as they are used.
        if !self.put_into_table(address, at) && known.is_none() {
            self.elsewhere.insert(address, at);
        }
        Ok(at)
    }

    fn add_chunk(&mut self, address: ChunkAddress) -> Result<u32, Problem> {
        let at = u32::try_from(self.numbers.len()).map_err(|_| self.too_many())?;
        self.numbers.push([NONE; CHUNK_PAGES]);
        self.addresses.push(address);
        let device = address.device as usize;
        if device >= self.devices.len() {
            self.devices.resize_with(device + 1, DeviceChunks::default);
        }
        self.devices[device].chunks += 1;
        Ok(at)
    }

    /// Puts a chunk into its device's table. Returns false if that would be too sparse.
    fn put_into_table(&mut self, address: ChunkAddress, at: u32) -> bool {
        let device = &mut self.devices[address.device as usize];
        // A table may be eight times as long as its device has chunks, which bounds its memory.
        let most = device.chunks.saturating_mul(SPREAD_MAX);
        let Some(chunk) = usize::try_from(address.chunk).ok().filter(|&chunk| chunk < most) else {
            return false;
        };
        if chunk >= device.table.len() {
            device.table.resize(chunk + 1, NONE);
        }
        device.table[chunk] = at;
        true
    }

    fn too_many(&self) -> Problem {
        Problem::TooMany { what: "distinct pages", max: self.pages_max }
    }

    /// Renumbers the pages in the order of their addresses. Returns the addresses in that order,
    /// and the new number for each former one.
    pub(super) fn order(&mut self) -> (Vec<PageAddress>, Vec<u32>) {
        let mut chunks: Vec<(ChunkAddress, u32)> =
            self.addresses.iter().copied().zip(0..).collect();
        // By device, then by place: pages of a device become neighbours in the order of sectors.
        chunks.sort_unstable();
        let mut addresses = Vec::with_capacity(self.pages as usize);
        let mut places = vec![NONE; self.pages as usize];
        for (ChunkAddress { device, chunk }, at) in chunks {
            let numbers = self.numbers[at as usize].iter_mut();
            for (page, number) in (chunk * CHUNK_PAGES as u64..).zip(numbers) {
                if *number != NONE {
                    let place = u32::try_from(addresses.len()).unwrap_or(NONE);
                    // Both directions in one pass: the table learns the new number, `places` maps
                    // the old one.
                    places[std::mem::replace(number, place) as usize] = place;
                    addresses.push(PageAddress { device, page });
                }
            }
        }
        (addresses, places)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = PageAddress> {
        let page = prop_oneof![0..600_u64, 0..60_000_u64, any::<u64>().prop_map(|page| page >> 9)];
        (0..3_u32, page).prop_map(|(device, page)| PageAddress { device, page })
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_a_map(pages in prop::collection::vec(address(), 1..2000)) {
            let (mut numbers, mut model) = (PageNumbers::new(1 << 32), BTreeMap::new());
            for page in pages {
                let next = u32::try_from(model.len()).unwrap();
                prop_assert_eq!(numbers.of(page), Ok(*model.entry(page).or_insert(next)));
            }
            let (addresses, places) = numbers.order();
            prop_assert!(addresses.iter().eq(model.keys()));
            for (place, (page, number)) in (0..).zip(&model) {
                prop_assert_eq!(places[*number as usize], place);
                prop_assert_eq!(numbers.known(*page), Some(place));
                let beside = PageAddress { page: page.page ^ 1, ..*page };
                prop_assert_eq!(numbers.known(beside).is_some(), model.contains_key(&beside));
            }
        }
    }

    #[test]
    fn tables_grow_with_the_pages_that_are_met() {
        let mut numbers = PageNumbers::new(1 << 32);
        for page in 0..10_000_u64 {
            numbers.of(PageAddress { device: 0, page: page << 30 }).unwrap();
            numbers.of(PageAddress { device: 1, page: (page * 7919 % 10_000) << 4 }).unwrap();
        }
        for device in &numbers.devices {
            assert!(device.table.len() <= device.chunks * SPREAD_MAX);
        }
        // Chunks that were met before their table reached so far are found in it since.
        for page in 0..10_000_u64 {
            numbers.of(PageAddress { device: 1, page: page << 4 }).unwrap();
            assert_ne!(numbers.in_table(ChunkAddress { device: 1, chunk: page }), NONE);
        }
    }
}
