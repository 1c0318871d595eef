//! Swap volumes: lent to programs in runs, or exported as a whole as a device that keeps nothing.

use std::sync::{Arc, Weak};

use everbyte_control::{Cause, KindStatus, NewVolume, Refused, SwapStatus, VolumeStatus};
use everbyte_device::{BlockDevice, Decorator, Passthrough};
use everbyte_media::OwnMemory;
use everbyte_pool::ScrubReport;
use everbyte_swap_volume::{
    Lease, Lender, LenderStatus, RUN_BYTES, ScratchDevice, SwapError, SwapOptions, SwapVolume,
};
use parking_lot::Mutex;

use crate::context::{Context, NewBacking, check_no_backing, check_no_index};
use crate::handle::{Handle, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::reclaim::{flush_io_from_here, lock_own_memory};
use crate::refusal::refused;

/// A swap volume's handle.
pub(crate) struct SwapHandle {
    lender: Lender,
    /// True if the pool is a private copy, in which nothing can be lent.
    unchanging: bool,
    /// The device that clients of the export share, as long as there are any.
    exported: Mutex<Weak<Exported>>,
}

/// A volume's device, for which this process is ready to serve those who page to it.
struct Exported {
    device: ScratchDevice,
    /// `None` without the right to it.
    _own_memory: Option<OwnMemory>,
}

impl Decorator for Exported {
    type Inner = ScratchDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }
}

impl SwapHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        _: &NewBacking<'_>,
    ) -> Result<Opened, Refused> {
        check_no_backing(new)?;
        check_no_index(new)?;
        let options = SwapOptions { wipes: new.wipe };
        let made = SwapVolume::create(&context.pool, &new.name, new.size_bytes, options);
        Self::opened(context, made)
    }

    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        Self::opened(context, SwapVolume::open(&context.pool, name))
    }

    fn opened(
        context: &Context,
        volume: Result<SwapVolume<everbyte_media::Mapped>, SwapError>,
    ) -> Result<Opened, Refused> {
        let lender = volume.and_then(Lender::new).map_err(refused)?;
        let volume = Arc::clone(lender.volume().volume());
        let unchanging = context.unchanging;
        let handle = Self { lender, unchanging, exported: Mutex::default() };
        Ok(Opened { volume, handle: Box::new(handle) })
    }
}

impl SwapHandle {
    fn export(&self) -> Result<Exported, Unavailable> {
        let device = self.lender.scratch();
        let device = device.map_err(|error| Unavailable::new("lent", error.to_string()))?;
        tracing::warn!(
            volume = self.lender.volume().volume().name(),
            "the volume is exported, for swap of guests and other machines: this machine's own swap \
             there can hang it"
        );
        let own_memory = lock_own_memory();
        let own_memory = own_memory.inspect_err(|error| self.warn("lock its own memory", error));
        Ok(Exported { device, _own_memory: own_memory.ok() })
    }

    /// A client may go on: the danger is only for a system that is short of memory.
    fn warn(&self, action: &'static str, error: &std::io::Error) {
        let volume = self.lender.volume().volume().name();
        tracing::warn!(
            volume,
            "the server cannot {action}, so a client's swap may hang when this system is short of \
             memory: {error}"
        );
    }
}

impl Handle for SwapHandle {
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        if self.unchanging {
            let name = self.lender.volume().volume().name();
            let reason = format!("volume {name} is swap, which cannot be served read-only");
            let cause = Some(Cause::ServedReadOnly);
            return Err(Unavailable { state: "read-only", reason, cause, detail: None });
        }
        let exported = &mut *self.exported.lock();
        let device = match exported.upgrade() {
            Some(device) => device,
            None => Arc::new(self.export()?),
        };
        *exported = Arc::downgrade(&device);
        // The caller is the thread that will serve the client.
        if let Err(error) = flush_io_from_here() {
            self.warn("become an I/O flusher", &error);
        }
        Ok(device)
    }

    fn is_durable(&self) -> bool {
        false
    }

    /// Clients get all runs at once, and share them.
    fn is_ready(&self) -> bool {
        if self.unchanging {
            return false;
        }
        let is_exported = self.exported.lock().strong_count() > 0;
        is_exported || !self.is_lent()
    }

    fn lend(&self, bytes: u64, pid: u32) -> Result<Lease, Refused> {
        self.lender.lend(bytes.div_ceil(RUN_BYTES), pid).map_err(refused)
    }

    /// A volume whose state the kernel does not say counts as lent.
    fn is_lent(&self) -> bool {
        self.lender.status().map_or(true, |status| status.lent > 0)
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
