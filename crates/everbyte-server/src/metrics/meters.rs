//! Meters of the requests to one volume, by face.

use std::sync::Arc;

use everbyte_control::{
    AttachedAnswer, Cause, ErrorMetrics, FileRequest, RequestError, RequestMetrics,
};
use everbyte_device::meter::{ErrorCause, Meter, MeterShard, Operation, latency_quantile_ns};

/// One of so many frequent requests is timed.
const SAMPLING: u32 = 32;

/// A way of clients to the device of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Face {
    /// NBD clients.
    Nbd,
    /// Virtual machines.
    Vhost,
}

/// Meters of the requests to one volume. A face is the way of a request to the volume.
pub(crate) struct VolumeMeters {
    nbd: Meter,
    vhost: Meter,
    /// The kernel, for the mount of a file system.
    pub(crate) mount: Arc<Meter>,
    /// Requests within the process: files of a file system through the control socket.
    library: Meter,
    library_shard: Arc<MeterShard>,
}

impl Default for VolumeMeters {
    fn default() -> Self {
        let meter = || Meter::new(SAMPLING);
        let library = meter();
        let library_shard = library.shard();
        Self { nbd: meter(), vhost: meter(), mount: Arc::new(meter()), library, library_shard }
    }
}

impl VolumeMeters {
    /// The meter of the clients of this face.
    pub(crate) fn of(&self, face: Face) -> &Meter {
        match face {
            Face::Nbd => &self.nbd,
            Face::Vhost => &self.vhost,
        }
    }

    /// Counts a request about files and its outcome.
    pub(crate) fn count_files(
        &self,
        request: &FileRequest,
        written: &[u8],
        carry_out: impl FnOnce() -> AttachedAnswer,
    ) -> AttachedAnswer {
        let started = self.library_shard.begin(operation_of(request), 1);
        let answer = carry_out();
        let bytes = answer.as_ref().map_or(0, |(_, read)| read.len() + written.len());
        self.library_shard.end(&started, bytes as u64);
        if let Some(cause) = answer.as_ref().err().and_then(cause_of) {
            self.library_shard.fail(cause);
        }
        answer
    }

    /// Adds all counts that are not zero to the lists.
    pub(crate) fn add_to(
        &self,
        requests: &mut Vec<RequestMetrics>,
        errors: &mut Vec<ErrorMetrics>,
    ) {
        let faces = [
            ("nbd", &self.nbd),
            ("vhost", &self.vhost),
            ("mount", &*self.mount),
            ("library", &self.library),
        ];
        for (face, meter) in faces {
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

fn operation_of(request: &FileRequest) -> Operation {
    match request {
        FileRequest::Read { .. } => Operation::Read,
        FileRequest::Write { .. } => Operation::Write,
        FileRequest::Sync => Operation::Flush,
        FileRequest::Find { .. } => Operation::Lookup,
        FileRequest::List { .. } => Operation::List,
        FileRequest::Data { .. } => Operation::Status,
        FileRequest::Set { .. } | FileRequest::Space => Operation::Attributes,
        _ => Operation::Names,
    }
}

/// The cause of a refusal; `None` for a missing file, which is an answer.
fn cause_of(refused: &RequestError) -> Option<ErrorCause> {
    Some(match refused.cause {
        Some(Cause::NoSuchFile) => return None,
        Some(Cause::FilesFull | Cause::PoolFull) => ErrorCause::NoSpace,
        Some(Cause::VolumeDamaged | Cause::FileDamaged) => ErrorCause::Media,
        Some(Cause::ServedReadOnly) => ErrorCause::ReadOnly,
        Some(Cause::ShuttingDown) => ErrorCause::Gone,
        _ => ErrorCause::Refused,
    })
}
