//! Contents of a volume in the oracle, and the bytes of workloads.
//!
//! Invariants: blocks of zeroes are left out, so two contents are equal exactly if they read the
//! same; the probe's blocks of volume `a` are never in it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use everbyte_block::BlockVolume;
use everbyte_crash::SimMedium;
use everbyte_device::BlockDevice;

use crate::probe::PROBE_BLOCKS;

pub(crate) const BLOCK: u64 = 4096;

type Bytes = Arc<[u8; 4096]>;

/// A volume's size and bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Content {
    size_bytes: u64,
    blocks: BTreeMap<u64, Bytes>,
}

impl Content {
    /// A volume of zeroes.
    pub(crate) fn zeroes(size_bytes: u64) -> Self {
        Self { size_bytes, blocks: BTreeMap::new() }
    }

    /// Reads the present contents of `volume`.
    pub(crate) fn of(volume: &BlockVolume<SimMedium>) -> Result<Self, String> {
        let size_bytes = volume.geometry().size_bytes;
        let mut content = Self::zeroes(size_bytes);
        let mut at = 0;
        while at < size_bytes {
            let extents = volume.status(at, size_bytes - at, 64).map_err(|e| e.to_string())?;
            for extent in extents {
                if !extent.zero {
                    content.read(volume, at, extent.len)?;
                }
                at += extent.len;
            }
        }
        Ok(content)
    }

    fn read(&mut self, volume: &BlockVolume<SimMedium>, at: u64, len: u64) -> Result<(), String> {
        for block in at / BLOCK..(at + len).div_ceil(BLOCK) {
            if block < PROBE_BLOCKS && volume.volume().name() == "a" {
                continue;
            }
            let mut bytes = [0; 4096];
            let start = block * BLOCK;
            let len = usize::try_from(BLOCK.min(self.size_bytes - start)).unwrap();
            volume.read(start, &mut bytes[..len]).map_err(|e| e.to_string())?;
            self.put(block, bytes);
        }
        Ok(())
    }

    fn put(&mut self, block: u64, bytes: [u8; 4096]) {
        if bytes == [0; 4096] {
            self.blocks.remove(&block);
        } else {
            self.blocks.insert(block, Arc::new(bytes));
        }
    }

    fn block(&self, block: u64) -> [u8; 4096] {
        self.blocks.get(&block).map_or([0; 4096], |bytes| **bytes)
    }

    /// The bytes at `at`.
    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        (at..at + len as u64)
            .map(|i| self.block(i / BLOCK)[usize::try_from(i % BLOCK).unwrap()])
            .collect()
    }

    /// The same with `bytes` at `at`.
    #[must_use]
    pub(crate) fn with(&self, at: u64, bytes: &[u8]) -> Self {
        let mut next = self.clone();
        let mut done = 0;
        while done < bytes.len() {
            let now = at + done as u64;
            let start = usize::try_from(now % BLOCK).unwrap();
            let len = (4096 - start).min(bytes.len() - done);
            let mut block = next.block(now / BLOCK);
            block[start..start + len].copy_from_slice(&bytes[done..done + len]);
            next.put(now / BLOCK, block);
            done += len;
        }
        next
    }

    /// The same with zeroes at `at`.
    #[must_use]
    pub(crate) fn zeroed(&self, at: u64, len: u64) -> Self {
        let mut next = self.clone();
        let touched: Vec<u64> =
            self.blocks.range(at / BLOCK..(at + len).div_ceil(BLOCK)).map(|(&b, _)| b).collect();
        for block in touched {
            let mut bytes = next.block(block);
            let (start, end) = (at.max(block * BLOCK), (at + len).min((block + 1) * BLOCK));
            let from = usize::try_from(start - block * BLOCK).unwrap();
            let to = usize::try_from(end - block * BLOCK).unwrap();
            bytes[from..to].fill(0);
            next.put(block, bytes);
        }
        next
    }

    /// The same with another size: cut off, or grown by zeroes.
    #[must_use]
    pub(crate) fn resized(&self, size_bytes: u64) -> Self {
        let beyond = self.size_bytes.saturating_sub(size_bytes);
        let mut next = self.zeroed(size_bytes, beyond);
        next.size_bytes = size_bytes;
        next
    }

    /// Describes the first difference of two contents, for a message.
    pub(crate) fn first_difference(&self, other: &Self) -> String {
        if self.size_bytes != other.size_bytes {
            return format!("{} bytes large instead of {}", self.size_bytes, other.size_bytes);
        }
        let blocks = self.blocks.keys().chain(other.blocks.keys());
        let Some(&block) = blocks.filter(|b| self.blocks.get(b) != other.blocks.get(b)).min()
        else {
            return "no difference".to_owned();
        };
        let (a, b) = (self.block(block), other.block(block));
        let at = (0..4096).find(|&i| a[i] != b[i]).unwrap_or(0);
        let differ = (0..4096).filter(|&i| a[i] != b[i]).count();
        format!("block {block} differs in {differ} bytes from {at} on ({} for {})", a[at], b[at])
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, blocks {:?}", self.size_bytes, self.blocks.keys())
    }
}

/// `len` bytes from `seed` and, being different in every line, from their place.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let byte = |i: u64| {
        let mixed = (i / 8 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(seed)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)).to_le_bytes()[usize::try_from(i % 8).unwrap()]
    };
    (at..at + len as u64).map(byte).collect()
}
