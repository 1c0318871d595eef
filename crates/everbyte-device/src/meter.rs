//! Counts and latencies of requests, by operation.
//!
//! Invariants: counts only grow. The buckets of an operation contain each timed request once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::error::DeviceError;

/// Shards of a [`Meter`] at most. Further users share them.
const SHARDS_MAX: usize = 8;

/// Upper bound of the first latency bucket, in ns. The bound of each later bucket is twice as large.
const FIRST_BUCKET_NS: u64 = 500;

/// Latency buckets with an upper bound: from 500 ns to 4.2 s.
const BOUNDED_BUCKETS: usize = 24;

/// Latency buckets. The last one has no upper bound.
pub const LATENCY_BUCKETS: usize = BOUNDED_BUCKETS + 1;

macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($(#[$about:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $type { $($(#[$about])* $variant,)* }

        impl $type {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name, in lower case.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

named! {
    /// An operation of a volume, as a client requests it.
    Operation {
        /// Bytes were read.
        Read = "read",
        /// Bytes were written.
        Write = "write",
        /// Earlier writes became durable.
        Flush = "flush",
        /// Space was freed.
        Trim = "trim",
        /// A range was made zero.
        WriteZeroes = "write_zeroes",
        /// Holes and data were listed.
        Status = "status",
        /// A range was loaded.
        Prefetch = "prefetch",
        /// A name was looked up.
        Lookup = "lookup",
        /// A file was opened.
        Open = "open",
        /// Attributes of a file were read or changed.
        Attributes = "attributes",
        /// A name was made, changed or removed.
        Names = "names",
        /// A directory was listed.
        List = "list",
        /// Space was reserved or freed in a file, or bytes were copied between files.
        Allocate = "allocate",
    }
}

named! {
    /// Cause of a failed request.
    ErrorCause {
        /// The medium or a backing device failed.
        Media = "media",
        /// No space was left.
        NoSpace = "no_space",
        /// The request left the volume.
        OutOfRange = "out_of_range",
        /// The volume is read-only.
        ReadOnly = "read_only",
        /// The volume is being removed or closed.
        Gone = "gone",
        /// The request is invalid or unsupported.
        Refused = "refused",
    }
}

const OPERATIONS: usize = Operation::ALL.len();
const CAUSES: usize = ErrorCause::ALL.len();

impl ErrorCause {
    /// The cause of a device's error.
    #[must_use]
    pub fn of(error: &DeviceError) -> Self {
        match error {
            DeviceError::OutOfRange { .. } => Self::OutOfRange,
            DeviceError::NoSpace { .. } => Self::NoSpace,
            DeviceError::ReadOnly { .. } => Self::ReadOnly,
            DeviceError::NotFast => Self::Refused,
            DeviceError::Media { .. } => Self::Media,
            DeviceError::Gone => Self::Gone,
        }
    }
}

/// Upper bound of latency bucket `bucket` in ns; `None` for the last one.
#[must_use]
pub fn latency_bound_ns(bucket: usize) -> Option<u64> {
    (bucket < BOUNDED_BUCKETS).then(|| FIRST_BUCKET_NS << bucket)
}

fn bucket_of(ns: u64) -> usize {
    let units = ns.div_ceil(FIRST_BUCKET_NS).max(1);
    // The index of the least power of two that is not below `units`.
    let bucket = (u64::BITS - (units - 1).leading_zeros()) as usize;
    bucket.min(BOUNDED_BUCKETS)
}

/// Counts of one operation, as they were a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct OperationTotals {
    /// Requests, failed ones included.
    pub requests: u64,
    /// Bytes of the successful requests.
    pub bytes: u64,
    /// Sum of the latencies of the timed requests, in ns.
    pub timed_ns: u64,
    /// Timed requests by latency. See [`latency_bound_ns`].
    pub buckets: [u64; LATENCY_BUCKETS],
}

impl OperationTotals {
    /// Requests with a measured latency.
    #[must_use]
    pub fn timed(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Counts of all requests of a [`Meter`], as they were a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestTotals {
    operations: [OperationTotals; OPERATIONS],
    errors: [u64; CAUSES],
}

impl RequestTotals {
    /// Counts of one operation.
    #[must_use]
    pub fn operation(&self, operation: Operation) -> &OperationTotals {
        &self.operations[operation as usize]
    }

    /// Failed requests with this cause.
    #[must_use]
    pub fn errors(&self, cause: ErrorCause) -> u64 {
        self.errors[cause as usize]
    }
}

#[derive(Default)]
struct OperationCounts {
    requests: AtomicU64,
    bytes: AtomicU64,
    timed_ns: AtomicU64,
    buckets: [AtomicU64; LATENCY_BUCKETS],
}

/// Counts of some users of a [`Meter`], such as a connection.
///
/// A private shard keeps a user's counts from the processor caches of other users.
pub struct MeterShard {
    operations: [OperationCounts; OPERATIONS],
    errors: [AtomicU64; CAUSES],
    sampling: u64,
}

/// The beginning of requests, from [`MeterShard::begin`].
#[must_use]
pub struct StartedRequests {
    operation: Operation,
    /// The time, and the requests for which it counts.
    since: Option<(Instant, u64)>,
}

impl MeterShard {
    fn new(sampling: u64) -> Self {
        Self { operations: Default::default(), errors: Default::default(), sampling }
    }

    /// Counts `requests` requests that the volume gets together. Reads the clock if a latency is due.
    pub fn begin(&self, operation: Operation, requests: u64) -> StartedRequests {
        let before =
            self.operations[operation as usize].requests.fetch_add(requests, Ordering::Relaxed);
        let samples = match operation {
            // Reads of the clock would be a large part of these requests.
            Operation::Read | Operation::Write | Operation::Lookup | Operation::Attributes => {
                (before + requests).div_ceil(self.sampling) - before.div_ceil(self.sampling)
            }
            _ => requests,
        };
        let since = (samples > 0).then(|| (Instant::now(), samples));
        StartedRequests { operation, since }
    }

    /// Counts the end of `started`, with the bytes of its successful requests.
    pub fn end(&self, started: &StartedRequests, bytes: u64) {
        let counts = &self.operations[started.operation as usize];
        if bytes > 0 {
            counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some((since, samples)) = started.since {
            let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            counts.timed_ns.fetch_add(ns.saturating_mul(samples), Ordering::Relaxed);
            counts.buckets[bucket_of(ns)].fetch_add(samples, Ordering::Relaxed);
        }
    }

    /// Counts a failed request.
    pub fn fail(&self, cause: ErrorCause) {
        self.errors[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, totals: &mut RequestTotals) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for (total, counts) in totals.operations.iter_mut().zip(&self.operations) {
            total.requests += get(&counts.requests);
            total.bytes += get(&counts.bytes);
            total.timed_ns = total.timed_ns.saturating_add(get(&counts.timed_ns));
            for (total, count) in total.buckets.iter_mut().zip(&counts.buckets) {
                *total += get(count);
            }
        }
        for (total, count) in totals.errors.iter_mut().zip(&self.errors) {
            *total += get(count);
        }
    }
}

/// Counts and latencies of the requests of a volume by one way.
///
/// A shard measures one of every `sampling` reads, writes, look-ups and requests for attributes, beginning
/// with the first, and each other request. Two reads of the clock cost up to a tenth of a small write.
pub struct Meter {
    sampling: u64,
    shards: Mutex<Vec<Arc<MeterShard>>>,
    users: AtomicUsize,
}

impl Meter {
    /// An empty meter that measures one of every `sampling` frequent requests; 0 counts as 1.
    #[must_use]
    pub fn new(sampling: u32) -> Self {
        let sampling = u64::from(sampling.max(1));
        Self { sampling, shards: Mutex::default(), users: AtomicUsize::new(0) }
    }

    /// Returns the counts for another user.
    #[must_use]
    pub fn shard(&self) -> Arc<MeterShard> {
        let user = self.users.fetch_add(1, Ordering::Relaxed);
        let mut shards = self.shards.lock();
        if shards.len() < SHARDS_MAX {
            shards.push(Arc::new(MeterShard::new(self.sampling)));
        }
        Arc::clone(&shards[user % shards.len()])
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn totals(&self) -> RequestTotals {
        let mut totals = RequestTotals::default();
        for shard in self.shards.lock().iter() {
            shard.add_to(&mut totals);
        }
        totals
    }
}

/// The latency below which `share` of the requests in `buckets` are, in ns. The value is the upper bound of a
/// bucket. `None` if the buckets are empty or the latency has no bound.
#[must_use]
pub fn latency_quantile_ns(buckets: &[u64], share: (u64, u64)) -> Option<u64> {
    let (part, whole) = share;
    let total: u64 = buckets.iter().sum();
    let wanted = u128::from(total) * u128::from(part);
    let mut seen = 0_u128;
    let at = buckets.iter().position(|count| {
        seen += u128::from(*count) * u128::from(whole);
        seen > 0 && seen >= wanted
    });
    at.and_then(latency_bound_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_buckets_include_their_bounds() {
        for bucket in 0..BOUNDED_BUCKETS {
            let bound = latency_bound_ns(bucket).unwrap();
            assert_eq!(bucket_of(bound), bucket);
            assert_eq!(bucket_of(bound + 1), bucket + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BOUNDED_BUCKETS));
        assert_eq!(latency_bound_ns(BOUNDED_BUCKETS), None);
    }

    #[test]
    fn batches_are_sampled_like_single_requests() {
        for batches in [vec![1; 24], vec![24], vec![7, 1, 9, 7]] {
            let meter = Meter::new(8);
            let shard = meter.shard();
            for requests in batches {
                let started = shard.begin(Operation::Write, requests);
                shard.end(&started, 10 * requests);
            }
            let totals = meter.totals();
            let writes = totals.operation(Operation::Write);
            assert_eq!((writes.requests, writes.bytes, writes.timed()), (24, 240, 3));
        }
    }

    #[test]
    fn shards_are_bounded_and_all_counted() {
        let meter = Meter::new(1);
        let shards: Vec<_> = (0..3 * SHARDS_MAX).map(|_| meter.shard()).collect();
        for shard in &shards {
            shard.end(&shard.begin(Operation::Flush, 1), 0);
            shard.fail(ErrorCause::NoSpace);
        }
        let totals = meter.totals();
        assert_eq!(meter.shards.lock().len(), SHARDS_MAX);
        assert_eq!(totals.operation(Operation::Flush).timed(), shards.len() as u64);
        assert_eq!(totals.errors(ErrorCause::NoSpace), shards.len() as u64);
    }

    #[test]
    fn latency_quantiles_are_bounds_of_buckets() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(latency_quantile_ns(&buckets, (1, 2)), None);
        (buckets[2], buckets[5]) = (99, 1);
        assert_eq!(latency_quantile_ns(&buckets, (1, 2)), latency_bound_ns(2));
        assert_eq!(latency_quantile_ns(&buckets, (99, 100)), latency_bound_ns(2));
        assert_eq!(latency_quantile_ns(&buckets, (999, 1000)), latency_bound_ns(5));
        buckets[LATENCY_BUCKETS - 1] = 1000;
        assert_eq!(latency_quantile_ns(&buckets, (1, 2)), None);
    }
}
