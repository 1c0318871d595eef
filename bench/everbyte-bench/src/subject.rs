//! Subjects of measurements: a place that can be read and written.

use anyhow::Result;
use everbyte_device::Fua;

use crate::stats::as_f64;
use crate::workload::Workload;

/// Exact sums of a subject's work on its medium.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) bytes_stored: u64,
    pub(crate) lines_stored: u64,
    pub(crate) lines_flushed: u64,
    pub(crate) fences: u64,
    pub(crate) log_bytes: u64,
    /// Time of an emulated medium by its model.
    pub(crate) modelled_ns: u64,
    /// True if the sums follow from the format and were not counted.
    pub(crate) modelled: bool,
}

impl Counts {
    /// Combines each sum of both.
    fn combined(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            bytes_stored: with(self.bytes_stored, other.bytes_stored),
            lines_stored: with(self.lines_stored, other.lines_stored),
            lines_flushed: with(self.lines_flushed, other.lines_flushed),
            fences: with(self.fences, other.fences),
            log_bytes: with(self.log_bytes, other.log_bytes),
            modelled_ns: with(self.modelled_ns, other.modelled_ns),
            modelled: self.modelled || other.modelled,
        }
    }

    /// Returns the events between `earlier` and `self`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.combined(earlier, |later, earlier| later - earlier)
    }

    /// Returns the events of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.combined(other, |one, other| one + other)
    }

    /// Metrics, units and means, if `requests` requests took all of it.
    pub(crate) fn means(&self, requests: u64) -> [(&'static str, &'static str, f64); 5] {
        let each = |sum: u64| as_f64(sum) / as_f64(requests);
        [
            ("bytes_stored", "B/request", each(self.bytes_stored)),
            ("lines_stored", "1/request", each(self.lines_stored)),
            ("lines_flushed", "1/request", each(self.lines_flushed)),
            ("fences", "1/request", each(self.fences)),
            ("log_bytes", "B/request", each(self.log_bytes)),
        ]
    }
}

/// Something to measure. It stays in use for the whole run, so that rounds can alternate.
pub(crate) trait Subject: Sync {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Returns the reason why it cannot do `workload`, if it cannot.
    fn refuses(&self, _workload: &Workload) -> Option<String> {
        None
    }

    /// Brings it into the state that `workload` starts from. Not measured.
    ///
    /// # Errors
    /// The subject's.
    fn prepare(&self, _workload: &Workload) -> Result<()> {
        Ok(())
    }

    /// Opens a thread's session.
    ///
    /// # Errors
    /// The subject's.
    fn open(&self, workload: &Workload) -> Result<Box<dyn Session + '_>>;

    /// Sums so far, if it can tell.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Processor time of the server behind it so far, in nanoseconds, if there is one.
    fn server_cpu_ns(&self) -> Option<u64> {
        None
    }
}

/// One thread's use of a subject. Requests lie inside the device.
pub(crate) trait Session {
    /// Reads into `out`, or into memory of its own where requests overlap in time.
    ///
    /// # Errors
    /// The subject's.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Writes; may return before it is answered where requests overlap in time.
    ///
    /// # Errors
    /// The subject's, perhaps an earlier request's.
    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()>;

    /// Makes this session's earlier writes durable, as far as the subject can.
    ///
    /// # Errors
    /// The subject's.
    fn flush(&mut self) -> Result<()>;

    /// Waits for every request to be answered.
    ///
    /// # Errors
    /// The subject's.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_the_sum_of_all_rounds() {
        let one = Counts { bytes_stored: 100, fences: 1, ..Counts::default() };
        let other = Counts { bytes_stored: 300, fences: 3, log_bytes: 8, modelled: true, ..one };
        let sum = one.plus(&other);
        assert!(sum.modelled && sum.since(&one) == other);
        let means = sum.means(4).map(|(_, _, mean)| mean);
        assert_eq!(means, [100.0, 0.0, 0.0, 1.0, 2.0]);
    }
}
