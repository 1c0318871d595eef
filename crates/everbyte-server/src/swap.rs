//! Swap volumes: lent to programs in runs, or exported as a whole as a device that keeps nothing.

use std::sync::{Arc, Weak};

use everbyte_control::{KindStatus, NewVolume, Refused, SwapStatus, VolumeStatus};
use everbyte_device::BlockDevice;
use everbyte_pool::ScrubReport;
use everbyte_swap_volume::{
    Lease, Lender, LenderStatus, RUN_BYTES, ScratchDevice, SwapError, SwapOptions, SwapVolume,
};
use parking_lot::Mutex;

use crate::context::{Context, Unshared};
use crate::handle::{Handle, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::refusal::refused;

/// A swap volume's handle.
pub(crate) struct SwapHandle {
    lender: Lender,
    /// The device that clients of the export share, as long as there are any.
    scratch: Mutex<Weak<ScratchDevice>>,
}

impl SwapHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        _: Unshared<'_>,
    ) -> Result<Opened, Refused> {
        if new.cache.is_some() {
            return Err(Refused::new("only caches have a backing device".to_owned()));
        }
        if new.fs.is_some() {
            return Err(Refused::new("only file systems have an index".to_owned()));
        }
        let options = SwapOptions { wipes: new.wipe };
        Self::opened(SwapVolume::create(&context.pool, &new.name, new.size_bytes, options))
    }

    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        Self::opened(SwapVolume::open(&context.pool, name))
    }

    fn opened(
        volume: Result<SwapVolume<everbyte_media::Mapped>, SwapError>,
    ) -> Result<Opened, Refused> {
        let lender = volume.and_then(Lender::new).map_err(refused)?;
        let volume = Arc::clone(lender.volume().volume());
        Ok(Opened { volume, handle: Box::new(Self { lender, scratch: Mutex::default() }) })
    }
}

impl Handle for SwapHandle {
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        let scratch = &mut *self.scratch.lock();
        if let Some(device) = scratch.upgrade() {
            return Ok(device);
        }
        let device = self.lender.scratch();
        let device = device.map_err(|error| Unavailable::new("lent", error.to_string()))?;
        let device = Arc::new(device);
        *scratch = Arc::downgrade(&device);
        Ok(device)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn lend(&self, bytes: u64, pid: u32) -> Result<Lease, Refused> {
        self.lender.lend(bytes.div_ceil(RUN_BYTES), pid).map_err(refused)
    }

    fn complete(&self, status: &mut VolumeStatus) {
        // What the kernel does not say is left out.
        if let Ok(LenderStatus { lent, pids, .. }) = self.lender.status() {
            let swap = SwapStatus { lent_bytes: lent * RUN_BYTES, pids };
            status.of_kind = Some(KindStatus::Swap(swap));
        }
    }

    /// Finds nothing: what programs keep here is theirs, and means nothing to others.
    fn scrub(&self, _: u64) -> Result<(ScrubReport, Option<u64>), Refused> {
        Ok((ScrubReport::default(), None))
    }

    fn resizes_beside_clients(&self, _: &Resize) -> bool {
        false
    }

    fn resize(&self, resize: &Resize, _: Option<Alone>) -> Result<(), Refused> {
        match resize {
            Resize::Size(bytes) => self.lender.resize(*bytes).map_err(refused),
            Resize::Memory(_) => Err(Refused::new(format!(
                "volume {} is no cache: it has a size only",
                self.lender.volume().volume().name()
            ))),
        }
    }

    fn release(&self) -> Result<(), Refused> {
        self.lender.close().map_err(refused)
    }
}
