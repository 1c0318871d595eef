//! The program's zero-initialized variables (.bss), in place.
//!
//! Reads only the loader's entry of the program itself: variables of libraries do not page.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::kernel::PAGE;

/// Alignment of pageable memory.
const WINDOW: usize = 64 << 10;

/// The whole pages of the program's .bss, from a multiple of 64 KiB on; empty without such pages.
pub(crate) fn pages() -> Range<usize> {
    let mut found = 0..0;
    // SAFETY: `look` takes such a pointer, and is called before this returns alone.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Inspects the loader's first object, the program.
unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader's structure, complete up to the headers at any size.
    let object = unsafe { &*object };
    // SAFETY: the loader has mapped as many headers there.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let all = headers.iter().filter(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_W != 0
            && header.p_memsz > header.p_filesz
    });
    let pages = all.map(|header| whole_pages(object.dlpi_addr, header));
    if let Some(largest) = pages.max_by_key(Range::len) {
        // SAFETY: `pages` passed a pointer to its range.
        unsafe { found.cast::<Range<usize>>().write(largest) };
    }
    1
}

#[expect(clippy::cast_possible_truncation, reason = "usize is u64 on the only architecture")]
fn whole_pages(base: u64, header: &libc::Elf64_Phdr) -> Range<usize> {
    let start = base + header.p_vaddr;
    let zeroes = (start + header.p_filesz) as usize;
    let end = ((start + header.p_memsz) as usize).next_multiple_of(PAGE);
    let first = zeroes.next_multiple_of(PAGE).next_multiple_of(WINDOW);
    if first < end { first..end } else { 0..0 }
}
