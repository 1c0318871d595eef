//! Meters of the requests to one volume, by face.

use std::sync::Arc;

use everbyte_control::{ErrorMetrics, RequestMetrics};
use everbyte_device::meter::{ErrorCause, Meter, Operation, latency_quantile_ns};

/// One of so many frequent requests is timed.
const SAMPLING: u32 = 8;

/// Meters of the requests to one volume. A face is the way of a request to the volume.
pub(crate) struct VolumeMeters {
    /// NBD clients.
    pub(crate) nbd: Meter,
    /// The kernel, for the mount of a file system.
    pub(crate) mount: Arc<Meter>,
    /// Requests within the process: files of a file system through the control socket.
    pub(crate) library: Meter,
}

impl Default for VolumeMeters {
    fn default() -> Self {
        let meter = || Meter::new(SAMPLING);
        Self { nbd: meter(), mount: Arc::new(meter()), library: meter() }
    }
}

impl VolumeMeters {
    /// Adds all counts that are not zero to the lists.
    pub(crate) fn add_to(
        &self,
        requests: &mut Vec<RequestMetrics>,
        errors: &mut Vec<ErrorMetrics>,
    ) {
        for (face, meter) in
            [("nbd", &self.nbd), ("mount", &*self.mount), ("library", &self.library)]
        {
            let totals = meter.totals();
            for operation in Operation::ALL {
                let found = totals.operation(*operation);
                if found.requests > 0 {
                    requests.push(RequestMetrics {
                        face: face.to_owned(),
                        operation: operation.name().to_owned(),
                        requests: found.requests,
                        bytes: found.bytes,
                        timed_ns: found.timed_ns,
                        buckets: found.buckets.to_vec(),
                        p50_ns: latency_quantile_ns(&found.buckets, (1, 2)),
                        p99_ns: latency_quantile_ns(&found.buckets, (99, 100)),
                    });
                }
            }
            for cause in ErrorCause::ALL {
                let count = totals.errors(*cause);
                if count > 0 {
                    let (face, cause) = (face.to_owned(), cause.name().to_owned());
                    errors.push(ErrorMetrics { face, cause, count });
                }
            }
        }
    }
}
