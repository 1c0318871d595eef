//! Targets of writes: a scheme on its own medium, or a file of a file system.
//!
//! Owns the medium's memory, touched before the first measurement.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_device::{BlockDevice, Fua};
use everbyte_extent::Delta;
use everbyte_media::{Mapped, MediaOptions, Technology};
use everbyte_pool::{OpenOptions, Pool};

use crate::baselines::{self, Kind, Scheme};
use crate::subject::Counts;
use crate::subjects::file::write_durably;
use crate::subjects::floor::medium_counts;

/// Bytes that are cleared in one request.
const CLEARED_BYTES: usize = 1 << 20;

/// `len` bytes of memory, all of it mapped, that cost what `technology` does.
pub(super) fn memory(len: u64, technology: Technology) -> Result<Arc<Mapped>> {
    let options = MediaOptions::new().emulate(Some(technology)).populate(true);
    let medium = Mapped::anonymous(len, &options);
    Ok(Arc::new(medium.with_context(|| format!("no memory for {len} bytes"))?))
}

/// Something that records are written to, by one thread.
pub(crate) trait Target {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Makes the first `bytes` as if nothing was ever written to them. Not measured.
    ///
    /// # Errors
    /// The target's.
    fn clear(&self, bytes: u64) -> Result<()>;

    /// Writes; durable when it returns with [`Fua::Yes`].
    ///
    /// # Errors
    /// The target's.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// The target's.
    fn sync(&self) -> Result<()>;

    /// Does also the work that a log defers: everything is durable and in its place.
    ///
    /// # Errors
    /// The target's.
    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// Sums so far, if it can tell.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// A scheme, on memory of its own.
pub(crate) struct SchemeTarget {
    scheme: Arc<dyn Scheme>,
}

impl SchemeTarget {
    /// A device of `device_bytes` with a log of `log_bytes` on `technology`, which detects changes
    /// as `delta` says.
    ///
    /// # Errors
    /// No memory; the scheme's.
    pub(crate) fn new(
        kind: Kind,
        technology: Technology,
        device_bytes: u64,
        log_bytes: u64,
        delta: Delta,
    ) -> Result<Self> {
        let len = kind.medium_bytes(device_bytes, log_bytes)?;
        let medium = memory(len, technology)?;
        let scheme = baselines::build(kind, medium, device_bytes, log_bytes, delta)?;
        Ok(Self { scheme })
    }

    /// The device.
    pub(crate) fn scheme(&self) -> &Arc<dyn Scheme> {
        &self.scheme
    }
}

impl Target for SchemeTarget {
    fn name(&self) -> &str {
        self.scheme.name()
    }

    fn clear(&self, bytes: u64) -> Result<()> {
        // In pieces, because a journal has no room for the whole of a large file.
        for at in (0..bytes).step_by(CLEARED_BYTES) {
            let piece = (bytes - at).min(CLEARED_BYTES as u64);
            self.scheme.discard(at, piece, Fua::No)?;
            self.checkpoint()?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        Ok(self.scheme.write(offset, data, fua)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.scheme.flush()?)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.scheme.checkpoint()?)
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.scheme.counts())
    }
}

/// A block volume with settings of its own.
pub(crate) struct VolumeTarget {
    name: String,
    volume: BlockVolume<Mapped>,
    medium: Arc<Mapped>,
}

impl VolumeTarget {
    /// A volume of `device_bytes` on `technology`.
    ///
    /// # Errors
    /// No memory; the pool's.
    pub(crate) fn new(
        name: String,
        technology: Technology,
        device_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Self> {
        let len = 2 * device_bytes + options.log_bytes.unwrap_or(0) + (16 << 20);
        let medium = memory(len, technology)?;
        Pool::format(&*medium, 1, [5; 16])?;
        let open = OpenOptions { capacity_blocks: len / 4096 };
        let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &open)?);
        let volume = BlockVolume::create(&pool, "device", device_bytes, options)?;
        Ok(Self { name, volume, medium })
    }
}

impl Target for VolumeTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn clear(&self, bytes: u64) -> Result<()> {
        self.volume.discard(0, bytes, Fua::No)?;
        Ok(self.volume.flush()?)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        Ok(self.volume.write(offset, data, fua)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.volume.flush()?)
    }

    fn counts(&self) -> Option<Counts> {
        Some(medium_counts(&*self.medium, self.volume.volume().log_bytes()))
    }
}

/// A file, through the kernel.
pub(crate) struct FileTarget {
    name: &'static str,
    file: File,
}

impl FileTarget {
    pub(crate) fn new(name: &'static str, file: File) -> Self {
        Self { name, file }
    }
}

impl Target for FileTarget {
    fn name(&self) -> &str {
        self.name
    }

    fn clear(&self, bytes: u64) -> Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(bytes)?;
        Ok(self.file.sync_all()?)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        match fua {
            Fua::Yes => write_durably(&self.file, offset, data),
            Fua::No => Ok(self.file.write_all_at(data, offset)?),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }
}
