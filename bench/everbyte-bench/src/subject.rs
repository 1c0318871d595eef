//! Subjects of measurements, their capabilities and their counts.

use anyhow::Result;
use everbyte_device::{BlockDevice, Fua};

use crate::stats::as_f64;
use crate::workload::{Payload, Workload};

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
    /// True if the format implies the sums and nothing counted them.
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

    /// Metrics, units and means over `requests` requests.
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

/// A subject of measurements at workloads of type `W`. It lives for the whole run, because rounds alternate between
/// subjects.
pub(crate) trait Subject<W = Workload>: Sync {
    /// Name in the results.
    fn name(&self) -> &str;

    /// Returns the reason if the subject has no part in `workload`.
    fn refuses(&self, _workload: &W) -> Option<String> {
        None
    }

    /// Brings the subject into the first state of `workload`. Not measured.
    ///
    /// # Errors
    /// The subject's.
    fn prepare(&self, _workload: &W) -> Result<()> {
        Ok(())
    }

    /// Opens a thread's session: the capability of a block device.
    ///
    /// # Errors
    /// The subject's.
    fn open(&self, workload: &W) -> Result<Box<dyn Session + '_>>;

    /// Counts so far, if the subject has counters.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Processor time of the subject's server so far, in nanoseconds. `None` without a server.
    fn server_cpu_ns(&self) -> Option<u64> {
        None
    }
}

/// One thread's requests to a subject. Requests lie inside the device.
pub(crate) trait Session {
    /// Reads into `out`. A session with several requests in flight reads into memory of the client.
    ///
    /// # Errors
    /// The subject's.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Writes. A session with several requests in flight returns before the answer.
    ///
    /// # Errors
    /// The subject's; the error can belong to an earlier request.
    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()>;

    /// Makes this session's earlier writes durable. Does nothing if the subject is volatile, or durable at each write.
    ///
    /// # Errors
    /// The subject's.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for the answers to all requests.
    ///
    /// # Errors
    /// The subject's.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<D: BlockDevice + ?Sized> Session for &D {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(BlockDevice::read(*self, offset, out)?)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        Ok(BlockDevice::write(*self, offset, data, fua)?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(BlockDevice::flush(*self)?)
    }
}

/// Writes the unedited bytes to a whole device, in requests of `bytes`.
///
/// # Errors
/// The subject's.
pub(crate) fn fill(session: &mut dyn Session, size_bytes: u64, bytes: usize) -> Result<()> {
    let payload = Payload::unedited();
    for request in 0..size_bytes / bytes as u64 {
        session.write(request * bytes as u64, payload.first(bytes), Fua::No)?;
    }
    Ok(())
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
