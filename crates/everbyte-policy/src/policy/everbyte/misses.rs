//! Misses of a policy, counted with the jumps of the backing device that they cause.

use super::PAGE;
use crate::access::{Access, Op};

/// Pages that the backing device reads on without a jump.
const GAP_PAGES: u32 = 8;

/// Misses, and the jumps of the backing device that they caused.
#[derive(Default)]
pub(super) struct Misses {
    pub(super) count: u64,
    pub(super) jumps: u64,
    /// One more than the page read last.
    read_to: u32,
}

impl Misses {
    /// Counts a miss. A page that is overwritten as a whole is not read.
    pub(super) fn add(&mut self, access: Access) {
        self.count += 1;
        if access.op == Op::Read || u64::from(access.len) < PAGE {
            let page = access.page.0;
            self.jumps += u64::from(page.wrapping_sub(self.read_to) >= GAP_PAGES);
            self.read_to = page + 1;
        }
    }
}
