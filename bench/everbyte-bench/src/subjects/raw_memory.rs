//! The least work of a write to memory: a non-temporal copy and a fence, or a plain copy.
//!
//! Invariants: the creation touches the mapping, so no measurement has page faults. Every range is checked. Copies have
//! whole, aligned lines. Concurrent writers of a line leave unspecified bytes, and no reader checks them.

#![allow(unsafe_code, reason = "non-temporal copies into memory that several threads write")]

use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512,
    _mm512_stream_si512,
};
use std::fs::File;
use std::io;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};

const LINE: usize = 64;
const PAGE: usize = 4096;

/// A mapped file with reads and writes of lines.
pub(crate) struct RawMemory {
    map: MmapRaw,
    copy: CopyLines,
}

/// Copies whole lines to a line-aligned place with non-temporal stores.
type CopyLines = unsafe fn(to: *mut u8, from: *const u8, lines: usize);

impl RawMemory {
    /// Maps the whole of `file`, of one page at least, and touches it. Advises huge pages, as the medium does.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        let map = MmapOptions::new().map_raw(file)?;
        // Large pages only save time, and not every kind of memory has them.
        let _best_effort = map.advise(Advice::HugePage);
        for page in 0..map.len() / PAGE {
            // SAFETY: inside the mapping, which is writable and holds no Rust object.
            unsafe { map.as_mut_ptr().wrapping_add(page * PAGE).write_volatile(1) }
        }
        let wide = is_x86_feature_detected!("avx512f");
        Ok(Self { map, copy: if wide { copy_avx512 } else { copy_sse2 } })
    }

    /// Stores whole lines durably: a non-temporal copy and a fence.
    #[inline]
    pub(crate) fn store_durably(&self, offset: u64, bytes: &[u8]) {
        let place = self.place(offset, bytes.len());
        // SAFETY: `place` has that many bytes, is aligned to lines, and the mapping is no part of
        // `bytes`, because nothing makes references into it.
        unsafe { (self.copy)(place, bytes.as_ptr(), bytes.len() / LINE) }
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() }
    }

    /// Copies bytes out.
    #[inline]
    pub(crate) fn load(&self, offset: u64, out: &mut [u8]) {
        let place = self.place(offset, out.len()).cast_const();
        // SAFETY: `place` has that many bytes and is no part of `out`.
        unsafe { place.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "64-bit targets only")]
    fn place(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = offset as usize;
        assert!(len <= self.map.len() && offset <= self.map.len() - len, "leaves the mapping");
        assert!(offset.is_multiple_of(LINE) && len.is_multiple_of(LINE), "no whole lines");
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

/// # Safety
/// Both ranges are mapped and do not overlap. The processor has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(to: *mut u8, from: *const u8, lines: usize) {
    for line in 0..lines {
        let source = from.wrapping_add(line * LINE).cast::<__m512i>();
        // SAFETY: line `line` of the source.
        let value = unsafe { _mm512_loadu_si512(source) };
        let place = to.wrapping_add(line * LINE).cast::<__m512i>();
        // SAFETY: line `line` of the target, aligned.
        unsafe { _mm512_stream_si512(place, value) }
    }
}

/// # Safety
/// Both ranges are mapped and do not overlap.
unsafe fn copy_sse2(to: *mut u8, from: *const u8, lines: usize) {
    const STEP: usize = 16;
    for part in 0..lines * LINE / STEP {
        let source = from.wrapping_add(part * STEP).cast::<__m128i>();
        // SAFETY: inside the source.
        let value = unsafe { _mm_loadu_si128(source) };
        let place = to.wrapping_add(part * STEP).cast::<__m128i>();
        // SAFETY: inside the target, aligned.
        unsafe { _mm_stream_si128(place, value) }
    }
}

/// Memory of a file without a name, for another process.
///
/// # Errors
/// The system's.
pub(crate) fn shared_memory(len: usize) -> io::Result<(File, MmapMut)> {
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(len as u64)?;
    // SAFETY: nobody truncates the file. The other process stores only to the ranges of requests in flight.
    let memory = unsafe { MmapMut::map_mut(&file) }?;
    Ok((file, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_loaded() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let memory = RawMemory::map(&file).unwrap();
        for copy in [memory.copy, copy_sse2] {
            let memory = RawMemory { map: MmapOptions::new().map_raw(&file).unwrap(), copy };
            let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
            memory.store_durably(4096 - 64, &bytes);
            let mut out = vec![0; 4096];
            memory.load(4096 - 64, &mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    #[should_panic(expected = "leaves the mapping")]
    fn ranges_are_checked() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        RawMemory::map(&file).unwrap().store_durably(4096 - 64, &[0; 128]);
    }
}
