//! Pages on their way to the backing device.
//!
//! Invariant: the bytes of page `n` of the list are the `n`th in the buffer, so those of a run of pages lie side by side
//! and are written as they are.

use std::ops::Range;

use crate::layout::{PAGE, Page};

/// Pages written back in one batch, with one flush of SCM and one of the backing device.
pub(crate) const BATCH_PAGES: usize = 256;

/// The state of writing back between two batches.
#[derive(Default)]
pub(crate) struct Writeback {
    /// The page after the end of the last sweep.
    pub(crate) hand: Page,
    pub(crate) in_flight: WritebackInFlight,
}

/// Pages on their way to the backing device, and their bytes side by side.
#[derive(Default)]
pub(crate) struct WritebackInFlight {
    pub(crate) pages: Vec<Page>,
    /// Room for the bytes of a batch, once there was one.
    pub(crate) bytes: Vec<u8>,
}

impl WritebackInFlight {
    /// Forgets the pages.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.bytes.resize(BATCH_PAGES * PAGE, 0);
    }

    /// Room for the bytes of the next page. The list has fewer pages than a batch.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.pages.len() * PAGE..][..PAGE]
    }

    /// The runs of adjacent pages, as places in the list.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        self.pages.chunk_by(|a, b| a + 1 == *b).map(move |run| {
            let start = end;
            end += run.len();
            start..end
        })
    }
}
