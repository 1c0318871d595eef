//! `vfork`: a child with its parent's memory, in the thread that called, which is stopped meanwhile.
//!
//! Whatever such a child changes, its parent finds so, and a child may be killed at any moment. So one that allocates
//! although POSIX does not let it, as many do before they execute a program, is kept away from everything that its end
//! could leave half changed: it takes none of the heap's locks nor those of `own`, and neither gives nor gets any of
//! their memory. It has mappings of its own from the kernel, a whole number of pages for each allocation.
//!
//! The parent goes on when the child has executed or ended, however it ended. So it is the parent that
//! takes the child's mark off their thread. Children that a program makes by `clone` itself are not marked.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_long, pid_t};

use crate::{Role, kernel, role, set_role};

/// As `vfork(2)`.
///
/// # Safety
/// As there.
// The C library's own does not return to where its child may have been: the child's return overwrites the address on
// the stack, so that is kept in a register, which the kernel keeps apart.
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

/// Children that have their parents' threads.
static CHILDREN: AtomicU32 = AtomicU32::new(0);

/// True in a child by `vfork` that has neither executed nor ended.
#[inline]
pub(crate) fn is_child() -> bool {
    // Who is one sees at least itself, in its own order.
    CHILDREN.load(Ordering::Relaxed) > 0 && role() == Role::VforkChild
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Changes whether this thread can be cancelled, and returns what was before.
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = state;
    // SAFETY: a state that there is, and `before` may be written.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Bits of a role, behind which is the state of cancellation.
const ROLE_BITS: u32 = 8;
/// The state in which a thread is not cancelled.
const CANCEL_DISABLE: c_int = 1;

/// The role of this thread and its state of cancellation, which a child may change, as a number.
extern "C" fn before() -> c_int {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
    let state = set_cancel_state(CANCEL_DISABLE);
    set_cancel_state(state);
    role() as c_int | state << ROLE_BITS
}

extern "C" fn child() {
    set_role(Role::VforkChild);
}

/// Gives this thread back the role and the state that it had. Returns what `vfork` is to.
extern "C" fn parent(before: c_int, result: c_long) -> pid_t {
    CHILDREN.fetch_sub(1, Ordering::Relaxed);
    set_cancel_state(before >> ROLE_BITS);
    let before = before & ((1 << ROLE_BITS) - 1);
    let roles = [Role::Program, Role::AtWork, Role::VforkChild];
    set_role(roles.into_iter().find(|role| *role as c_int == before).unwrap_or(Role::Program));
    match pid_t::try_from(result) {
        Ok(pid) if pid > 0 => pid,
        _ => {
            kernel::set_errno(c_int::try_from(-result).unwrap_or(libc::EAGAIN));
            -1
        }
    }
}
