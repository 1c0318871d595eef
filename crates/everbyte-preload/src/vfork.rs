//! `vfork`: a child with its parent's memory in the calling thread. The parent's thread is stopped
//! during that time.
//!
//! The parent sees every change by the child, and the child may be killed at any moment. A child
//! may allocate although POSIX forbids it, as many do before they execute a program. Such a child
//! avoids all state that its end could leave inconsistent: it takes no lock of the heap or of
//! `internal_heap`, and allocates and frees none of their memory. It gets mappings from the kernel,
//! a whole number of pages for each allocation.
//!
//! The parent continues after the child has executed a program or ended in any way. So the parent
//! removes the child's mark from the thread. Children made by a program's own `clone` are not
//! marked.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_long, pid_t};

use crate::{Role, kernel, role, set_role};

/// As `vfork(2)`.
///
/// # Safety
/// As there.
// The C library's function cannot be wrapped: the child's return overwrites the return address on
// the stack. The address is kept in a register, because the kernel saves registers separately.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "mov esi, eax",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "sub rsp, 8",
        "mov edi, esi",
        "mov rsi, rax",
        "call {parent}",
        "add rsp, 8",
        "ret",
        "2:",
        "sub rsp, 8",
        "call {child}",
        "add rsp, 8",
        "xor eax, eax",
        "ret",
        before = sym before,
        parent = sym parent,
        child = sym child,
        number = const libc::SYS_vfork,
    )
}

/// Children in their parents' threads.
static CHILDREN: AtomicU32 = AtomicU32::new(0);

/// True in a child by `vfork` before it executes a program or ends.
#[inline]
pub(crate) fn is_child() -> bool {
    // A child sees at least its own increment, in program order.
    CHILDREN.load(Ordering::Relaxed) > 0 && role() == Role::VforkChild
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Changes the cancellation state of this thread and returns the former state.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = state;
    // SAFETY: a valid state, and `before` is writable.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Bits of a role; the cancellation state lies above them.
const ROLE_BITS: u32 = 8;
/// The state without cancellation.
const CANCEL_DISABLE: c_int = 1;

/// The role of this thread and its cancellation state, as a number. A child may change both.
extern "C" fn before() -> c_int {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
    let state = set_cancel_state(CANCEL_DISABLE);
    set_cancel_state(state);
    role() as c_int | state << ROLE_BITS
}

extern "C" fn child() {
    set_role(Role::VforkChild);
}

/// Restores the role and cancellation state of this thread. Returns the result of `vfork`.
extern "C" fn parent(before: c_int, result: c_long) -> pid_t {
    CHILDREN.fetch_sub(1, Ordering::Relaxed);
    set_cancel_state(before >> ROLE_BITS);
    let before = before & ((1 << ROLE_BITS) - 1);
    let roles = [Role::Program, Role::Library, Role::VforkChild];
    set_role(roles.into_iter().find(|role| *role as c_int == before).unwrap_or(Role::Program));
    match pid_t::try_from(result) {
        Ok(pid) if pid > 0 => pid,
        _ => {
            kernel::set_errno(c_int::try_from(-result).unwrap_or(libc::EAGAIN));
            -1
        }
    }
}
