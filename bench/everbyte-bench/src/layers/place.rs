//! Places with files of one size: on ext4 over a device, and parts of a device in process.
//!
//! Invariant: all bytes of the files are written before anything is measured.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_device::{BlockDevice, Fua};
use everbyte_extent::Delta;
use everbyte_media::{Mapped, MediaOptions};
use rustix::fs::{Advice, OFlags, fadvise};

use super::{Caching, Devices};
use crate::baselines::{self, Kind, Scheme};
use crate::subjects::mounted::{Below, Mounted};
use crate::subjects::nbd::{Server, ServerKind};
use crate::subjects::volume::fill;
use crate::workload::Payload;

/// Bytes that files are filled by.
const FILL_BYTES: usize = 64 << 10;
/// Bytes of the log of a scheme in process.
const LOG_BYTES: u64 = 32 << 20;

/// Files that requests go to.
pub(super) trait Place {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Returns true if its files can be used so.
    fn allows(&self, caching: Caching) -> bool;

    /// Makes everything durable and forgets what is cached of the files.
    ///
    /// # Errors
    /// The place's.
    fn prepare(&self) -> Result<()>;

    /// # Errors
    /// The place's.
    fn read(&self, caching: Caching, file: usize, offset: u64, out: &mut [u8]) -> Result<()>;

    /// # Errors
    /// The place's.
    fn write(&self, caching: Caching, file: usize, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// The place's.
    fn sync(&self) -> Result<()>;
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

/// Files of ext4. What is below them is dropped after them, from top to bottom.
pub(super) struct Ext4Place {
    name: &'static str,
    buffered: Vec<File>,
    direct: Vec<File>,
    mounted: Mounted,
    _server: Option<Server>,
}

impl Ext4Place {
    /// Makes ext4 over `device` with `count` files of `file_bytes`. Only in
    /// [`apart`](crate::subjects::mount_ns::in_mount_ns).
    ///
    /// # Errors
    /// Tools are missing, or one of them fails; the system's.
    pub(super) fn new(
        device: Device,
        devices: &Devices<'_>,
        count: usize,
        file_bytes: u64,
    ) -> Result<Self> {
        let folder = devices.folder.join(device.name());
        fs::create_dir(&folder)?;
        let (server, mounted) = match device {
            Device::Ramdisk => {
                let image = folder.join("image");
                File::create_new(&image)?.set_len(devices.bytes)?;
                let mounted = Mounted::new(&folder, Below::Image(&image), &[], "noatime");
                fs::remove_file(&image)?;
                (None, mounted?)
            }
            Device::Export(_, kind) => {
                let server = Server::start(kind, &folder, devices.bytes)?;
                let uri = server.uri();
                let below = Below::DirectExport(&uri);
                let mounted = Mounted::new(&folder, below, &[], "noatime")?;
                (Some(server), mounted)
            }
        };
        let payload = Payload::unedited();
        let (mut buffered, mut direct) = (Vec::new(), Vec::new());
        for number in 0..count {
            let path = mounted.root.join(format!("file{number}"));
            buffered.push(made(&path, file_bytes, &payload)?);
            direct.push(opened(&path, OFlags::DIRECT)?);
        }
        mounted.sync()?;
        Ok(Self { name: device.name(), buffered, direct, mounted, _server: server })
    }

    fn file(&self, caching: Caching, file: usize) -> &File {
        match caching {
            Caching::Buffered => &self.buffered[file],
            Caching::Direct => &self.direct[file],
        }
    }
}

fn opened(path: &Path, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

/// A new file, filled.
fn made(path: &Path, bytes: u64, payload: &Payload) -> Result<File> {
    drop(File::create_new(path)?);
    let file = opened(path, OFlags::empty())?;
    let mut at = 0;
    while at < bytes {
        let len = usize::try_from((bytes - at).min(FILL_BYTES as u64))?;
        file.write_all_at(payload.first(len), at)?;
        at += len as u64;
    }
    Ok(file)
}

impl Place for Ext4Place {
    fn name(&self) -> &str {
        self.name
    }

    fn allows(&self, _caching: Caching) -> bool {
        true
    }

    fn prepare(&self) -> Result<()> {
        self.sync()?;
        for file in &self.buffered {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    fn read(&self, caching: Caching, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.file(caching, file).read_exact_at(out, offset)?)
    }

    fn write(&self, caching: Caching, file: usize, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.file(caching, file).write_all_at(data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        self.mounted.sync()
    }
}

/// Parts of a scheme's device, which has no page cache.
pub(super) struct SchemePlace {
    scheme: Arc<dyn Scheme>,
    file_bytes: u64,
}

impl SchemePlace {
    /// A device of `kind` on memory of this process, with flushes made, that has `count` parts.
    ///
    /// # Errors
    /// No memory; the scheme's.
    pub(super) fn new(kind: Kind, count: usize, file_bytes: u64) -> Result<Self> {
        let bytes = count as u64 * file_bytes;
        let options = MediaOptions::new().force_flush(true).populate(true);
        let medium = Mapped::anonymous(kind.medium_bytes(bytes, LOG_BYTES)?, &options)?;
        let scheme = baselines::build(kind, Arc::new(medium), bytes, LOG_BYTES, Delta::Auto)?;
        fill(&*scheme, bytes, 4096)?;
        scheme.checkpoint()?;
        Ok(Self { scheme, file_bytes })
    }

    fn at(&self, file: usize, offset: u64) -> u64 {
        file as u64 * self.file_bytes + offset
    }
}

impl Place for SchemePlace {
    fn name(&self) -> &str {
        self.scheme.name()
    }

    fn allows(&self, caching: Caching) -> bool {
        caching == Caching::Direct
    }

    fn prepare(&self) -> Result<()> {
        Ok(self.scheme.checkpoint()?)
    }

    fn read(&self, _caching: Caching, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(BlockDevice::read(&*self.scheme, self.at(file, offset), out)?)
    }

    fn write(&self, _caching: Caching, file: usize, offset: u64, data: &[u8]) -> Result<()> {
        Ok(BlockDevice::write(&*self.scheme, self.at(file, offset), data, Fua::No)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.scheme.checkpoint()?)
    }
}
