//! Targets of writes: a scheme on its own medium, or a file of a file system.
//!
//! Invariant: the memory of a medium is populated before the first measurement.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_extent::Delta;
use everbyte_media::{Mapped, MediaOptions, Technology};

use crate::baselines::{self, Kind, Scheme};
use crate::subject::Counts;
use crate::subjects::file::write_durably;

/// Bytes of a request that clears.
const CLEARED_BYTES: usize = 1 << 20;

/// `len` bytes of populated memory with the costs of `technology`.
pub(super) fn memory(len: u64, technology: Technology) -> Result<Arc<Mapped>> {
    let options = MediaOptions::new().emulate(Some(technology)).populate(true);
    let medium = Mapped::anonymous(len, &options);
    Ok(Arc::new(medium.with_context(|| format!("no memory for {len} bytes"))?))
}

/// A target of writes.
pub(crate) trait Target: Sync {
    /// Name in the results.
    fn name(&self) -> &str;

    /// Discards the first `bytes`. The time is not measured.
    ///
    /// # Errors
    /// An error of the target.
    fn clear(&self, bytes: u64) -> Result<()>;

    /// Writes. With [`Fua::Yes`] the write is durable at the return.
    ///
    /// # Errors
    /// An error of the target.
    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()>;

    /// Reads written bytes.
    ///
    /// # Errors
    /// An error of the target.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// An error of the target.
    fn sync(&self) -> Result<()>;

    /// Makes all earlier writes durable, and does the deferred work of a log.
    ///
    /// # Errors
    /// An error of the target.
    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }

    /// Sums since the opening, if the target counts.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// A scheme on its own memory.
pub(crate) struct SchemeTarget {
    scheme: Arc<dyn Scheme>,
}

impl SchemeTarget {
    /// A device of `device_bytes` with a log of `log_bytes` on `technology`. Change detection is automatic, as in the
    /// block volume.
    ///
    /// # Errors
    /// No memory; an error of the scheme.
    pub(crate) fn new(
        kind: Kind,
        technology: Technology,
        device_bytes: u64,
        log_bytes: u64,
    ) -> Result<Self> {
        let len = kind.medium_bytes(device_bytes, log_bytes)?;
        let medium = memory(len, technology)?;
        let scheme = baselines::build(kind, medium, device_bytes, log_bytes, Delta::Auto)?;
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
        // A journal is too small for a discard of a large file at once.
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

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.scheme.read(offset, out)?)
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

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }
}
