//! The model: bounds on the rate of requests by the number of threads.
//!
//! Knows figures alone.

use std::fmt;

use crate::stats::as_f64;

/// Something that bounds the rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bound {
    /// The threads themselves: each does one request at a time.
    Threads,
    /// Lanes of the log: a writer has one to itself, at most for as long as its request takes.
    Lanes,
    /// Lines that requests of all threads store to, as if they were one: it is handed from processor to processor.
    Line,
    /// The medium's bandwidth.
    Medium,
}

impl Bound {
    /// Those that threads share.
    pub(super) const SHARED: [Self; 3] = [Self::Lanes, Self::Line, Self::Medium];

    /// The metric of the number of threads from which on it counts.
    pub(super) fn metric(self) -> &'static str {
        match self {
            Self::Threads => "threads_alone",
            Self::Lanes => "lanes_from",
            Self::Line => "line_from",
            Self::Medium => "medium_from",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::Lanes => "lanes",
            Self::Line => "line",
            Self::Medium => "medium",
        })
    }
}

/// A kind of request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Nanoseconds of one thread's.
    pub(super) time_ns: f64,
    /// Lanes of the volume, if it takes one.
    pub(super) lanes: Option<u32>,
    /// Nanoseconds that it keeps shared lines from others.
    pub(super) line_ns: Option<f64>,
    /// Nanoseconds that the medium takes for its bytes, if it did nothing else.
    pub(super) medium_ns: Option<f64>,
}

impl Request {
    /// The number of threads at which their own rate is that which `bound` allows.
    pub(super) fn threads_at(&self, bound: Bound) -> Option<f64> {
        let of = |ns: Option<f64>| ns.filter(|ns| *ns > 0.0).map(|ns| self.time_ns / ns);
        match bound {
            Bound::Threads => None,
            Bound::Lanes => self.lanes.map(|lanes| as_f64(u64::from(lanes))),
            Bound::Line => of(self.line_ns),
            Bound::Medium => of(self.medium_ns),
        }
    }

    /// Requests a second of `threads` threads at most, and what keeps them from more.
    pub(super) fn rate(&self, threads: u32) -> (Bound, f64) {
        let alone = (Bound::Threads, as_f64(u64::from(threads)));
        let shared = Bound::SHARED.map(|bound| Some((bound, self.threads_at(bound)?)));
        let least = shared
            .into_iter()
            .flatten()
            .fold(alone, |least, other| if other.1 < least.1 { other } else { least });
        (least.0, least.1 * 1e9 / self.time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request =
        Request { time_ns: 500.0, lanes: Some(8), line_ns: Some(100.0), medium_ns: Some(25.0) };

    #[test]
    fn the_least_bound_counts() {
        assert_eq!(REQUEST.rate(1), (Bound::Threads, 2e6));
        assert_eq!(REQUEST.rate(5), (Bound::Threads, 1e7));
        assert_eq!(REQUEST.rate(6), (Bound::Line, 1e7));
        let no_line = Request { line_ns: Some(0.0), ..REQUEST };
        assert_eq!(no_line.rate(64), (Bound::Lanes, 1.6e7));
        let many = Request { lanes: None, ..no_line };
        assert_eq!(many.rate(64), (Bound::Medium, 4e7));
        assert_eq!(many.threads_at(Bound::Line), None);
        let free = Request { medium_ns: None, ..many };
        assert_eq!(free.rate(64), (Bound::Threads, 1.28e8));
    }
}
