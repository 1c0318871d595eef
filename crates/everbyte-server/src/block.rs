//! Block volumes: the device is what clients use.

use std::sync::Arc;

use everbyte_control::{NewVolume, Refused};
use everbyte_device::BlockDevice;
use everbyte_pool::ScrubReport;
use everbyte_pool::format::VolumeKind;

use crate::context::{Context, NewBacking, check_no_backing, check_no_index};
use crate::device::{block_options, open_device};
use crate::handle::{Device, Handle, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::refusal::refused;

/// A block volume's handle.
pub(crate) struct BlockHandle(Arc<Device>);

impl BlockHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        _: &NewBacking<'_>,
    ) -> Result<Opened, Refused> {
        check_no_backing(new)?;
        check_no_index(new)?;
        let options = block_options(new)?;
        let made = Device::create(&context.pool, &new.name, new.size_bytes, &options);
        Ok(Self::opened(made.map_err(refused)?))
    }

    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        Ok(Self::opened(open_device(context, name, VolumeKind::BLOCK)?))
    }

    fn opened(device: Device) -> Opened {
        Opened { volume: Arc::clone(device.volume()), handle: Box::new(Self(Arc::new(device))) }
    }

    fn is_no_cache(&self) -> Refused {
        let name = self.0.volume().name();
        Refused::new(format!("volume {name} is no cache, so it has no backing device"))
    }
}

impl Handle for BlockHandle {
    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        Ok(Arc::<Device>::clone(&self.0))
    }

    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused> {
        self.0.scrub(from).map_err(refused)
    }

    fn resizes_beside_clients(&self, _: &Resize) -> bool {
        true
    }

    fn resize(&self, resize: &Resize, _: Option<Alone>) -> Result<(), Refused> {
        match resize {
            Resize::Size(bytes) => self.0.resize(*bytes).map_err(|e| Refused::new(e.to_string())),
            Resize::Memory(_) => Err(self.is_no_cache()),
        }
    }
}
