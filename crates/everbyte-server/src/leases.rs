//! Leases of an open pool's swap volumes, for programs asking through the control socket.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use everbyte::Volume;
use everbyte_control::{Answer, Attached, RequestError, Response, maker_of, send_descriptor};

use crate::open_pool::OpenPool;
use crate::request_error::refused;

impl OpenPool {
    /// Lends runs of the volume `name`, and sends their descriptor through the socket of the
    /// request.
    pub(crate) fn lend(&self, name: &str, bytes: u64, attached: Attached) -> Answer {
        self.check_changing()?;
        let Some(socket) = attached.descriptor.map(UnixStream::from) else {
            return Err(RequestError::new("no socket for the lease came with the request"));
        };
        let pid = maker_of(&socket)
            .map_err(|error| format!("no socket came with the request: {error}"))?;
        let volume = self.volumes.get(name)?;
        // Not a client of the volume: the locks of the lease identify the users of its runs.
        let _op = volume.begin_op(name)?;
        let Volume::Swap(swap) = &volume.volume else {
            let reason = "the volume is no swap volume, so nothing of it is lent";
            return Err(RequestError::new(reason));
        };
        let lease = swap.lend(bytes, pid).map_err(refused)?;
        // After a failure the lease is dropped, and its runs are free again.
        send_descriptor(&socket, lease.file.as_fd())
            .map_err(|error| format!("the lease cannot be sent: {error}"))?;
        let runs = lease.ranges.iter().map(|range| (range.end - range.start) >> 21).sum::<u64>();
        tracing::info!(volume = volume.name(), pid, runs, "lent");
        let ranges = lease.ranges.iter().map(|range| (range.start, range.end)).collect();
        Ok(Response::Lent { ranges })
    }
}
