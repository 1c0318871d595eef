//! A file or a block device of the system as a device.
//!
//! Owns the opening, the size, and the system calls for zeroes and freed space. Requests use the system's
//! page cache or bypass it. `flush` is `fdatasync`. The size is the one at the opening.
//!
//! Zeroing with permitted holes is `fallocate` with `FALLOC_FL_PUNCH_HOLE`, on block devices as well.
//! There Linux sends a write of zeroes with permission to unmap, if the device has one. (The ioctl
//! `BLKDISCARD` promises no contents of later reads, and needs `unsafe` code.) Zeroing without holes is
//! `FALLOC_FL_ZERO_RANGE`. On block devices this is `BLKZEROOUT`.
//!
//! A lock orders concurrent requests to one block, because the system does not promise atomic reads
//! during writes.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use everbyte_path::{FileLock, open_unmagical};
use parking_lot::RwLock;
use rustix::fs::{
    CWD, FallocateFlags, Mode, OFlags, SealFlags, SeekFrom as SeekTo, fallocate, fcntl_get_seals,
    fcntl_getfl, fcntl_setfl, major, minor, openat,
};
use rustix::io::Errno;

use crate::device::{BlockDevice, Extent, Fua, Geometry, Hole, check_range};
use crate::direct::{ALIGN, Direct};
use crate::error::DeviceError;
use crate::identity::{BackingIdentity, stable_path};
use crate::syncs::Syncs;

/// Bytes of a written piece of zeroes, if the system cannot zero.
const ZEROES_LEN: usize = 1 << 20;

/// Reasons to refuse a file as a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileDeviceError {
    /// A call of the system failed.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Neither a file nor a block device.
    #[error("{path} is neither a file nor a block device", path = path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// Another process has locked it.
    #[error(
        "{path} is in use: another process has locked it; end that, or use another file",
        path = path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The system uses the block device or a part of it.
    #[error(
        "{path} is in use by the system: it, or a partition of it, is mounted or part of another \
         device; unmount it, or use another device",
        path = path.display()
    )]
    Mounted {
        /// The block device.
        path: PathBuf,
    },
}

/// Options of a [`FileDevice`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FileOptions {
    /// Requests bypass the system's page cache (`O_DIRECT`), for files with another cache above. If the file
    /// system refuses, requests use the page cache, and [`FileDevice::why_buffered`] returns the
    /// reason.
    pub direct: bool,
}

/// A file or a block device. If a flush or a durable write fails, concurrent flushes and durable writes fail as well.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    is_block: bool,
    serial: String,
    identity: BackingIdentity,
    direct: Option<Direct>,
    why_buffered: Option<String>,
    /// The write protection, in words.
    protection: Option<String>,
    /// Held shared by readers, exclusively by writers.
    order: RwLock<()>,
    syncs: Syncs,
    /// The advisory lock of `file`.
    _lock: FileLock,
}

impl FileDevice {
    /// Opens the file or block device at `path` for reading and writing, and takes an advisory lock. A block
    /// device is opened exclusively, so it cannot be mounted while it is open.
    ///
    /// A write-protected device is opened for reading and is read-only. Signs of write protection are the read-only flag
    /// of a block device, a read-only file system, an immutable or append-only file, and a sealed file.
    /// Missing permission to write is an error.
    ///
    /// # Errors
    /// It cannot be opened, is in use, or is neither.
    pub fn open(path: &Path) -> Result<Self, FileDeviceError> {
        Self::open_with(path, FileOptions::default())
    }

    /// As [`FileDevice::open`], with options.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_with(path: &Path, options: FileOptions) -> Result<Self, FileDeviceError> {
        Self::open_protected(path, options, None)
    }

    /// As [`FileDevice::open_with`]. If there is a `protection`, in words, the device is opened for reading and is
    /// read-only.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_protected(
        path: &Path,
        options: FileOptions,
        protection: Option<String>,
    ) -> Result<Self, FileDeviceError> {
        let failed = |error| FileDeviceError::Io { path: path.to_owned(), error };
        let path = stable_path(path).map_err(failed)?;
        let (mut file, lock, protection) = open_alone(&path, protection)?;
        let failed = |error| FileDeviceError::Io { path: path.clone(), error };
        let metadata = file.metadata().map_err(failed)?;
        let identity = BackingIdentity::of(&file).map_err(failed)?;
        // The metadata of a block device has no size.
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let is_block = metadata.file_type().is_block_device();
        let serial = if is_block {
            format!("device {}", metadata.rdev())
        } else {
            format!("device {} inode {}", metadata.dev(), metadata.ino())
        };
        let mut device = Self {
            file,
            path,
            size_bytes,
            is_block,
            serial,
            identity,
            direct: None,
            why_buffered: None,
            protection,
            order: RwLock::new(()),
            syncs: Syncs::default(),
            _lock: lock,
        };
        if options.direct {
            match Direct::open(&device.file, size_bytes, device.protection.is_none()) {
                Ok(direct) => device.direct = Some(direct),
                // A refusal costs only speed: the page cache serves all requests.
                Err(error) => device.why_buffered = Some(error.to_string()),
            }
        }
        Ok(device)
    }

    /// The open file or device.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The write protection, in words.
    #[must_use]
    pub fn protection(&self) -> Option<&str> {
        self.protection.as_deref()
    }

    /// Checks the range of a change, and that the device is not write-protected.
    fn check_write(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        // First: a range outside is refused as such, also by a read-only device.
        check_range(offset, len, self.size_bytes)?;
        match &self.protection {
            None => Ok(()),
            Some(reason) => Err(DeviceError::ReadOnly { reason: reason.clone() }),
        }
    }

    /// Returns the file system's reason if requests go through the page cache although
    /// [`FileOptions::direct`] was set; otherwise `None`.
    #[must_use]
    pub fn why_buffered(&self) -> Option<&str> {
        self.why_buffered.as_deref()
    }

    /// Its absolute path. A block device has a link with a permanent name, if one exists. Otherwise the path
    /// has no symbolic links. See [`stable_path`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if it is a block device, false if it is a file.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.is_block
    }

    /// Numbers of its device and inode, for messages. Both can change.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The identity of the file or device.
    #[must_use]
    pub fn identity(&self) -> &BackingIdentity {
        &self.identity
    }

    fn failed(&self, offset: u64, len: u64, error: &io::Error) -> DeviceError {
        let path = self.path.display();
        // A full file system is not damage. The write may succeed later.
        if error.kind() == io::ErrorKind::StorageFull {
            let reason = format!("the file system of {path} is full");
            return DeviceError::NoSpace { offset, len, reason };
        }
        DeviceError::Media { offset, len, reason: format!("{path}: {error}") }
    }

    /// Makes the writes since that count of failed flushes durable.
    fn sync(&self, failures: u64) -> io::Result<()> {
        self.syncs.make(failures, || self.file.sync_data())
    }

    /// End of the bytes outside of the page cache.
    fn direct_end(&self) -> u64 {
        self.direct.as_ref().map_or(0, Direct::end)
    }

    fn read_bytes(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (first, last) = out.split_at_mut(self.direct_len(offset, out.len()));
        if let Some(direct) = &self.direct {
            direct.read(offset, first)?;
        }
        self.file.read_exact_at(last, offset + first.len() as u64)
    }

    fn write_bytes(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (first, last) = data.split_at(self.direct_len(offset, data.len()));
        if let Some(direct) = &self.direct {
            direct.write(offset, first)?;
        }
        self.file.write_all_at(last, offset + first.len() as u64)
    }

    /// Returns the number of the `len` bytes at `offset` that bypass the page cache.
    fn direct_len(&self, offset: u64, len: usize) -> usize {
        let below = self.direct_end().saturating_sub(offset);
        usize::try_from(below.min(len as u64)).expect("at most `len`")
    }

    fn write_zero_bytes(&self, from: u64, to: u64) -> io::Result<()> {
        let zeroes = vec![0; ZEROES_LEN.min(usize::try_from(to - from).unwrap_or(ZEROES_LEN))];
        let mut at = from;
        while at < to {
            let piece = (to - at).min(ZEROES_LEN as u64);
            let piece_len = usize::try_from(piece).unwrap_or(ZEROES_LEN);
            self.write_bytes(at, &zeroes[..piece_len])?;
            at += piece;
        }
        Ok(())
    }

    /// Zeroes a range. Block devices zero whole blocks only, so the rest is written.
    fn zero(&self, offset: u64, len: u64, hole: Hole, fast: bool) -> io::Result<()> {
        let end = offset + len;
        let align = if self.is_block { ALIGN } else { 1 };
        let first = offset.next_multiple_of(align).min(end);
        // A range within one block has no whole block.
        let last = (end - end % align).max(first);
        if first < last && !self.zero_blocks(first, last, hole, fast)? {
            // No byte has changed yet, as the contract demands of this error.
            if fast {
                return Err(Errno::OPNOTSUPP.into());
            }
            return self.write_zero_bytes(offset, end);
        }
        self.write_zero_bytes(offset, first)?;
        self.write_zero_bytes(last, end)
    }

    /// Lets the system zero. Returns false if it cannot.
    fn zero_blocks(&self, first: u64, last: u64, hole: Hole, fast: bool) -> io::Result<bool> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let ways: &[FallocateFlags] = match hole {
            // A block device that cannot unmap has zeroes written, which is not fast.
            Hole::Allowed if self.is_block && !fast => &[punch, zero],
            Hole::Allowed => &[punch],
            Hole::Forbidden if self.is_block && fast => &[],
            Hole::Forbidden => &[zero],
        };
        for &way in ways {
            match fallocate(&self.file, way, first, last - first) {
                Ok(()) => return Ok(true),
                // The file system or the device has no such call. The next way may exist.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Data and holes from `offset` on, from the file system.
    fn extents(&self, offset: u64, len: u64, extents_max: usize) -> Vec<Extent> {
        let end = offset + len;
        let mut extents = Vec::new();
        let mut at = offset;
        // The contract requires at least one extent.
        while at < end && extents.len() < extents_max.max(1) {
            let (next, hole) = match self.seek(SeekTo::Data(at)) {
                // A hole up to the end of the file. If the file became shorter, bytes beyond are lost, and a
                // read of them is an error.
                Err(Errno::NXIO) => match self.seek(SeekTo::End(0)) {
                    Ok(file_end) if file_end > at => (file_end.min(end), true),
                    _ => (end, false),
                },
                Ok(data) if data > at => (data.min(end), true),
                Ok(_) => (self.seek(SeekTo::Hole(at)).unwrap_or(end).min(end), false),
                // The file system does not report holes.
                Err(_) => (end, false),
            };
            // After an impossible answer the file system counts as unable to report.
            let next = if next > at { next } else { end };
            extents.push(Extent { len: next - at, hole, zero: hole });
            at = next;
        }
        extents
    }

    /// Moves the offset of the open file. All requests name their offset, so none uses it.
    fn seek(&self, to: SeekTo) -> Result<u64, Errno> {
        rustix::fs::seek(&self.file, to)
    }
}

/// Opens an unused file or block device, and locks it. Also returns its write protection.
fn open_alone(
    path: &Path,
    protection: Option<String>,
) -> Result<(File, FileLock, Option<String>), FileDeviceError> {
    let failed = |error| FileDeviceError::Io { path: path.to_owned(), error };
    // `PATH` calls no driver, so an unsuitable device is refused without an effect on it.
    let found = open_real(path, OFlags::PATH).map_err(failed)?.metadata().map_err(failed)?;
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(FileDeviceError::Kind { path: path.to_owned() });
    }
    let opened = open_found(path, &found, protection.or_else(|| block_protection(&found)));
    let (file, protection) = match opened {
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            return Err(FileDeviceError::Mounted { path: path.to_owned() });
        }
        opened => opened.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino(), metadata.file_type());
    // The path may have got another file between the two opens.
    if identity(&metadata) != identity(&found) {
        return Err(failed(io::Error::other("another process replaced it")));
    }
    // The flag served only the open: a path that became a pipe must not block it.
    fcntl_getfl(&file)
        .and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK))
        .map_err(|error| failed(error.into()))?;
    match FileLock::exclusive(&file) {
        Ok(lock) => Ok((file, lock, protection)),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(FileDeviceError::Locked { path: path.to_owned() })
        }
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Opens the found file, for reading only if it is write-protected.
fn open_found(
    path: &Path,
    found: &Metadata,
    protection: Option<String>,
) -> io::Result<(File, Option<String>)> {
    let is_block = found.file_type().is_block_device();
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if is_block {
        // `O_EXCL` fails while the system uses the device, and excludes the system afterwards.
        flags |= OFlags::EXCL;
    }
    let read_only = |reason: String| {
        let file = open_real(path, flags | OFlags::RDONLY)?;
        Ok((file, Some(reason)))
    };
    if let Some(reason) = protection {
        return read_only(reason);
    }
    match open_real(path, flags | OFlags::RDWR) {
        // A sealed file can be opened for writing. Only the writes fail.
        Ok(file) if is_sealed(&file) => read_only("the file is sealed against writes".to_owned()),
        Ok(file) => Ok((file, None)),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            read_only("the device or its file system is read-only".to_owned())
        }
        // A missing permission is another error number, and no protection.
        Err(error) if !is_block && error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            read_only("the file is immutable or append-only".to_owned())
        }
        Err(error) => Err(error),
    }
}

/// Opens a resolved path. Links of `/proc` are refused if the kernel can tell them apart.
fn open_real(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    match open_unmagical(path, flags, Mode::empty()) {
        // Older kernels lack the call. Their paths are opened without the check.
        Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
            Ok(openat(CWD, path, flags, Mode::empty())?.into())
        }
        opened => opened,
    }
}

/// The kernel's read-only flag of a block device.
fn block_protection(found: &Metadata) -> Option<String> {
    if !found.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (major(found.rdev()), minor(found.rdev()));
    // Without this file the device counts as writable, and the open or the first write fails.
    let flag = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).ok()?;
    (flag.trim() == "1").then(|| "the block device is write-protected".to_owned())
}

/// Files in memory can be sealed. Others have no seals.
fn is_sealed(file: &File) -> bool {
    fcntl_get_seals(file)
        .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE))
}

fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            minimum_bytes: if self.direct.is_some() { 4096 } else { 1 },
            preferred_bytes: 4096,
            read_only: self.protection.is_some(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, out.len() as u64, self.size_bytes)?;
        // The system's writes are not atomic, so readers and writers exclude each other.
        let _shared = self.order.read();
        let len = out.len() as u64;
        self.read_bytes(offset, out).map_err(|error| self.failed(offset, len, &error))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        self.check_write(offset, len)?;
        // Before the write: a flush that fails from here on may have lost its bytes.
        let failures = self.syncs.failures();
        // Unlocked before the flush: readers must not wait for the disk.
        let written = {
            let _alone = self.order.write();
            self.write_bytes(offset, data)
        };
        let done =
            written.and_then(|()| if fua == Fua::Yes { self.sync(failures) } else { Ok(()) });
        // Some bytes may be written.
        done.map_err(|error| DeviceError::Media {
            offset,
            len,
            reason: format!("{}: {error}", self.path.display()),
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.protection.is_some() {
            // No byte was written.
            return Ok(());
        }
        // Read before the wait for a flush under way: its failure may concern these writes.
        let synced = self.sync(self.syncs.failures());
        synced.map_err(|error| self.failed(0, self.size_bytes, &error))
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.write_zeroes(offset, len, Hole::Allowed, false, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // Before the zeroing, as for a write.
        let failures = self.syncs.failures();
        let zeroed = {
            let _alone = self.order.write();
            self.zero(offset, len, hole, fast)
        };
        if fast && zeroed.as_ref().is_err_and(is_unsupported) {
            return Err(DeviceError::NotFast);
        }
        let done = zeroed.and_then(|()| if fua == Fua::Yes { self.sync(failures) } else { Ok(()) });
        done.map_err(|error| DeviceError::Media {
            offset,
            len,
            reason: format!("{}: {error}", self.path.display()),
        })
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let size_bytes = self.size_bytes;
        check_range(offset, len, size_bytes)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        }
        let _shared = self.order.read();
        // Writers are excluded, so the extents are of one moment.
        Ok(self.extents(offset, len, extents_max))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use everbyte_testkit::not_run;

    use super::*;
    use crate::conformance;

    /// A folder. A drop removes it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("everbyte-device-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, size_bytes: u64) -> PathBuf {
            let path = self.0.join(name);
            File::create(&path).unwrap().set_len(size_bytes).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Nothing depends on it.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn keeps_the_contract() {
        let folder = Folder::new("contract");
        let count = AtomicU64::new(0);
        conformance(&|size| {
            let name = count.fetch_add(1, Ordering::Relaxed).to_string();
            Arc::new(FileDevice::open(&folder.file(&name, size)).unwrap())
        });
    }

    #[test]
    fn direct_io_keeps_contract() {
        let folder = Folder::new("direct");
        let count = AtomicU64::new(0);
        conformance(&|size| {
            let name = count.fetch_add(1, Ordering::Relaxed).to_string();
            let path = folder.file(&name, size);
            let device = FileDevice::open_with(&path, FileOptions { direct: true }).unwrap();
            // Where the file system refuses, the contract is kept all the same.
            assert_eq!(device.direct.is_some(), device.why_buffered().is_none());
            Arc::new(device)
        });
    }

    #[test]
    fn direct_and_buffered_io_agree() {
        let folder = Folder::new("ranges");
        let size: usize = (3 << 20) + 1234;
        let path = folder.file("a", size as u64);
        let mut expected = vec![0; size];
        let mut seed = 1_u64;
        let mut below = |end: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % end
        };
        for round in 0..6 {
            let direct = round % 2 == 0;
            let device = FileDevice::open_with(&path, FileOptions { direct }).unwrap();
            for _ in 0..40 {
                let at = below(size);
                let len = below(size - at).min(if below(4) == 0 { 2 << 20 } else { 9000 });
                match below(3) {
                    0 => {
                        device.discard(at as u64, len as u64, Fua::No).unwrap();
                        expected[at..at + len].fill(0);
                    }
                    1 => {
                        let byte = u8::try_from(1 + below(255)).unwrap();
                        expected[at..at + len].fill(byte);
                        device.write(at as u64, &expected[at..at + len], Fua::No).unwrap();
                    }
                    _ => {
                        let mut found = vec![0; len];
                        device.read(at as u64, &mut found).unwrap();
                        assert!(found == expected[at..at + len], "{at}+{len}");
                    }
                }
            }
            drop(device);
            assert!(std::fs::read(&path).unwrap() == expected, "round {round}");
        }
    }

    #[test]
    fn holes_are_told_and_made() {
        let folder = Folder::new("holes");
        let size = 16 << 20;
        let device = FileDevice::open(&folder.file("a", size)).unwrap();
        device.write(4 << 20, &vec![7; 4 << 20], Fua::Yes).unwrap();
        let told = |device: &FileDevice| -> Vec<(u64, bool)> {
            let extents = device.status(0, size, 100).unwrap();
            assert!(extents.iter().all(|extent| extent.hole == extent.zero));
            extents.iter().map(|extent| (extent.len, extent.hole)).collect()
        };
        let whole = vec![(size, false)];
        let first = told(&device);
        if first == whole {
            not_run("this file system tells of no holes");
            return;
        }
        assert_eq!(first, [(4 << 20, true), (4 << 20, false), (8 << 20, true)]);
        assert_eq!(device.status(0, size, 1).unwrap().len(), 1);
        let part = device.status(5 << 20, 4 << 20, 9).unwrap();
        assert_eq!(part.iter().map(|e| e.len).collect::<Vec<_>>(), [3 << 20, 1 << 20]);
        let blocks = || std::fs::metadata(device.path()).unwrap().blocks();
        let before = blocks();
        device.discard(5 << 20, 2 << 20, Fua::Yes).unwrap();
        assert_eq!(told(&device)[2], (2 << 20, true), "{:?}", told(&device));
        assert!(blocks() + (2 << 20) / 512 <= before, "the space is not given back");
    }

    #[test]
    fn truncated_end_is_not_a_hole() {
        let folder = Folder::new("shorter");
        let path = folder.file("a", 8192);
        let device = FileDevice::open(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(device.read(4096, &mut [0]).is_err());
        for from in [0, 4096, 5000] {
            let mut at = from;
            for extent in device.status(from, 8192 - from, 9).unwrap() {
                at += extent.len;
                assert!(at <= 4096 || !(extent.hole || extent.zero), "{extent:?} up to {at}");
            }
            assert_eq!(at, 8192);
        }
    }

    #[test]
    fn file_has_one_user_and_stable_identity() {
        let folder = Folder::new("identity");
        let path = folder.file("a", 8192);
        let device = FileDevice::open(&path).unwrap();
        assert!(matches!(FileDevice::open(&path), Err(FileDeviceError::Locked { .. })));
        let serial = device.serial().to_owned();
        device.write(8191, &[7], Fua::Yes).unwrap();
        // A child between fork and exec has such a duplicate.
        let duplicate = device.file().try_clone().unwrap();
        drop(device);
        let again = FileDevice::open(&path).unwrap();
        drop(duplicate);
        let mut found = [0];
        again.read(8191, &mut found).unwrap();
        assert_eq!((again.serial(), found), (serial.as_str(), [7]));
        assert!(matches!(
            FileDevice::open(&folder.0),
            Err(FileDeviceError::Kind { .. } | FileDeviceError::Io { .. })
        ));
        let absent = FileDevice::open(&folder.0.join("absent"));
        assert!(absent.is_err_and(|error| error.to_string().contains("absent")));
    }

    /// A loop device over a file. A drop detaches it.
    struct Loop(PathBuf);

    /// Times that a loop device may be lost to another program.
    const LOOP_TRIES: u32 = 20;

    impl Loop {
        /// `None` if loop devices are absent or refused.
        fn over(image: &Path) -> Option<Self> {
            let made = std::process::Command::new("losetup")
                .args(["--find", "--show"])
                .arg(image)
                .output();
            let made = made.ok().filter(|output| output.status.success())?;
            Some(Self(PathBuf::from(String::from_utf8(made.stdout).ok()?.trim())))
        }

        /// The same device over another image. `None` if another program took it in between, which no tool
        /// prevents.
        fn over_another(self, image: &Path) -> Option<Self> {
            let path = self.0.clone();
            drop(self);
            let again = std::process::Command::new("losetup").arg(&path).arg(image).status();
            again.is_ok_and(|status| status.success()).then(|| Self(path))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            // The kernel keeps the flag for the next user of the device.
            let _ = std::process::Command::new("blockdev").arg("--setrw").arg(&self.0).status();
            let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
        }
    }

    #[test]
    fn mounted_block_device_is_refused() {
        let folder = Folder::new("claimed");
        let Some(block) = Loop::over(&folder.file("a", 1 << 20)) else {
            not_run("there are no loop devices here");
            return;
        };
        // A mount claims its device in the same way.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::EXCL.bits().cast_signed());
        let claimed = options.open(&block.0).unwrap();
        let refused = FileDevice::open(&block.0);
        assert!(matches!(refused, Err(FileDeviceError::Mounted { .. })));
        drop(claimed);
        let device = FileDevice::open_with(&block.0, FileOptions { direct: true }).unwrap();
        assert!(options.open(&block.0).is_err(), "it could be mounted");
        device.write(5, &[7], Fua::Yes).unwrap();
        assert!(device.is_block() && device.why_buffered().is_none());
    }

    #[test]
    fn other_image_changes_identity() {
        let folder = Folder::new("swapped");
        let (one, two) = (folder.file("one", 1 << 20), folder.file("two", 1 << 20));
        for _ in 0..LOOP_TRIES {
            let Some(block) = Loop::over(&one) else {
                not_run("there are no loop devices here");
                return;
            };
            let first = FileDevice::open(&block.0).unwrap().identity().clone();
            let Some(block) = block.over_another(&two) else { continue };
            let second = FileDevice::open(&block.0).unwrap().identity().clone();
            let likeness = first.compare(&second);
            assert_eq!(likeness, crate::IdentityMatch::Different, "{first:?} {second:?}");
            return;
        }
        not_run("somebody else takes every loop device");
    }

    /// Runs a tool of the system; false if it is absent or refuses.
    fn tool(program: &str, argument: &str, path: &Path) -> bool {
        let done = Command::new(program).arg(argument).arg(path).output();
        done.is_ok_and(|output| output.status.success())
    }

    fn assert_read_only(device: &FileDevice) {
        assert!(device.geometry().read_only && device.protection().is_some());
        device.read(0, &mut [0; 8]).unwrap();
        let refused = [
            device.write(0, &[1], Fua::No),
            device.write(0, &[1], Fua::Yes),
            device.discard(0, 4096, Fua::No),
            device.write_zeroes(0, 4096, Hole::Allowed, false, Fua::No),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })), "{refused:?}");
        }
        let beyond = device.write(device.geometry().size_bytes, &[1], Fua::No);
        assert!(matches!(beyond, Err(DeviceError::OutOfRange { .. })));
        device.flush().unwrap();
    }

    #[test]
    fn write_protected_block_devices_are_read_only() {
        let folder = Folder::new("protected");
        let Some(block) = Loop::over(&folder.file("a", 1 << 20)) else {
            not_run("there are no loop devices here");
            return;
        };
        assert!(tool("blockdev", "--setro", &block.0));
        assert_read_only(&FileDevice::open(&block.0).unwrap());
        assert!(tool("blockdev", "--setrw", &block.0));
        let device = FileDevice::open(&block.0).unwrap();
        assert!(!device.geometry().read_only);
        device.write(0, &[7], Fua::Yes).unwrap();
        // The flag comes later: no write is answered falsely.
        assert!(tool("blockdev", "--setro", &block.0));
        assert!(device.write(0, &[8], Fua::Yes).is_err());
        assert!(device.write(4096, &[8], Fua::No).is_err());
        assert!(device.discard(4096, 4096, Fua::No).is_err());
        let mut found = [0];
        device.read(0, &mut found).unwrap();
        assert_eq!(found, [7]);
        // The kernel keeps the flag when the loop device is detached, for its next user.
        assert!(tool("blockdev", "--setrw", &block.0));
    }

    #[test]
    fn immutable_and_append_only_files_are_read_only() {
        let folder = Folder::new("immutable");
        for flag in ["+i", "+a"] {
            let path = folder.file(flag, 8192);
            if !tool("chattr", flag, &path) {
                not_run("there are no such files here");
                return;
            }
            let opened = FileDevice::open(&path);
            tool("chattr", &flag.replace('+', "-"), &path);
            assert_read_only(&opened.unwrap());
        }
    }

    #[test]
    fn sealed_files_are_read_only() {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
        let file = File::from(memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(8192).unwrap();
        assert!(!is_sealed(&file));
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
        assert!(is_sealed(&file));
    }

    #[test]
    fn file_on_read_only_mount_is_read_only() {
        let folder = Folder::new("mounted");
        let inner = folder.0.join("inner");
        std::fs::create_dir_all(&inner).unwrap();
        File::create(inner.join("a")).unwrap().set_len(8192).unwrap();
        let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\"";
        let mounted = Command::new("sh").args(["-c", script, "sh"]).arg(&inner).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        let opened = FileDevice::open(&inner.join("a"));
        if is_mounted {
            assert!(tool("umount", "-l", &inner));
        } else {
            not_run("mounting is not allowed here");
            return;
        }
        assert_read_only(&opened.unwrap());
    }
}
