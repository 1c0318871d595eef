//! The handlers of SIGBUS, for failed accesses to mapped memory, and of SIGSEGV, for memory with accesses
//! forbidden temporarily by its owner.
//!
//! A truncated file, a full tmpfs, or a failed memory cell answers an access with SIGBUS. If the address lies
//! in one of our mappings, the handler marks the page as poisoned, puts an anonymous page of zeroes there,
//! and lets the access continue. A load does no further harm: its caller calls `check_range` afterwards. A
//! store is lost, so it fails the medium. If the address lies in a [`FaultRange`], its owner resolves the
//! fault. Every other SIGBUS goes to the previous handler.
//!
//! SIGSEGV is handled from the registration of the first range for it on. A fault on a mapping that forbids
//! the access (`SEGV_ACCERR`) is for the owner of the range. Everything else goes to the previous handler:
//! usually the handler of Rust's library, for stack overflows.
//!
//! Invariants: the handler only loads and stores atomics and makes system calls. It takes no lock and
//! allocates nothing, and owners of fault ranges promise the same. A slot's fields are stable while its
//! generation is even and non-zero in `live`; a reader that sees the generation change ignores the slot. A
//! slot is released before its address range is unmapped. While the handler runs, its thread takes no signal
//! except faults: the handler of another signal could wait for memory that its own thread is about to make
//! accessible. Nor is the thread cancelled then: it calls no cancellation point, and the C library's
//! cancellation signal for asynchronous cancellation waits.
//!
//! Limits: if a thread blocks the signal and faults, the kernel kills it. A handler installed later must pass
//! on signals of others.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t};

use crate::poison::PoisonedPages;
use crate::shards::in_handler;
use crate::signals::{add_cancellation, all_but_faults};
use crate::units::PoolOffset;

/// Mappings a process can have at a time.
pub(crate) const SLOTS: usize = 1024;

struct Slot {
    /// Claimed by a registration.
    taken: AtomicBool,
    /// Odd while the fields below describe a mapping, even while they do not or are changing.
    generation: AtomicUsize,
    base: AtomicUsize,
    reserved: AtomicUsize,
    /// Page size of the mapping in bytes.
    page: AtomicUsize,
    /// The [`Resolver`] of the range, or 0 if it is a medium.
    resolver: AtomicUsize,
    /// The resolver's argument.
    context: AtomicPtr<()>,
    /// The resolver is also called for accesses that the mapping forbids.
    forbids: AtomicBool,
    poisoned: PoisonedPages,
    /// The first offset of a lost store plus 1, or 0.
    lost: AtomicU64,
}

static REGISTRY: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        generation: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        reserved: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        resolver: AtomicUsize::new(0),
        context: AtomicPtr::new(ptr::null_mut()),
        forbids: AtomicBool::new(false),
        poisoned: PoisonedPages::new(),
        lost: AtomicU64::new(0),
    }
}; SLOTS];

/// A signal handled here.
struct Caught {
    signal: c_int,
    /// The disposition before ours; null until the handler is installed, never freed.
    previous: AtomicPtr<sigaction>,
    installed: Mutex<bool>,
}

impl Caught {
    const fn new(signal: c_int) -> Self {
        let previous = AtomicPtr::new(ptr::null_mut());
        Self { signal, previous, installed: Mutex::new(false) }
    }
}

static BUS: Caught = Caught::new(libc::SIGBUS);
static SEGV: Caught = Caught::new(libc::SIGSEGV);
/// The code of a SIGSEGV of a present mapping that forbids the access.
const SEGV_ACCERR: c_int = 2;

/// The owner of a range.
struct Owner {
    /// A [`Resolver`], or 0.
    resolver: usize,
    context: *mut (),
    forbids: bool,
}

impl Owner {
    const NOBODY: Self = Self { resolver: 0, context: ptr::null_mut(), forbids: false };
}

/// The registration of one mapping; ends when dropped.
pub(crate) struct Registration {
    slot: &'static Slot,
}

impl Registration {
    /// Registers the address range `base .. base + reserved`, made of pages of `page` bytes.
    /// Returns `None` if [`SLOTS`] mappings are registered already.
    ///
    /// # Errors
    /// The handler could not be installed, or memory for the poisoned pages is missing.
    pub(crate) fn new(base: usize, reserved: usize, page: usize) -> io::Result<Option<Self>> {
        install(&BUS)?;
        Self::claim(base, reserved, page, &Owner::NOBODY)
    }

    fn claim(base: usize, reserved: usize, page: usize, owner: &Owner) -> io::Result<Option<Self>> {
        let claim = |slot: &&Slot| {
            let (no, yes) = (Ordering::Relaxed, Ordering::Acquire);
            slot.taken.compare_exchange(false, true, yes, no).is_ok()
        };
        let Some(slot) = REGISTRY.iter().find(claim) else {
            return Ok(None);
        };
        slot.base.store(base, Ordering::SeqCst);
        slot.reserved.store(reserved, Ordering::SeqCst);
        slot.page.store(page, Ordering::SeqCst);
        slot.resolver.store(owner.resolver, Ordering::SeqCst);
        slot.context.store(owner.context, Ordering::SeqCst);
        slot.forbids.store(owner.forbids, Ordering::SeqCst);
        let is_medium = owner.resolver == 0;
        if is_medium && let Err(error) = slot.poisoned.make_room(reserved.div_ceil(page)) {
            slot.taken.store(false, Ordering::Release);
            return Err(error);
        }
        slot.lost.store(0, Ordering::SeqCst);
        slot.generation.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Self { slot }))
    }

    /// Address ranges of all registered mappings.
    pub(crate) fn all_ranges() -> impl Iterator<Item = (usize, usize)> {
        let taken = REGISTRY.iter().filter(|slot| {
            slot.taken.load(Ordering::Acquire) && slot.resolver.load(Ordering::SeqCst) == 0
        });
        taken.map(|slot| (slot.base.load(Ordering::SeqCst), slot.reserved.load(Ordering::SeqCst)))
    }

    /// The pages known to be poisoned.
    #[inline]
    pub(crate) fn poisoned(&self) -> &PoisonedPages {
        &self.slot.poisoned
    }

    /// Page size of the mapping in bytes.
    pub(crate) fn page(&self) -> u64 {
        self.slot.page.load(Ordering::Relaxed) as u64
    }

    /// The first address of a lost store, if any.
    pub(crate) fn lost(&self) -> Option<PoolOffset> {
        self.slot.lost.load(Ordering::Acquire).checked_sub(1).map(PoolOffset)
    }

    /// Marks a store at `at` as lost.
    pub(crate) fn lose(&self, at: PoolOffset) {
        self.slot.lose(at.0);
    }
}

impl Slot {
    fn lose(&self, offset: u64) {
        let (old, new) = (Ordering::SeqCst, Ordering::SeqCst);
        let _first_wins = self.lost.compare_exchange(0, offset + 1, old, new);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.slot.generation.fetch_add(1, Ordering::SeqCst);
        self.slot.poisoned.clear();
        self.slot.taken.store(false, Ordering::Release);
    }
}

/// A page fault answered by the kernel with SIGBUS, or with SIGSEGV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// The faulting address.
    pub address: usize,
    /// True for a store, or for an access reported as one by the processor.
    pub is_store: bool,
    /// True if the page was there and would not be written to.
    pub is_present: bool,
    /// True if the mapping forbids the access (SIGSEGV). Only ranges registered with
    /// [`FaultRange::register_forbidding`] get such faults.
    pub is_forbidden: bool,
}

/// An owner of addresses with page faults that end in SIGBUS, as those of userfaultfd can, or in SIGSEGV.
///
/// # Safety
/// `resolve` runs in a signal handler, on any faulting thread: an implementor must not allocate, must call no
/// cancellation point (`pthreads(7)`), must take no lock that a thread could hold while it touches the range,
/// must not panic, and must not touch the range itself.
pub unsafe trait ResolveFaults: Send + Sync {
    /// Makes the page at the address accessible, or finds that it is; the access is then made again. False
    /// passes the signal on, as if the range were not registered.
    fn resolve(&self, fault: PageFault) -> bool;
}

/// A resolver without its type: takes the context from its registration.
type Resolver = fn(*const (), PageFault) -> bool;

/// A range of addresses with a resolver of its faults, until this is dropped.
pub struct FaultRange {
    _registration: Registration,
}

impl FaultRange {
    /// Sends the SIGBUS of faults in `base .. base + len` to `resolver`. Returns `None` if a process
    /// has no room for more ranges and media.
    ///
    /// # Errors
    /// The handler could not be installed.
    ///
    /// # Safety
    /// `resolver` stays valid until the range is dropped, and no thread touches the addresses from the drop
    /// on.
    pub unsafe fn register<R: ResolveFaults>(
        base: usize,
        len: usize,
        resolver: *const R,
    ) -> io::Result<Option<Self>> {
        install(&BUS)?;
        Self::claim(base, len, resolver, false)
    }

    /// As [`register`](Self::register), and sends the SIGSEGV of accesses that the mapping forbids to
    /// `resolver`, too.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_forbidding<R: ResolveFaults>(
        base: usize,
        len: usize,
        resolver: *const R,
    ) -> io::Result<Option<Self>> {
        install(&BUS)?;
        install(&SEGV)?;
        Self::claim(base, len, resolver, true)
    }

    /// Registers; the promise of [`register`](Self::register) is its caller's.
    fn claim<R: ResolveFaults>(
        base: usize,
        len: usize,
        resolver: *const R,
        forbids: bool,
    ) -> io::Result<Option<Self>> {
        fn call<R: ResolveFaults>(context: *const (), fault: PageFault) -> bool {
            // SAFETY: `register` stored this function with a pointer to an `R`, which its caller
            // keeps valid for as long as faults arrive.
            unsafe { &*context.cast::<R>() }.resolve(fault)
        }
        let function: Resolver = call::<R>;
        let context = resolver.cast_mut().cast();
        let owner = Owner { resolver: function as usize, context, forbids };
        let registration = Registration::claim(base, len, 1, &owner)?;
        Ok(registration.map(|registration| Self { _registration: registration }))
    }
}

/// Installs the handler of a signal, once.
fn install(caught: &Caught) -> io::Result<()> {
    let mut installed = caught.installed.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: all-zero bytes are a valid `sigaction`: plain integers and a null handler.
    let mut previous: Box<sigaction> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: asks for the current disposition; `previous` may be written.
    check(unsafe { libc::sigaction(caught.signal, ptr::null(), &raw mut *previous) })?;
    caught.previous.store(Box::into_raw(previous), Ordering::SeqCst);

    // SAFETY: as above.
    let mut ours: sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_fault;
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    ours.sa_mask = all_but_faults();
    add_cancellation(&mut ours.sa_mask);
    if caught.signal == libc::SIGBUS {
        // A resolver may store to a medium whose memory turns out not to be there: a fault within a fault.
        ours.sa_flags |= libc::SA_NODEFER;
    }
    // SAFETY: `ours` is filled in, and its handler is safe to run in a signal context.
    check(unsafe { libc::sigaction(caught.signal, &raw const ours, ptr::null_mut()) })?;
    *installed = true;
    Ok(())
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The register with the error code of the last fault.
const ERROR_CODE: usize = libc::REG_ERR as usize;
/// The bit of a page fault's error code that distinguishes stores from loads. A machine check has no such
/// code and is reported for loads only; if an earlier fault set the bit, a load counts as a store, an error
/// on the safe side.
const WRITE_FAULT: i64 = 2;
/// The bit of the error code for a present page.
const PROTECTION_FAULT: i64 = 1;
/// The bit of the error code that distinguishes a fetch of an instruction from a load. No range is executable
/// for any action of its owner, so such an access would fault forever.
const FETCH_FAULT: i64 = 16;

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the C library's location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let details = unsafe { &*info };
    let from_kernel = details.si_code > 0;
    let is_forbidden = signal == libc::SIGSEGV;
    // SAFETY: the kernel fills in the address of such faults; otherwise it is not used.
    let address = unsafe { details.si_addr() }.addr();
    // SAFETY: the kernel passes a valid `ucontext_t` to an SA_SIGINFO handler.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let code = registers[ERROR_CODE];
    // Of a SIGBUS that a process sent, and of most kinds of SIGSEGV, the address means nothing.
    let is_ours = match is_forbidden {
        true => details.si_code == SEGV_ACCERR && code & FETCH_FAULT == 0,
        false => from_kernel,
    };
    let is_store = code & WRITE_FAULT != 0;
    let is_present = code & PROTECTION_FAULT != 0;
    let fault = PageFault { address, is_store, is_present, is_forbidden };
    if !(is_ours && in_handler(|| repair(fault))) {
        pass_on(signal, info, context, from_kernel);
    }
    // SAFETY: as above.
    unsafe { *errno = saved }
}

/// Notes the page of a fault as poisoned and puts zeroes there, if the address is one of a medium;
/// lets the owner of the range resolve it otherwise.
fn repair(fault: PageFault) -> bool {
    let address = fault.address;
    REGISTRY.iter().any(|slot| {
        let generation = slot.generation.load(Ordering::SeqCst);
        let base = slot.base.load(Ordering::SeqCst);
        let reserved = slot.reserved.load(Ordering::SeqCst);
        let page = slot.page.load(Ordering::SeqCst);
        let resolver = slot.resolver.load(Ordering::SeqCst);
        let context = slot.context.load(Ordering::SeqCst);
        let forbids = slot.forbids.load(Ordering::SeqCst);
        let stable = generation % 2 == 1 && slot.generation.load(Ordering::SeqCst) == generation;
        if !stable || address < base || address - base >= reserved {
            return false;
        }
        if fault.is_forbidden && !forbids {
            return false;
        }
        if resolver != 0 {
            // SAFETY: a resolver that is not 0 was made from a function of this type.
            let resolver = unsafe { std::mem::transmute::<usize, Resolver>(resolver) };
            return resolver(context, fault);
        }
        let offset = address - base;
        let start = offset / page * page;
        // Notes first: a caller that sees the zeroes must be able to find out.
        slot.poisoned.add(offset / page);
        if fault.is_store {
            slot.lose(offset as u64);
        }
        map_zeroes(base + start, page)
    })
}

fn map_zeroes(at: usize, len: usize) -> bool {
    let place = ptr::without_provenance_mut(at);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: replaces one page of a registered mapping, which outlives the access that faulted;
    // the page was not there, so nothing is lost by it.
    let mapped = unsafe { libc::mmap(place, len, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Passes the signal to the previous handler, or to the default action; the default action ends the process.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, from_kernel: bool) {
    let caught = if signal == libc::SIGBUS { &BUS } else { &SEGV };
    let previous = caught.previous.load(Ordering::SeqCst);
    // SAFETY: set before our handler was installed, and never freed or changed.
    let previous = unsafe { &*previous };
    match previous.sa_sigaction {
        // The kernel does not let a process ignore a fault of its own either.
        libc::SIG_IGN if !from_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, from_kernel),
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: with SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            unblock(signal, context);
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the field holds a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            unblock(signal, context);
            handler(signal);
        }
    }
}

/// Restores the thread's mask of signals from before the interruption, for a handler that may never return.
fn unblock(signal: c_int, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `ucontext_t` to an SA_SIGINFO handler.
    let mask = unsafe { &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    // SAFETY: the kernel fills in a word of it.
    let mut mask = unsafe { mask.cast::<u64>().read() };
    if signal != libc::SIGBUS {
        // As it is in our own handler, which does not nest.
        mask |= 1 << (signal - 1);
    }
    let no_old = ptr::null_mut::<u64>();
    // SAFETY: the kernel's call, by whose layout a mask is a word; that is allowed in a handler.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            no_old,
            size_of::<u64>(),
        )
    };
}

/// Restores the default action. A fault then repeats and ends the process; a sent signal does not repeat, so
/// it is sent once more.
fn die(signal: c_int, from_kernel: bool) {
    // SAFETY: all-zero bytes are a valid `sigaction`, and mean the default action.
    let default: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `default` is valid, and the call is allowed in a handler.
    let _cannot_fail = unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
    if !from_kernel {
        // SAFETY: allowed in a handler; delivered when the handler returns.
        let _cannot_fail = unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::shards::{SHARED, has_free_shard, shard};

    const FAULT: PageFault =
        PageFault { address: 0, is_store: false, is_present: false, is_forbidden: false };

    #[test]
    fn only_registered_addresses_are_repaired() {
        let page = 4096;
        let load = |address| PageFault { address, ..FAULT };
        assert!(!repair(load(0x1234)));
        // An address range that is not ours to map is registered but never touched.
        let here = Registration::new(page * 16, page, page).unwrap().unwrap();
        assert!(!repair(load(page * 17)), "the end is exclusive");
        assert!(!here.poisoned().any());
        drop(here);
        assert!(!repair(load(page * 16)), "a released slot is ignored");
    }

    struct Noted(AtomicUsize);

    // SAFETY: one store to an atomic.
    unsafe impl ResolveFaults for Noted {
        fn resolve(&self, fault: PageFault) -> bool {
            self.0.store(fault.address, Ordering::SeqCst);
            fault.is_store
        }
    }

    #[test]
    fn fault_goes_to_owner_of_range() {
        let (base, len) = (0x7000, 0x2000);
        let noted = Noted(AtomicUsize::new(0));
        // SAFETY: `noted` outlives the range, whose addresses nobody touches.
        let range = unsafe { FaultRange::register(base, len, &raw const noted) };
        let range = range.unwrap().unwrap();
        let fault = |address, is_store| PageFault { address, is_store, ..FAULT };
        assert!(repair(fault(base + 5, true)));
        assert_eq!(noted.0.load(Ordering::SeqCst), base + 5);
        assert!(!repair(fault(base + 6, false)), "it refuses loads");
        let forbidden = PageFault { is_forbidden: true, ..fault(base + 7, true) };
        assert!(!repair(forbidden), "it did not ask for those");
        assert!(!repair(fault(base + len, true)), "the end is exclusive");
        assert_eq!(noted.0.load(Ordering::SeqCst), base + 6);
        drop(range);
        assert!(!repair(fault(base + 5, true)));
    }

    /// Makes the page of a fault accessible.
    struct Allows;

    // SAFETY: a system call.
    unsafe impl ResolveFaults for Allows {
        fn resolve(&self, fault: PageFault) -> bool {
            let page = ptr::without_provenance_mut(fault.address / 4096 * 4096);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the test's own page.
            fault.is_forbidden && unsafe { libc::mprotect(page, 4096, access) } == 0
        }
    }

    #[test]
    fn forbidden_access_is_retried_once_allowed() {
        let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of its own.
        let page = unsafe { libc::mmap(ptr::null_mut(), 4096, access, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let (allows, at) = (Allows, page.expose_provenance());
        // SAFETY: `allows` outlives the range, which is touched below alone.
        let range = unsafe { FaultRange::register_forbidding(at, 4096, &raw const allows) };
        let range = range.unwrap().unwrap();
        let byte = page.cast::<u8>();
        // SAFETY: the page is mapped, and the handler makes it writable.
        unsafe { byte.write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { byte.read_volatile() }, 7);
        drop(range);
        // SAFETY: the test's own page, which nobody uses any more.
        assert_eq!(unsafe { libc::munmap(page, 4096) }, 0);
    }

    /// Sends the thread a signal, and puts a page where the fault was.
    struct Signals;

    static SIGNALLED: AtomicBool = AtomicBool::new(false);

    extern "C" fn note_signal(_: c_int) {
        SIGNALLED.store(true, Ordering::SeqCst);
    }

    // SAFETY: system calls and loads of an atomic.
    unsafe impl ResolveFaults for Signals {
        fn resolve(&self, fault: PageFault) -> bool {
            // SAFETY: a signal for this thread.
            unsafe { libc::raise(libc::SIGUSR2) };
            !SIGNALLED.load(Ordering::SeqCst) && map_zeroes(fault.address / 4096 * 4096, 4096)
        }
    }

    #[test]
    fn signals_wait_until_fault_is_resolved() {
        let handler: extern "C" fn(c_int) = note_signal;
        // SAFETY: a handler that stores to an atomic.
        assert_ne!(unsafe { libc::signal(libc::SIGUSR2, handler as usize) }, libc::SIG_ERR);
        let file = tempfile::tempfile().unwrap();
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a mapping of its own; of an empty file, so each access is a SIGBUS.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
        let (signals, at) = (Signals, page.expose_provenance());
        // SAFETY: `signals` outlives the range, which is touched below alone.
        let range = unsafe { FaultRange::register(at, 4096, &raw const signals) };
        let range = range.unwrap().unwrap();
        // SAFETY: the page is mapped, and the handler makes it readable.
        assert_eq!(unsafe { page.cast::<u8>().read_volatile() }, 0);
        assert!(SIGNALLED.load(Ordering::SeqCst), "the signal is lost");
        drop(range);
    }

    /// Notes the shard of the thread in the handler, and puts a page there.
    struct Shard(AtomicUsize);

    // SAFETY: a store to an atomic, a thread's own word, and a system call.
    unsafe impl ResolveFaults for Shard {
        fn resolve(&self, fault: PageFault) -> bool {
            self.0.store(shard(), Ordering::SeqCst);
            map_zeroes(fault.address / 4096 * 4096, 4096)
        }
    }

    #[test]
    fn fault_on_new_thread_allocates_nothing() {
        let file = tempfile::tempfile().unwrap();
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a mapping of its own; of an empty file, so each access is a SIGBUS.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
        let (seen, at) = (Shard(AtomicUsize::new(0)), page.expose_provenance());
        // SAFETY: `seen` outlives the range, which is touched below alone.
        let range = unsafe { FaultRange::register(at, 4096, &raw const seen) }.unwrap().unwrap();
        let later = std::thread::spawn(move || {
            let page = ptr::with_exposed_provenance::<u8>(at);
            // SAFETY: the page is mapped, and the handler makes it readable.
            let byte = unsafe { page.read_volatile() };
            // Threads of another test can own all shards for a moment.
            while !has_free_shard() {
                std::thread::yield_now();
            }
            (byte, shard())
        });
        let (byte, later) = later.join().unwrap();
        assert_eq!((byte, seen.0.load(Ordering::SeqCst)), (0, SHARED));
        assert_ne!(later, SHARED, "this process has fewer threads than shards");
        drop(range);
    }
}
