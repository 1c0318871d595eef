//! The processor's part: flush instructions, the store fence, streamed copies, line compares.
//!
//! Invariants: the instructions are chosen once per process from the processor's features, and a kernel is
//! only reachable with its features present. Kernels take raw pointers, never references into the medium.
//! They know nothing of media, kinds or counters.
//!
//! Assembly copies all memory with concurrent loads or stores, and the compiler knows only that it touches
//! memory: for a copy of Rust's own a race would be undefined behaviour.
//!
//! On x86-64 a release store orders all stores except non-temporal ones: other threads can miss a streamed
//! copy until the copying thread has fenced.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, __m128i, __m256i, __m512i, _MM_HINT_T0, _mm_cmpeq_epi8,
    _mm_loadu_si128, _mm_movemask_epi8, _mm_prefetch, _mm_stream_si64, _mm_stream_si128,
    _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8,
    _mm512_cmpneq_epi64_mask, _mm512_loadu_si512,
};
use std::sync::LazyLock;

use crate::units::{BLOCK, LINE, LineMask};

/// Copies `lines` lines from anywhere to a line-aligned place with non-temporal stores.
type CopyLines = unsafe fn(to: *mut u8, from: *const u8, lines: usize);
/// Copies `lines` lines from anywhere to anywhere, by instructions outside Rust.
type CopyShared = unsafe fn(to: *mut u8, from: *const u8, lines: usize);
/// Compares `lines` (at most 64) lines; bit `i` is set where line `i` differs.
type DiffLines = unsafe fn(stored: *const u8, new: *const u8, lines: usize) -> u64;

/// The instruction for the write-back of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlushKind {
    /// Writes back and keeps the line cached; ordered by `sfence`.
    Clwb,
    /// Writes back and evicts; ordered by `sfence`.
    Clflushopt,
    /// Writes back and evicts, one line at a time.
    Clflush,
}

/// Instructions chosen for this processor.
pub(crate) struct Cpu {
    flush: FlushKind,
    vector_name: &'static str,
    copy_lines: CopyLines,
    copy_shared: CopyShared,
    diff_lines: DiffLines,
}

static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::detect);

impl Cpu {
    /// The processor this process runs on.
    pub(crate) fn get() -> &'static Self {
        &CPU
    }

    /// Name of the flush instruction.
    pub(crate) fn flush_name(&self) -> &'static str {
        match self.flush {
            FlushKind::Clwb => "clwb",
            FlushKind::Clflushopt => "clflushopt",
            FlushKind::Clflush => "clflush",
        }
    }

    /// Name of the vector extension for copies and comparisons.
    pub(crate) fn vector_name(&self) -> &'static str {
        self.vector_name
    }

    /// Starts the write-back of every line touched by `at .. at + len`.
    ///
    /// # Safety
    /// The range is mapped.
    pub(crate) unsafe fn flush(&self, at: *mut u8, len: usize) {
        let skew = at.addr() % LINE;
        for line in 0..(skew + len).div_ceil(LINE) {
            let place = at.wrapping_sub(skew).wrapping_add(line * LINE);
            // SAFETY: the line holds bytes of the range, which the caller says is mapped; pages
            // are whole numbers of lines.
            unsafe { flush_line(self.flush, place) }
        }
    }

    /// Copies `len` bytes from `from` to `to`. Either may be memory with concurrent loads and stores, in this
    /// process or another one. A race leaves some mixture of the bytes there, and nothing worse.
    ///
    /// # Safety
    /// The ranges are mapped, the second for writing, and do not overlap; and each holds no Rust object that
    /// anyone else refers to.
    #[inline]
    pub(crate) unsafe fn copy_shared(&self, to: *mut u8, from: *const u8, len: usize) {
        let lines = len / LINE;
        if lines > 0 {
            // SAFETY: the first lines of the caller's ranges.
            unsafe { (self.copy_shared)(to, from, lines) }
        }
        let done = lines * LINE;
        if done < len {
            // SAFETY: the rest of them.
            unsafe { copy_rest(to.wrapping_add(done), from.wrapping_add(done), len - done) }
        }
    }

    /// Copies `bytes` to `at`: whole lines with non-temporal stores, partial ones with ordinary stores,
    /// flushed if `flush_edges`. Durable, and visible to other threads for certain, after this thread's next
    /// [`store_fence`].
    ///
    /// # Safety
    /// `at .. at + bytes.len()` is mapped writable and holds no Rust object.
    pub(crate) unsafe fn stream(&self, at: *mut u8, bytes: &[u8], flush_edges: bool) {
        let head_len = (at.addr().next_multiple_of(LINE) - at.addr()).min(bytes.len());
        let (head, rest) = bytes.split_at(head_len);
        let (body, tail) = rest.split_at(rest.len() / LINE * LINE);
        let body_at = at.wrapping_add(head.len());
        // SAFETY: a part of the caller's range.
        unsafe { self.store_edge(at, head, flush_edges) }
        if let Ok(line) = body.try_into() {
            // SAFETY: a part of the caller's range that starts at a line.
            unsafe { stream_line(body_at, line) }
        } else if !body.is_empty() {
            // SAFETY: a part of the caller's range that starts at a line and has whole lines.
            unsafe { (self.copy_lines)(body_at, body.as_ptr(), body.len() / LINE) }
        }
        // SAFETY: a part of the caller's range.
        unsafe { self.store_edge(body_at.wrapping_add(body.len()), tail, flush_edges) }
    }

    /// The lines of the block at `block` where bytes `start .. start + new.len()` differ from
    /// `new`. Panics if the range leaves the block.
    ///
    /// # Safety
    /// `block .. block + 4096` is mapped, and `block` is aligned to lines.
    pub(crate) unsafe fn changed(&self, block: *const u8, start: usize, new: &[u8]) -> LineMask {
        assert!(start <= BLOCK && new.len() <= BLOCK - start, "compare leaves the block");
        let head_len = (start.next_multiple_of(LINE) - start).min(new.len());
        let (head, rest) = new.split_at(head_len);
        let (body, tail) = rest.split_at(rest.len() / LINE * LINE);
        let body_start = start + head.len();
        let tail_start = body_start + body.len();
        let mut mask = 0;
        // SAFETY: inside the block, by the assertion.
        if unsafe { edge_differs(block.wrapping_add(start), head) } {
            mask |= 1 << (start / LINE);
        }
        if !body.is_empty() {
            let stored = block.wrapping_add(body_start);
            // SAFETY: inside the block, by the assertion; `body` has that many whole lines.
            let differ = unsafe { (self.diff_lines)(stored, body.as_ptr(), body.len() / LINE) };
            mask |= differ << (body_start / LINE);
        }
        // SAFETY: inside the block, by the assertion.
        if unsafe { edge_differs(block.wrapping_add(tail_start), tail) } {
            mask |= 1 << (tail_start / LINE);
        }
        LineMask(mask)
    }

    fn detect() -> Self {
        let flush = detect_flush();
        if is_x86_feature_detected!("avx512f") {
            Self {
                flush,
                vector_name: "avx512",
                copy_lines: copy_avx512,
                copy_shared: if has_fast_short_strings() { shared_strings } else { shared_avx512 },
                diff_lines: diff_avx512,
            }
        } else if is_x86_feature_detected!("avx2") {
            Self {
                flush,
                vector_name: "avx2",
                copy_lines: copy_avx2,
                copy_shared: shared_avx2,
                diff_lines: diff_avx2,
            }
        } else {
            Self {
                flush,
                vector_name: "sse2",
                copy_lines: copy_sse2,
                copy_shared: shared_sse2,
                diff_lines: diff_sse2,
            }
        }
    }

    /// Stores fewer bytes than a line. The caller guarantees that they lie in one line.
    ///
    /// # Safety
    /// As for [`Self::stream`].
    unsafe fn store_edge(&self, at: *mut u8, bytes: &[u8], flush: bool) {
        if bytes.is_empty() {
            return;
        }
        // SAFETY: the caller's range, which cannot overlap `bytes` as it holds no Rust object.
        unsafe { copy_rest(at, bytes.as_ptr(), bytes.len()) }
        if flush {
            // SAFETY: mapped, says the caller.
            unsafe { self.flush(at, bytes.len()) }
        }
    }
}

/// Prefetches the first line of `what`, so that the fetch overlaps with the preceding work.
#[inline]
pub fn prefetch<T>(what: &T) {
    prefetch_line(std::ptr::from_ref(what).cast());
}

/// Prefetches the line at `place`, mapped or not.
#[inline]
pub(crate) fn prefetch_line(place: *const u8) {
    // SAFETY: a prefetch has no effect but on the cache, and does not fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
}

/// Completes this thread's flushes and streamed copies, and orders all its stores before all
/// its later ones.
pub(crate) fn store_fence() {
    // SAFETY: the instruction touches neither registers, flags nor stack. It is not marked as
    // free of memory effects, so the compiler moves no access across it either.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// The leaf of CPUID with the processor's features.
const LEAF_FEATURES: u32 = 7;

fn detect_flush() -> FlushKind {
    const EBX_CLFLUSHOPT: u32 = 1 << 23;
    const EBX_CLWB: u32 = 1 << 24;
    if __cpuid(0).eax < LEAF_FEATURES {
        return FlushKind::Clflush;
    }
    let features = __cpuid_count(LEAF_FEATURES, 0).ebx;
    if features & EBX_CLWB != 0 {
        FlushKind::Clwb
    } else if features & EBX_CLFLUSHOPT != 0 {
        FlushKind::Clflushopt
    } else {
        FlushKind::Clflush
    }
}

/// # Safety
/// `place` is mapped, and the processor knows the instruction.
#[inline]
unsafe fn flush_line(kind: FlushKind, place: *mut u8) {
    match kind {
        FlushKind::Clwb => {
            // SAFETY: mapped and supported, says the caller; flushing changes no contents.
            unsafe { asm!("clwb [{}]", in(reg) place, options(nostack, preserves_flags)) }
        }
        FlushKind::Clflushopt => {
            // SAFETY: as above.
            unsafe { asm!("clflushopt [{}]", in(reg) place, options(nostack, preserves_flags)) }
        }
        FlushKind::Clflush => {
            // SAFETY: as above.
            unsafe { asm!("clflush [{}]", in(reg) place, options(nostack, preserves_flags)) }
        }
    }
}

/// Returns true if the part of a line at `stored` differs from `new`, a slice shorter than a line.
///
/// # Safety
/// `stored .. stored + new.len()` is mapped.
unsafe fn edge_differs(stored: *const u8, new: &[u8]) -> bool {
    let mut copy = [0; LINE];
    let copy = &mut copy[..new.len()];
    // SAFETY: mapped, says the caller; `copy` is a local of that length.
    unsafe { stored.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) }
    copy != new
}

/// Copies a line to a line-aligned place with non-temporal stores, by words: a single line was mostly just
/// made of words, and a load of several words still in the processor waits until they have left it, behind
/// all streams.
///
/// # Safety
/// `to .. to + 64` is mapped writable and holds no Rust object.
#[inline]
unsafe fn stream_line(to: *mut u8, line: &[u8; LINE]) {
    const WORD: usize = 8;
    for (number, word) in line.as_chunks::<WORD>().0.iter().enumerate() {
        let place = to.wrapping_add(number * WORD).cast::<i64>();
        // SAFETY: inside the line, and aligned as its words are.
        unsafe { _mm_stream_si64(place, i64::from_le_bytes(*word)) }
    }
}

/// The loop that copies lines by AVX-512, four at a time and then one, and stores them by this instruction.
macro_rules! copy_by_avx512 {
    ($store:literal, $to:ident, $from:ident, $lines:ident) => {
        asm!(
            "sub {lines}, 4",
            "jb 3f",
            "2:",
            "vmovdqu64 zmm16, [{from} + {done}]",
            "vmovdqu64 zmm17, [{from} + {done} + 64]",
            "vmovdqu64 zmm18, [{from} + {done} + 128]",
            "vmovdqu64 zmm19, [{from} + {done} + 192]",
            concat!($store, " [{to} + {done}], zmm16"),
            concat!($store, " [{to} + {done} + 64], zmm17"),
            concat!($store, " [{to} + {done} + 128], zmm18"),
            concat!($store, " [{to} + {done} + 192], zmm19"),
            "add {done}, 256",
            "sub {lines}, 4",
            "jae 2b",
            "3:",
            "add {lines}, 4",
            "jz 5f",
            "4:",
            "vmovdqu64 zmm16, [{from} + {done}]",
            concat!($store, " [{to} + {done}], zmm16"),
            "add {done}, 64",
            "dec {lines}",
            "jnz 4b",
            "5:",
            from = in(reg) $from, to = in(reg) $to, lines = inout(reg) $lines => _,
            done = inout(reg) 0_usize => _, out("zmm16") _, out("zmm17") _, out("zmm18") _,
            out("zmm19") _, options(nostack)
        )
    };
}

/// # Safety
/// As [`CopyLines`] requires, with mapped ranges; AVX-512F is present.
#[target_feature(enable = "avx512f")]
unsafe fn copy_avx512(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the ranges, four lines at a time, and then one.
    unsafe {
        copy_by_avx512!("vmovntdq", to, from, lines);
    }
}

/// Leaves the upper halves of the registers zero, as the other copy by AVX2 does: the compiler ensures that
/// after code of its own only, and code for older processors is slow while they are not.
///
/// # Safety
/// As [`CopyLines`] requires, with mapped ranges; AVX2 is present.
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the ranges, by halves of lines. One store follows one load: streamed in larger portions, a block
    // takes longer to leave a processor whose halves of a line are stores of their own.
    unsafe {
        asm!(
            "add rsi, rcx",
            "add rdi, rcx",
            "neg rcx",
            "jz 3f",
            "2:",
            "vmovdqu ymm0, [rsi + rcx]",
            "vmovntdq [rdi + rcx], ymm0",
            "add rcx, 32",
            "jnz 2b",
            "3:",
            "vzeroupper",
            inout("rsi") from => _, inout("rdi") to => _, inout("rcx") lines * LINE => _,
            clobber_abi("C"), options(nostack)
        );
    }
}

/// # Safety
/// As [`CopyLines`] says, the ranges being mapped.
#[target_feature(enable = "sse2")]
unsafe fn copy_sse2(to: *mut u8, from: *const u8, lines: usize) {
    const STEP: usize = 16;
    for part in 0..lines * LINE / STEP {
        let source = from.wrapping_add(part * STEP).cast::<__m128i>();
        // SAFETY: inside the source.
        let value = unsafe { _mm_loadu_si128(source) };
        let place = to.wrapping_add(part * STEP).cast::<__m128i>();
        // SAFETY: inside the target, and aligned as lines are.
        unsafe { _mm_stream_si128(place, value) }
    }
}

/// Lines from which on the processor's own copy of strings is faster than a loop, and the same of a processor
/// with fast short copies: the C library begins at about as many.
const STRING_LINES: usize = 256;
const SHORT_STRING_LINES: usize = 33;

/// Returns true if the processor copies short strings fast (FSRM).
fn has_fast_short_strings() -> bool {
    const EDX_FSRM: u32 = 1 << 4;
    // A processor without the leaf has no AVX-512 either, and is not asked.
    __cpuid_count(LEAF_FEATURES, 0).edx & EDX_FSRM != 0
}

/// Copies less than a line, word by word and then byte by byte.
///
/// # Safety
/// As [`Cpu::copy_shared`] says.
#[inline]
unsafe fn copy_rest(to: *mut u8, from: *const u8, len: usize) {
    const WORD: usize = 8;
    for place in (0..len / WORD * WORD).step_by(WORD) {
        let (to, from) = (to.wrapping_add(place), from.wrapping_add(place));
        // SAFETY: a word of the caller's ranges. It is loaded and stored by what the compiler takes for
        // a call of someone else's code, which may do with memory what atomics may do.
        unsafe {
            asm!(
                "mov {word}, [{from}]", "mov [{to}], {word}",
                word = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }
    for place in len / WORD * WORD..len {
        let (to, from) = (to.wrapping_add(place), from.wrapping_add(place));
        // SAFETY: as above, a byte.
        unsafe {
            asm!(
                "mov {byte}, [{from}]", "mov [{to}], {byte}",
                byte = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// As [`Cpu::copy_shared`] requires for `lines` lines, at least one; AVX-512F is present.
#[target_feature(enable = "avx512f")]
unsafe fn shared_avx512(to: *mut u8, from: *const u8, lines: usize) {
    if lines >= STRING_LINES {
        // SAFETY: as the caller says.
        unsafe { copy_string(to, from, lines * LINE) }
        return;
    }
    // SAFETY: the ranges, four lines at a time, and then one. As in `copy_rest`, the accesses are nobody's
    // but the assembly's, so a race gives bytes and breaks no rule of the language's.
    unsafe {
        copy_by_avx512!("vmovdqu64", to, from, lines);
    }
}

/// # Safety
/// As [`Cpu::copy_shared`] requires for `lines` lines, at least one; AVX-512F is present.
#[target_feature(enable = "avx512f")]
unsafe fn shared_strings(to: *mut u8, from: *const u8, lines: usize) {
    match lines {
        // SAFETY: as the caller says.
        SHORT_STRING_LINES.. => unsafe { copy_string(to, from, lines * LINE) },
        // SAFETY: as the caller says.
        _ => unsafe { shared_avx512(to, from, lines) },
    }
}

/// # Safety
/// As [`Cpu::copy_shared`] says.
unsafe fn copy_string(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's ranges; as in `copy_rest`. The direction is upwards wherever a function begins.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As [`Cpu::copy_shared`] requires for `lines` lines, at least one; AVX2 is present.
#[target_feature(enable = "avx2")]
unsafe fn shared_avx2(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the ranges, four lines at a time, and then one.
    unsafe {
        asm!(
            "xor eax, eax",
            "sub rcx, 4",
            "jb 3f",
            "2:",
            "vmovdqu ymm0, [rsi + rax]",
            "vmovdqu ymm1, [rsi + rax + 32]",
            "vmovdqu ymm2, [rsi + rax + 64]",
            "vmovdqu ymm3, [rsi + rax + 96]",
            "vmovdqu [rdi + rax], ymm0",
            "vmovdqu [rdi + rax + 32], ymm1",
            "vmovdqu [rdi + rax + 64], ymm2",
            "vmovdqu [rdi + rax + 96], ymm3",
            "vmovdqu ymm0, [rsi + rax + 128]",
            "vmovdqu ymm1, [rsi + rax + 160]",
            "vmovdqu ymm2, [rsi + rax + 192]",
            "vmovdqu ymm3, [rsi + rax + 224]",
            "vmovdqu [rdi + rax + 128], ymm0",
            "vmovdqu [rdi + rax + 160], ymm1",
            "vmovdqu [rdi + rax + 192], ymm2",
            "vmovdqu [rdi + rax + 224], ymm3",
            "add rax, 256",
            "sub rcx, 4",
            "jae 2b",
            "3:",
            "add rcx, 4",
            "jz 5f",
            "4:",
            "vmovdqu ymm0, [rsi + rax]",
            "vmovdqu ymm1, [rsi + rax + 32]",
            "vmovdqu [rdi + rax], ymm0",
            "vmovdqu [rdi + rax + 32], ymm1",
            "add rax, 64",
            "dec rcx",
            "jnz 4b",
            "5:",
            "vzeroupper",
            in("rsi") from, in("rdi") to, inout("rcx") lines => _, out("rax") _,
            clobber_abi("C"), options(nostack)
        );
    }
}

/// # Safety
/// As [`Cpu::copy_shared`] says of `lines` lines, at least one.
#[target_feature(enable = "sse2")]
unsafe fn shared_sse2(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "2:",
            "movdqu {first}, [{from} + {done}]",
            "movdqu {second}, [{from} + {done} + 16]",
            "movdqu {third}, [{from} + {done} + 32]",
            "movdqu {fourth}, [{from} + {done} + 48]",
            "movdqu [{to} + {done}], {first}",
            "movdqu [{to} + {done} + 16], {second}",
            "movdqu [{to} + {done} + 32], {third}",
            "movdqu [{to} + {done} + 48], {fourth}",
            "add {done}, 64",
            "dec {lines}",
            "jnz 2b",
            from = in(reg) from, to = in(reg) to, lines = inout(reg) lines => _,
            done = inout(reg) 0_usize => _, first = out(xmm_reg) _, second = out(xmm_reg) _,
            third = out(xmm_reg) _, fourth = out(xmm_reg) _, options(nostack)
        );
    }
}

/// # Safety
/// As [`DiffLines`] requires, with mapped ranges; AVX-512F is present.
#[target_feature(enable = "avx512f")]
unsafe fn diff_avx512(stored: *const u8, new: *const u8, lines: usize) -> u64 {
    let mut mask = 0;
    for line in 0..lines {
        let old = stored.wrapping_add(line * LINE).cast::<__m512i>();
        // SAFETY: line `line` of the stored range.
        let old = unsafe { _mm512_loadu_si512(old) };
        let new = new.wrapping_add(line * LINE).cast::<__m512i>();
        // SAFETY: line `line` of the new bytes.
        let new = unsafe { _mm512_loadu_si512(new) };
        mask |= u64::from(_mm512_cmpneq_epi64_mask(old, new) != 0) << line;
    }
    mask
}

/// # Safety
/// As [`DiffLines`] requires, with mapped ranges; AVX2 is present.
#[target_feature(enable = "avx2")]
unsafe fn diff_avx2(stored: *const u8, new: *const u8, lines: usize) -> u64 {
    let mut mask = 0;
    for line in 0..lines {
        let old = stored.wrapping_add(line * LINE).cast::<__m256i>();
        let new = new.wrapping_add(line * LINE).cast::<__m256i>();
        // SAFETY: the first half of line `line`.
        let old_low = unsafe { _mm256_loadu_si256(old) };
        // SAFETY: its second half.
        let old_high = unsafe { _mm256_loadu_si256(old.wrapping_add(1)) };
        // SAFETY: the first half of the new line.
        let new_low = unsafe { _mm256_loadu_si256(new) };
        // SAFETY: its second half.
        let new_high = unsafe { _mm256_loadu_si256(new.wrapping_add(1)) };
        let low = _mm256_cmpeq_epi8(old_low, new_low);
        let high = _mm256_cmpeq_epi8(old_high, new_high);
        let equal = _mm256_movemask_epi8(_mm256_and_si256(low, high)) == -1;
        mask |= u64::from(!equal) << line;
    }
    mask
}

/// # Safety
/// As [`DiffLines`] says, the ranges being mapped.
#[target_feature(enable = "sse2")]
unsafe fn diff_sse2(stored: *const u8, new: *const u8, lines: usize) -> u64 {
    const ALL_EQUAL: i32 = 0xffff;
    let mut mask = 0;
    for line in 0..lines {
        let old = stored.wrapping_add(line * LINE).cast::<__m128i>();
        let new = new.wrapping_add(line * LINE).cast::<__m128i>();
        let mut equal = ALL_EQUAL;
        for part in 0..4 {
            // SAFETY: quarter `part` of line `line` of the stored range.
            let old = unsafe { _mm_loadu_si128(old.wrapping_add(part)) };
            // SAFETY: quarter `part` of line `line` of the new bytes.
            let new = unsafe { _mm_loadu_si128(new.wrapping_add(part)) };
            equal &= _mm_movemask_epi8(_mm_cmpeq_epi8(old, new));
        }
        mask |= u64::from(equal != ALL_EQUAL) << line;
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; BLOCK]);

    fn every_cpu() -> Vec<Cpu> {
        let (flush, best) = (FlushKind::Clflush, Cpu::detect());
        let mut all = vec![
            Cpu {
                flush,
                vector_name: "sse2",
                copy_lines: copy_sse2,
                copy_shared: shared_sse2,
                diff_lines: diff_sse2,
            },
            best,
        ];
        if is_x86_feature_detected!("avx2") {
            let (copy_lines, diff_lines): (CopyLines, DiffLines) = (copy_avx2, diff_avx2);
            let copy_shared = shared_avx2;
            all.push(Cpu { flush, vector_name: "avx2", copy_lines, copy_shared, diff_lines });
        }
        if is_x86_feature_detected!("avx512f") {
            // With the loop for copies of any length.
            let (copy_lines, diff_lines): (CopyLines, DiffLines) = (copy_avx512, diff_avx512);
            let copy_shared = shared_avx512;
            all.push(Cpu { flush, vector_name: "avx512", copy_lines, copy_shared, diff_lines });
        }
        all
    }

    #[test]
    fn shared_copies_copy_exact_range() {
        let source: Vec<u8> = (1..=251).cycle().take(2 * BLOCK).collect();
        for cpu in every_cpu() {
            for (from, to, len) in [
                (0, 0, 4096),
                (0, 7, 0),
                (3, 1, 1),
                (9, 5, 7),
                (1, 0, 63),
                (5, 64, 64),
                (2, 9, 128),
                (64, 3, 1000),
            ] {
                let mut page = Page([0; BLOCK]);
                let (source_at, at) =
                    (source.as_ptr().wrapping_add(from), page.0.as_mut_ptr().wrapping_add(to));
                // SAFETY: the ranges lie in `source` and `page`, which nothing else refers to.
                unsafe { cpu.copy_shared(at, source_at, len) }
                let mut expected = [0; BLOCK];
                expected[to..to + len].copy_from_slice(&source[from..from + len]);
                assert_eq!(page.0[..], expected[..], "{} {from} {to} {len}", cpu.vector_name);
            }
        }
    }

    #[test]
    fn long_shared_copies_copy_exact_range() {
        let len_max = (STRING_LINES + 9) * LINE;
        let source: Vec<u8> = (1..=251).cycle().take(len_max + 3).collect();
        for cpu in every_cpu() {
            for len in [STRING_LINES * LINE - 1, STRING_LINES * LINE, len_max] {
                let mut found = vec![0; len_max + 9];
                let (source_at, at) = (source[3..].as_ptr(), found[5..].as_mut_ptr());
                // SAFETY: the ranges lie in `source` and `found`, which nothing else refers to.
                unsafe { cpu.copy_shared(at, source_at, len) }
                assert!(found[5..5 + len] == source[3..3 + len], "{} {len}", cpu.vector_name);
                let around = found[..5].iter().chain(&found[5 + len..]);
                assert!(around.into_iter().all(|&byte| byte == 0), "{} {len}", cpu.vector_name);
            }
        }
    }

    #[test]
    fn copy_kernels_copy_exact_range() {
        let source: Vec<u8> = (1..=251).cycle().take(BLOCK).collect();
        for cpu in every_cpu() {
            for (start, len) in
                [(0, 4096), (0, 0), (1, 62), (63, 2), (63, 66), (64, 64), (100, 1000), (8, 4088)]
            {
                let mut page = Page([0; BLOCK]);
                let at = page.0.as_mut_ptr().wrapping_add(start);
                // SAFETY: the range lies in `page`, which nothing else refers to meanwhile.
                unsafe { cpu.stream(at, &source[..len], true) }
                store_fence();
                let mut expected = [0; BLOCK];
                expected[start..start + len].copy_from_slice(&source[..len]);
                assert!(page.0 == expected, "{} {start}+{len}", cpu.vector_name);
            }
        }
    }

    /// Asks the processor whether the upper halves of some vector registers are in use.
    fn has_upper_halves_in_use() -> bool {
        const AVX_STATE: u64 = 1 << 2;
        let in_use: u64;
        // SAFETY: reads which parts of the processor's state are in use, as the caller has found that it tells.
        unsafe {
            asm!(
                "xgetbv", "shl rdx, 32", "or rax, rdx",
                in("ecx") 1, out("rax") in_use, out("rdx") _, options(nomem, nostack)
            );
        }
        in_use & AVX_STATE != 0
    }

    /// With them in use, the next write of code for older processors waits for it: a third of a small write's
    /// time.
    #[test]
    fn copy_kernels_clear_upper_vector_halves() {
        const STATES: u32 = 0xd;
        const TELLS_WHAT_IS_IN_USE: u32 = 1 << 2;
        let tells = is_x86_feature_detected!("xsave")
            && __cpuid_count(STATES, 1).eax & TELLS_WHAT_IS_IN_USE != 0;
        if !tells {
            return;
        }
        let source = Page([7; BLOCK]);
        let mut page = Page([0; BLOCK]);
        for cpu in every_cpu() {
            for lines in [1, 3, 4, 9, 64] {
                let (from, to) = (source.0.as_ptr(), page.0.as_mut_ptr());
                // SAFETY: the ranges are `source` and `page`, which nothing else refers to.
                unsafe { (cpu.copy_lines)(to, from, lines) }
                let after_streams = has_upper_halves_in_use();
                // SAFETY: as above.
                unsafe { (cpu.copy_shared)(to, from, lines) }
                let after_copies = has_upper_halves_in_use();
                // SAFETY: as above.
                let differ = unsafe { (cpu.diff_lines)(to, from, lines) };
                let are_in_use = [after_streams, after_copies, has_upper_halves_in_use()];
                assert_eq!(differ, 0, "they were copied");
                assert_eq!(are_in_use, [false; 3], "{}, {lines} lines", cpu.vector_name);
            }
        }
    }

    #[test]
    fn compare_kernels_detect_each_byte() {
        let page = Page([7; BLOCK]);
        for cpu in every_cpu() {
            for byte in 0..BLOCK {
                let mut new = [7; BLOCK];
                new[byte] ^= 0x80;
                // SAFETY: the block is `page`, aligned to more than a line.
                let mask = unsafe { cpu.changed(page.0.as_ptr(), 0, &new) };
                assert_eq!(mask, LineMask(1 << (byte / LINE)), "{} {byte}", cpu.vector_name);
            }
        }
    }

    #[test]
    fn flush_instructions_keep_bytes() {
        let mut page = Page([9; BLOCK]);
        let at = page.0.as_mut_ptr();
        let supported = match detect_flush() {
            FlushKind::Clwb => {
                vec![FlushKind::Clwb, FlushKind::Clflushopt, FlushKind::Clflush]
            }
            FlushKind::Clflushopt => vec![FlushKind::Clflushopt, FlushKind::Clflush],
            FlushKind::Clflush => vec![FlushKind::Clflush],
        };
        for flush in supported {
            let cpu = Cpu { flush, ..Cpu::detect() };
            // SAFETY: the range lies in `page`.
            unsafe { cpu.flush(at.wrapping_add(60), 300) }
            store_fence();
        }
        assert!(page.0 == [9; BLOCK]);
    }
}
