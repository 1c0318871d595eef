//! Costs of the steps of memory and of the backing device, one at a time, and the rule for jumps.
//!
//! Absolute times are only as good as the figures. They serve to compare policies by ratios. Each
//! set of figures states which of them were published and which are our own assumptions.

use serde::{Deserialize, Serialize};

use crate::access::{PageAddress, PageNo};

/// Costs of a memory, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemoryCosts {
    /// Each read or write.
    pub operation_ns: f64,
    /// Each line of 64 bytes read.
    pub read_line_ns: f64,
    /// Each line of 64 bytes written.
    pub write_line_ns: f64,
}

/// Costs of a backing device, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct BackingCosts {
    /// Each page read.
    pub read_page_ns: f64,
    /// Additional time if the page does not follow the previously read one.
    pub read_jump_ns: f64,
    /// Each page written.
    pub write_page_ns: f64,
    /// Additional time if the page does not follow the previously written one.
    pub write_jump_ns: f64,
    /// From reading to writing and back, once in `batch_writes` writes.
    pub turn_ns: f64,
    /// Writes that are gathered before the device turns to them; at least 1.
    pub batch_writes: u32,
}

impl BackingCosts {
    /// Largest distance in pages between two steps without a jump, including the second.
    pub const GAP_PAGES: u64 = 8;

    /// Returns the time of a page written without a jump, with its share of a turn, in nanoseconds.
    #[must_use]
    pub fn written_page_ns(&self) -> f64 {
        self.write_page_ns + self.turn_ns / f64::from(self.batch_writes)
    }

    /// An SD card that just meets application performance class A1 (SD Specification 5.1, SD
    /// Association, 2016): 1,500 random reads and 500 random writes of 4 KiB a second, 10 MB/s
    /// sustained. Assumed: 40 MB/s when reading in order, of which the class says nothing.
    pub const SD_CARD: Self = Self {
        read_page_ns: 102_000.0,
        read_jump_ns: 565_000.0,
        write_page_ns: 410_000.0,
        write_jump_ns: 1_590_000.0,
        turn_ns: 0.0,
        batch_writes: 1,
    };

    /// A SATA solid-state disk at queue depth 1: 10,000 random reads of 4 KiB a second, 500 MB/s in
    /// order. These are rounded from the data sheet of Samsung's 850 EVO (2014: 10,000, and 540 and
    /// 520 MB/s). Assumed: 20,000 random writes a second, half of its 40,000, for a used disk.
    pub const SSD: Self = Self {
        read_page_ns: 8_200.0,
        read_jump_ns: 91_800.0,
        write_page_ns: 8_200.0,
        write_jump_ns: 41_800.0,
        turn_ns: 0.0,
        batch_writes: 1,
    };

    /// An NVMe solid-state disk at queue depth 1: 22,000 random reads of 4 KiB a second, 7,000 MB/s
    /// read and 5,000 MB/s written in order, from the data sheet of Samsung's 980 PRO with 1 TB
    /// (2020). Assumed: 30,000 random writes a second, half of its 60,000, for a used disk.
    pub const NVME: Self = Self {
        read_page_ns: 585.0,
        read_jump_ns: 44_870.0,
        write_page_ns: 819.0,
        write_jump_ns: 32_514.0,
        turn_ns: 0.0,
        batch_writes: 1,
    };

    /// A disk of 7,200 turns a minute: 8.5 ms to seek on average and 150 MB/s, as published for
    /// Seagate's desktop disks (Barracuda 7200.14, 2012: 8.5 ms and 156 MB/s), and 4.17 ms for half
    /// a turn, by arithmetic. Assumed: every jump takes an average seek, and the system gathers 32
    /// writes, the depth of a SATA queue.
    pub const HDD: Self = Self {
        read_page_ns: 27_300.0,
        read_jump_ns: 12_670_000.0,
        write_page_ns: 27_300.0,
        write_jump_ns: 12_670_000.0,
        turn_ns: 25_340_000.0,
        batch_writes: 32,
    };
}

/// Costs of everything.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// DRAM.
    pub dram: MemoryCosts,
    /// SCM.
    pub scm: MemoryCosts,
    /// The backing device.
    pub backing: BackingCosts,
}

impl Costs {
    /// Returns DRAM at 50 ns a line; SCM at 100 ns a line read and 350 ns a line written. The times
    /// are assumed. A write takes seven times as long as in DRAM, within the six to ten times of
    /// the CLOCK-DWF paper for PCM (Lee, Bahn and Noh, IEEE Trans. Computers 63(9), 2014). With 711
    /// ns an operation of SCM, a 2-byte write takes 1/32 of a 4 KiB one and a 2 KiB write half of
    /// it, as measured in the hybrid cache's paper.
    #[must_use]
    pub const fn with_backing(backing: BackingCosts) -> Self {
        Self {
            dram: MemoryCosts { operation_ns: 50.0, read_line_ns: 50.0, write_line_ns: 50.0 },
            scm: MemoryCosts { operation_ns: 711.0, read_line_ns: 100.0, write_line_ns: 350.0 },
            backing,
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::with_backing(BackingCosts::SD_CARD)
    }
}

/// Returns true if a step at page `here` of a device needs no jump after one at its page `before`.
#[inline]
pub(crate) fn are_near(before: u32, here: u32) -> bool {
    let gap = here.wrapping_sub(before).wrapping_sub(1);
    u64::from(gap) < BackingCosts::GAP_PAGES
}

/// Returns true if a step at `here` needs no jump after one at `before`. Numbers are in the order
/// of addresses, so pages whose numbers are far apart are, too, and need not be looked up.
#[inline]
pub(crate) fn follows(addresses: &[PageAddress], before: Option<PageNo>, here: PageNo) -> bool {
    before.is_some_and(|before| {
        are_near(before.0, here.0) && {
            let (before, here) = (addresses[before.0 as usize], addresses[here.0 as usize]);
            here.device == before.device && here.page - before.page <= BackingCosts::GAP_PAGES
        }
    })
}
