//! Block volumes: the device is what clients use.

use std::sync::Arc;

use everbyte_block::BlockOptions;
use everbyte_control::{NewVolume, Refused};
use everbyte_device::BlockDevice;

use crate::context::{Context, Unshared};
use crate::gate::Alone;
use crate::handle::{Device, Handle, Resize, Unavailable};

/// A block volume's handle.
pub(crate) struct BlockHandle(Arc<Device>);

impl BlockHandle {
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        options: &BlockOptions,
        _: Unshared<'_>,
    ) -> Result<Device, Refused> {
        if new.cache.is_some() {
            return Err(Refused::new("only caches have a backing device".to_owned()));
        }
        let made = Device::create(&context.pool, &new.name, new.size_bytes, options);
        made.map_err(|error| Refused::new(error.to_string()))
    }

    pub(crate) fn boxed(_: &Context, device: &Arc<Device>) -> Box<dyn Handle> {
        Box::new(Self(Arc::clone(device)))
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

    fn resizes_beside_clients(&self, _: &Resize) -> bool {
        true
    }

    fn resize(&self, resize: &Resize, _: Option<Alone>) -> Result<(), Refused> {
        match resize {
            Resize::Size(bytes) => self.0.resize(*bytes).map_err(|e| Refused::new(e.to_string())),
            Resize::Memory(_) => Err(self.is_no_cache()),
        }
    }

    fn attach(&self, _: &str, _: Alone, _: Unshared<'_>) -> Result<(), Refused> {
        Err(self.is_no_cache())
    }

    fn write_back(&self, _: Alone) -> Result<u64, Refused> {
        Err(self.is_no_cache())
    }

    fn detach(&self, _: Alone) -> Result<Alone, Refused> {
        Err(self.is_no_cache())
    }
}
