//! A library to preload (`LD_PRELOAD`): it turns the heap of an unmodified program into a region of
//! storage-class memory. `everbyte run` starts programs with it.
//!
//! Replaces the C library's `malloc` family and its calls for mappings; large private anonymous
//! mappings become parts of the heap. Owns one region and the threads resolving its faults.
//!
//! Invariants: code that resolves a fault, or gives the heap more memory, never uses the heap. So
//! all Rust here allocates from `internal_heap`, and so does every thread while it works for this
//! library (`outside_heap`). Memory allocated before the heap exists also stays there.

#![allow(unsafe_code, reason = "functions of the C library, and memory by its address")]

mod aligned;
mod fork;
mod fork_advice;
mod heap;
mod internal_heap;
mod kernel;
mod lock;
mod malloc;
mod mappings;
mod report;
mod settings;
mod slot_source;
mod stderr;
mod variables;
mod vfork;

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

use everbyte_swap::BlockedSignals;
use libmimalloc_sys as mi;

use heap::Heap;
use settings::{Settings, Stage};
use stderr::print;

/// Exit status of a program that failed to start.
const FAILED_STATUS: i32 = 1;
/// Options of mimalloc missing in its bindings: their numbers in its header.
const MI_OPTION_PURGE_DELAY: mi::mi_option_t = 15;
const MI_OPTION_ARENA_RESERVE: mi::mi_option_t = 23;
/// Milliseconds before the allocator discards memory freed by the program.
const PURGE_DELAY_MS: i64 = 200;

static HEAP: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());

/// The user of a thread's allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    /// The program: from the heap.
    Program,
    /// This library: from its own heap.
    Library,
    /// A child by `vfork`. It uses the thread alone until it executes a program or ends, and
    /// allocates from the kernel.
    VforkChild,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Program) };
}

#[inline]
fn role() -> Role {
    ROLE.get()
}

fn set_role(role: Role) {
    ROLE.set(role);
}

/// The heap, unless this thread does not allocate for the program, or there is none yet.
#[inline]
fn heap() -> Option<&'static Heap> {
    if role() == Role::Program { any_heap() } else { None }
}

/// The heap, for lookups of addresses.
#[inline]
fn any_heap() -> Option<&'static Heap> {
    // SAFETY: null, or a heap never dropped.
    unsafe { HEAP.load(Ordering::Acquire).as_ref() }
}

/// Runs `work` with allocations outside the heap, and restores `errno`. It blocks signals, because
/// their handlers may map memory or access pages moved by `work`, and the thread's cancellation.
/// Not for calls by the allocator, because the blocking takes two system calls.
fn outside_heap<T>(work: impl FnOnce() -> T) -> T {
    let _no_signals = BlockedSignals::new();
    let (before, errno) = (role(), kernel::errno());
    if before == Role::Program {
        set_role(Role::Library);
    }
    let done = work();
    set_role(before);
    kernel::set_errno(errno);
    done
}

/// Excludes this thread from the heap permanently.
fn stay_outside_heap() {
    set_role(Role::Library);
}

extern "C" fn start() {
    outside_heap(|| {
        fork::register();
        let settings = match Settings::read() {
            Ok(settings) => settings,
            Err(missing) => {
                print(&format!("{missing} is not set, so nothing of this program pages"));
                return;
            }
        };
        let stage = Stage::read();
        if stage == Stage::First {
            settings::note_first_process();
            Stage::Later.pass_on();
        }
        let reports = settings.child_statistics || settings::is_first_process();
        let statistics = settings.statistics.filter(|_| reports);
        match Heap::new(settings) {
            Ok(heap) => {
                configure_allocator();
                let heap: &'static Heap = Box::leak(Box::new(heap));
                if let Some(interval) = statistics {
                    report::start(heap, interval);
                }
                HEAP.store(std::ptr::from_ref(heap).cast_mut(), Ordering::Release);
            }
            Err(reason) if stage == Stage::First => {
                print(&format!("cannot set up the heap of this program: {reason}"));
                // SAFETY: ends the process before the program has started.
                unsafe { libc::_exit(FAILED_STATUS) };
            }
            // A service may start this program as another user or in a sandbox: the program works
            // without paging, so the service must not fail.
            Err(reason) => {
                if stage == Stage::Later {
                    print(&format!(
                        "process {} runs on ordinary memory: {reason}",
                        std::process::id()
                    ));
                }
                Stage::Ordinary.pass_on();
            }
        }
    });
}

/// Limits the allocator to the arenas of the heap.
fn configure_allocator() {
    for (option, value) in [
        (mi::mi_option_limit_os_alloc, 1),
        (MI_OPTION_ARENA_RESERVE, 0),
        (MI_OPTION_PURGE_DELAY, PURGE_DELAY_MS),
    ] {
        // SAFETY: numbers of options, before the first allocation.
        unsafe { mi::mi_option_set(option, value) };
    }
}

extern "C" fn end() {
    outside_heap(report::summarise);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
