//! The alternate stack needed by faults.

use everbyte_swap::{Region, RegionOptions};

use crate::{MIB, UNIT, space};

const STACK: usize = 64 << 10;
const PAINT: u8 = 0xa5;

/// Runs `work` on a thread with a painted signal stack; returns the number of used bytes.
fn stack_used(work: impl FnOnce() + Send) -> usize {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut paint = vec![PAINT; STACK];
            let stack =
                libc::stack_t { ss_sp: paint.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK };
            // SAFETY: all-zero bytes are a valid description of a stack.
            let mut before: libc::stack_t = unsafe { std::mem::zeroed() };
            // SAFETY: `paint` outlives its use, which ends below.
            let set = unsafe { libc::sigaltstack(&raw const stack, &raw mut before) };
            assert_eq!(set, 0);
            work();
            // SAFETY: gives the thread its own stack back.
            let reset = unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) };
            assert_eq!(reset, 0);
            STACK - paint.iter().position(|byte| *byte != PAINT).unwrap_or(STACK)
        });
        thread.join().unwrap()
    })
}

#[test]
fn evicting_fault_fits_alternate_stack() {
    // SAFETY: asks for a number.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    let frame = usize::try_from(frame).unwrap();
    let space = space(16 * MIB);
    let mut region = Region::map(16 * MIB, MIB / 4, &space, &RegionOptions::new()).unwrap();
    let used = stack_used(|| {
        // Until this thread has been faster than the evictor.
        for round in 0..100 {
            for at in (0..region.len()).step_by(usize::try_from(UNIT).unwrap()) {
                region.as_mut_slice()[usize::try_from(at).unwrap()] = round;
            }
            if region.statistics().direct_evictions > 0 {
                return;
            }
        }
        panic!("no fault evicted: {:?}", region.statistics());
    });
    // The standard library's threads have 8 KiB, or the system's size of a frame.
    assert!(used > 0 && used <= frame.max(8192), "{used} bytes, of which {frame} are the frame");
}
