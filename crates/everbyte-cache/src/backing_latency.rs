//! The latency of the backing device, as measured by requests, for policies that weigh costs.
//!
//! A request takes a time per page and, unless it continues at the end of the previous one of its
//! kind, a jump. Each read is timed. Write-backs are timed by batch, with the flush that makes them
//! durable, and are assumed to have the reads' time per page. Averages forget: the device may
//! change.
//!
//! Measuring starts on request, so that caches without a write-back thread decide the same in every
//! run.

use std::time::Duration;

use everbyte_policy::sim::{BackingCosts, Costs};

use crate::layout::Page;

/// The weight of one request in an average.
const SHARE: f64 = 1.0 / 32.0;
/// Requests between two reports of costs to the policy.
const REQUESTS: u32 = 64;

/// Averages of the times of requests.
#[derive(Debug)]
pub(crate) struct BackingLatency {
    measures: bool,
    costs: Costs,
    next_read: Option<Page>,
    requests: u32,
}

impl BackingLatency {
    /// Assumes these costs until others are measured.
    pub(crate) fn new(costs: Costs) -> Self {
        Self { measures: false, costs, next_read: None, requests: 0 }
    }

    /// Measures from now on.
    pub(crate) fn measure(&mut self) {
        self.measures = true;
    }

    /// Notes a read of `pages` pages from `first` on.
    pub(crate) fn read(&mut self, first: Page, pages: usize, took: Duration) -> Option<Costs> {
        let backing = &mut self.costs.backing;
        let follows = self.next_read == Some(first);
        self.next_read = u32::try_from(pages).ok().and_then(|pages| first.checked_add(pages));
        let (took_ns, pages) = (nanoseconds(took), count(pages));
        if follows {
            approach(&mut backing.read_page_ns, took_ns / pages);
        } else {
            // A read from the device's own cache can be faster than the average time of its pages.
            let jump_ns = (took_ns - pages * backing.read_page_ns).max(0.0);
            approach(&mut backing.read_jump_ns, jump_ns);
        }
        self.noted()
    }

    /// Notes a write-back of `pages` pages in `runs` runs, and its flush.
    pub(crate) fn wrote(&mut self, runs: usize, pages: usize, took: Duration) -> Option<Costs> {
        let BackingCosts { read_page_ns, write_jump_ns, .. } = self.costs.backing;
        let jump_ns = (nanoseconds(took) - count(pages) * read_page_ns).max(0.0) / count(runs);
        let mut average_ns = write_jump_ns;
        approach(&mut average_ns, jump_ns);
        // A measured batch contains its turns between reads and writes, so they are not added
        // again.
        let turns = BackingCosts { turn_ns: 0.0, batch_writes: 1, ..self.costs.backing };
        self.costs.backing =
            BackingCosts { write_page_ns: read_page_ns, write_jump_ns: average_ns, ..turns };
        self.noted()
    }

    /// Returns the new costs for the policy, once every `REQUESTS` requests.
    fn noted(&mut self) -> Option<Costs> {
        self.requests += 1;
        (self.measures && self.requests.is_multiple_of(REQUESTS)).then_some(self.costs)
    }
}

fn approach(average: &mut f64, value: f64) {
    *average += (value - *average) * SHARE;
}

#[allow(clippy::cast_precision_loss, reason = "an average of times needs no 53 bits")]
fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// A count to divide by.
#[allow(clippy::cast_precision_loss, reason = "few pages")]
fn count(pages: usize) -> f64 {
    pages.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far from the beginning's, near to the device's own: 1 ms a jump, 10 us a page.
    #[test]
    fn latency_converges_after_some_requests() {
        let mut latency = BackingLatency::new(Costs::default());
        latency.measure();
        let mut reported = None;
        for at in 0..200 {
            let first = at * 1000;
            reported = latency.read(first, 4, Duration::from_micros(1040)).or(reported);
            reported = latency.read(first + 4, 2, Duration::from_micros(20)).or(reported);
            reported = latency.wrote(3, 6, Duration::from_micros(3060)).or(reported);
        }
        let reported = reported.expect("more than 64 requests").backing;
        let is_near = |ns: f64, wanted: f64| (ns - wanted).abs() < wanted / 20.0;
        assert!(is_near(reported.read_page_ns, 10_000.0), "{reported:?}");
        assert!(is_near(reported.read_jump_ns, 1_000_000.0), "{reported:?}");
        assert!(is_near(reported.write_jump_ns, 1_000_000.0), "{reported:?}");
        assert_eq!(reported.write_page_ns, reported.read_page_ns);
    }

    #[test]
    fn latency_is_measured_only_on_request() {
        let mut latency = BackingLatency::new(Costs::default());
        let mut requests = (0..1000).map(|at| latency.read(at * 9, 1, Duration::from_millis(9)));
        assert!(requests.all(|reported| reported.is_none()));
    }
}
