//! The program's own variables that begin as zeroes (.bss), where they are.
//!
//! Knows only what the loader says of the program itself: libraries' variables stay where they are.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::kernel::PAGE;

/// Alignment of what can be paged.
const WINDOW: usize = 64 << 10;

/// The whole pages of the program's .bss, from a multiple of 64 KiB on; empty if there are none.
pub(crate) fn pages() -> Range<usize> {
    let mut found = 0..0;
    // SAFETY: `look` takes such a pointer, and is called before this returns alone.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Looks at the first object that the loader names, which is the program.
unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader's, and complete up to the headers whatever its size.
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
        // SAFETY: `pages` gave a pointer to a range of its own.
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
