//! The write-back of the pages that are dirty when a trace is over.
//!
//! A policy that defers write-backs looks fast until the trace ends. So the time with a last
//! write-back is reported next to the time without: every dirty page, in the order of sectors, with
//! nothing in between.

use serde::{Deserialize, Serialize};

use crate::access::{PageAddress, PageNo};
use crate::costs::follows;
use crate::policy::{Directory, Storage, Tier};

/// Steps of the last write-back, which are in no other count.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Drain {
    /// Pages written: those that are dirty at the end.
    pub pages: u64,
    /// Those of them whose newest bytes are in SCM.
    pub pages_from_scm: u64,
    /// Pages written that did not follow the one written before; the first one is among them.
    pub write_jumps: u64,
}

impl Drain {
    /// Counts the drain of a cache as it is.
    pub(super) fn of<S: Storage>(directory: &Directory<S>, addresses: &[PageAddress]) -> Self {
        let mut drain = Self::default();
        let mut before = None;
        let mut from = PageNo(0);
        // In the order of sectors: the cheapest order, the same for each policy.
        while let Some(page) = directory.next_dirty(from) {
            drain.pages += 1;
            drain.pages_from_scm += u64::from(directory.tier(page) == Some(Tier::Scm));
            drain.write_jumps += u64::from(!follows(addresses, before, page));
            before = Some(page);
            from = PageNo(page.0 + 1);
        }
        drain
    }
}
