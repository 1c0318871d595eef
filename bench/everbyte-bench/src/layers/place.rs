//! Places with files of one size: on ext4 over a device, and parts of a device in process.
//!
//! Invariant: all bytes of the files are written before the first measurement.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_device::{BlockDevice, Fua};
use everbyte_extent::Delta;
use everbyte_media::{Mapped, MediaOptions};
use rustix::fs::{Advice, OFlags, fadvise};

use super::Caching;
use crate::baselines::{self, Kind, Scheme};
use crate::subjects::mounted::{Below, Mounted};
use crate::subjects::nbd::{Server, ServerKind};
use crate::subjects::volume::fill;
use crate::workload::Payload;

/// Bytes of a write of the fill.
const FILL_BYTES: usize = 64 << 10;
/// Bytes of the log of a scheme in process.
const LOG_BYTES: u64 = 32 << 20;

/// Number and size of the files of a place.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) files: usize,
    pub(super) file_bytes: u64,
    /// Bytes of the device below ext4.
    pub(super) device_bytes: u64,
}

/// Device below ext4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Device {
    /// A loop device over a file in memory.
    Ramdisk,
    /// The export of a server.
    Export(&'static str, ServerKind),
}

impl Device {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ramdisk => "ramdisk",
            Self::Export(name, _) => name,
        }
    }
}

/// Files for requests.
pub(super) enum Place {
    /// Files of ext4. The order of the fields is the order of their ends: files, mount, server.
    Ext4 {
        name: &'static str,
        buffered: Vec<File>,
        direct: Vec<File>,
        mounted: Mounted,
        _server: Option<Server>,
    },
    /// Parts of a scheme's device, without a page cache.
    Scheme { scheme: Arc<dyn Scheme>, file_bytes: u64 },
}

impl Place {
    /// Makes ext4 over `device`. Requires a thread of
    /// [`in_mount_ns`](crate::subjects::mount_ns::in_mount_ns).
    ///
    /// # Errors
    /// Tools are missing, or one of them fails; errors of the system.
    pub(super) fn ext4(device: Device, folder: &Path, size: Size) -> Result<Self> {
        let folder = folder.join(device.name());
        fs::create_dir(&folder)?;
        let mount = |below| Mounted::new(&folder, below, &[], "noatime");
        let (server, mounted) = match device {
            Device::Ramdisk => {
                let image = folder.join("image");
                File::create_new(&image)?.set_len(size.device_bytes)?;
                let mounted = mount(Below::Image(&image));
                // The loop device keeps the file until any end of this process.
                fs::remove_file(&image)?;
                (None, mounted?)
            }
            Device::Export(_, kind) => {
                let server = Server::start(kind, &folder, size.device_bytes)?;
                let mounted = mount(Below::DirectExport(&server.uri()))?;
                (Some(server), mounted)
            }
        };
        // A read of a hole would not reach the device.
        let payload = Payload::unedited();
        let (mut buffered, mut direct) = (Vec::new(), Vec::new());
        for number in 0..size.files {
            let path = mounted.root.join(format!("file{number}"));
            let file = open(&path, OFlags::CREATE)?;
            for at in (0..size.file_bytes).step_by(FILL_BYTES) {
                let len = usize::try_from((size.file_bytes - at).min(FILL_BYTES as u64))?;
                file.write_all_at(payload.first(len), at)?;
            }
            buffered.push(file);
            // A second open file of the same inode: the flag belongs to the open file.
            direct.push(open(&path, OFlags::DIRECT)?);
        }
        mounted.sync()?;
        Ok(Self::Ext4 { name: device.name(), buffered, direct, mounted, _server: server })
    }

    /// Makes a device of `kind` with flushes on memory of this process.
    ///
    /// # Errors
    /// No memory; errors of the scheme.
    pub(super) fn scheme(kind: Kind, size: Size) -> Result<Self> {
        let (bytes, file_bytes) = (size.files as u64 * size.file_bytes, size.file_bytes);
        let options = MediaOptions::new().force_flush(true).populate(true);
        let medium = Mapped::anonymous(kind.medium_bytes(bytes, LOG_BYTES)?, &options)?;
        let scheme = baselines::build(kind, Arc::new(medium), bytes, LOG_BYTES, Delta::Auto)?;
        fill(&*scheme, bytes, 4096)?;
        // The first slice must not pay for the fill's log.
        scheme.checkpoint()?;
        Ok(Self::Scheme { scheme, file_bytes })
    }

    /// Its name in the results.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ext4 { name, .. } => name,
            Self::Scheme { scheme, .. } => scheme.name(),
        }
    }

    pub(super) fn allows(&self, caching: Caching) -> bool {
        caching == Caching::Direct || matches!(self, Self::Ext4 { .. })
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Errors of the place.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Self::Ext4 { mounted, .. } => mounted.sync(),
            Self::Scheme { scheme, .. } => Ok(scheme.checkpoint()?),
        }
    }

    /// Makes everything durable and drops the cached pages of the files.
    ///
    /// # Errors
    /// Errors of the place.
    pub(super) fn prepare(&self) -> Result<()> {
        // The kernel drops clean pages only, so the write-back comes first.
        self.sync()?;
        if let Self::Ext4 { buffered, .. } = self {
            buffered.iter().try_for_each(|file| fadvise(file, 0, None, Advice::DontNeed))?;
        }
        Ok(())
    }

    /// # Errors
    /// Errors of the place.
    pub(super) fn read(
        &self,
        caching: Caching,
        file: usize,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        match self {
            Self::Ext4 { buffered, direct, .. } => {
                Ok(caching.of(buffered, direct)[file].read_exact_at(out, offset)?)
            }
            Self::Scheme { scheme, file_bytes } => {
                Ok(BlockDevice::read(&**scheme, file as u64 * file_bytes + offset, out)?)
            }
        }
    }

    /// # Errors
    /// Errors of the place.
    pub(super) fn write(
        &self,
        caching: Caching,
        file: usize,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        match self {
            Self::Ext4 { buffered, direct, .. } => {
                Ok(caching.of(buffered, direct)[file].write_all_at(data, offset)?)
            }
            Self::Scheme { scheme, file_bytes } => {
                let at = file as u64 * file_bytes + offset;
                Ok(BlockDevice::write(&**scheme, at, data, Fua::No)?)
            }
        }
    }
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}
