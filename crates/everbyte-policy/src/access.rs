//! Accesses to pages, and traces of them.
//!
//! Invariant: the pages of a trace are numbered from 0 without a gap, in the order of device and
//! place on it. So a policy's tables are flat arrays, and the order of numbers is the order in
//! which the backing device is written best.

/// Bytes of a page.
pub const PAGE_BYTES: u32 = 4096;

/// A page of a trace, `0 .. PageTrace::pages()`, in the order of places on the backing device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNo(pub u32);

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads the bytes.
    Read,
    /// Replaces the bytes.
    Write,
}

/// One request's part in one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The page.
    pub page: PageNo,
    /// First byte in the page, `0 .. PAGE_BYTES`.
    pub start: u16,
    /// Bytes, at least 1; `start + len` is at most `PAGE_BYTES`.
    pub len: u16,
    /// Reads or replaces them.
    pub op: Op,
}

/// Place of a page: device and page number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageAddress {
    /// Number of the device or file in the trace.
    pub device: u32,
    /// Number of the page on it, in units of `PAGE_BYTES`.
    pub page: u64,
}

/// A trace, cut into pages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PageTrace {
    /// Accesses in the order of time. The parts of one request follow each other.
    pub accesses: Vec<Access>,
    /// Address of each page number, ascending.
    pub addresses: Vec<PageAddress>,
    /// Requests that the accesses are parts of.
    pub requests: u64,
}

impl PageTrace {
    /// Distinct pages: the trace's footprint.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the number of the page at `address`; `None` if the trace does not touch it. With it
    /// a request can be placed on a device that has the trace's pages and nothing else.
    #[must_use]
    pub fn number_of(&self, address: PageAddress) -> Option<PageNo> {
        let at = self.addresses.binary_search(&address).ok()?;
        u32::try_from(at).ok().map(PageNo)
    }
}
