//! A file or a block device of the system as a device.
//!
//! Owns opening, the size, and what tells one file from another. Requests go through the system's
//! page cache; `flush` is `fdatasync`. Sizes are those at opening.
//!
//! Concurrent requests to one block are kept apart here, because the system does not promise that
//! a read sees all of a write or nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, fallocate};

use crate::device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole};
use crate::range::check_range;

/// Zeroes are written in pieces of so many bytes where the system cannot zero.
const ZEROES_LEN: usize = 1 << 20;

/// Why a file cannot be a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileDeviceError {
    /// The system's words.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Neither a file nor a block device.
    #[error("{path} is neither a file nor a block device", path = path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else has it locked.
    #[error(
        "{path} is in use: another process has locked it; end that, or use another file",
        path = path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
}

/// A file or a block device.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    is_block: bool,
    serial: String,
    /// Held shared by readers, exclusively by writers.
    order: RwLock<()>,
}

impl FileDevice {
    /// Opens the file or block device at `path` for reading and writing, and locks it against
    /// others who do the same.
    ///
    /// # Errors
    /// It cannot be opened, is in use, or is neither.
    pub fn open(path: &Path) -> Result<Self, FileDeviceError> {
        let failed = |error| FileDeviceError::Io { path: path.to_owned(), error };
        let path = path.canonicalize().map_err(failed)?;
        let failed = |error| FileDeviceError::Io { path: path.clone(), error };
        let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(FileDeviceError::Kind { path });
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(FileDeviceError::Locked { path }),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let serial = if kind.is_file() {
            format!("device {} inode {}", metadata.dev(), metadata.ino())
        } else {
            format!("device {}", metadata.rdev())
        };
        let is_block = kind.is_block_device();
        Ok(Self { file, path, size_bytes, is_block, serial, order: RwLock::new(()) })
    }

    /// Its absolute path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.is_block
    }

    /// What tells it from others of the same name: numbers of its device and inode.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    fn failed(&self, offset: u64, len: u64, error: &io::Error) -> DeviceError {
        let path = self.path.display();
        if error.kind() == io::ErrorKind::StorageFull {
            let advice = format!("the file system of {path} is full");
            return DeviceError::NoSpace { offset, len, advice };
        }
        DeviceError::Media { offset, len, reason: format!("{path}: {error}") }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn zero(&self, offset: u64, len: u64, hole: Hole) -> io::Result<()> {
        let flags = match hole {
            Hole::Allowed => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Hole::Forbidden => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        match fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {
                let zeroes = vec![0; ZEROES_LEN];
                let mut at = offset;
                while at < offset + len {
                    let piece = (offset + len - at).min(ZEROES_LEN as u64);
                    let piece_len = usize::try_from(piece).unwrap_or(ZEROES_LEN);
                    self.file.write_all_at(&zeroes[..piece_len], at)?;
                    at += piece;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            minimum_bytes: 1,
            preferred_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, out.len() as u64, self.size_bytes)?;
        let _shared = self.order.read();
        let len = out.len() as u64;
        self.file.read_exact_at(out, offset).map_err(|error| self.failed(offset, len, &error))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        check_range(offset, len, self.size_bytes)?;
        let written = {
            let _alone = self.order.write();
            self.file.write_all_at(data, offset)
        };
        let done = written.and_then(|()| if fua == Fua::Yes { self.sync() } else { Ok(()) });
        // Some of it may be there.
        done.map_err(|error| DeviceError::Media {
            offset,
            len,
            reason: format!("{}: {error}", self.path.display()),
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.sync().map_err(|error| self.failed(0, self.size_bytes, &error))
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
        check_range(offset, len, self.size_bytes)?;
        if fast {
            return Err(DeviceError::NotFast);
        }
        if len == 0 {
            return Ok(());
        }
        let zeroed = {
            let _alone = self.order.write();
            self.zero(offset, len, hole)
        };
        let done = zeroed.and_then(|()| if fua == Fua::Yes { self.sync() } else { Ok(()) });
        done.map_err(|error| DeviceError::Media {
            offset,
            len,
            reason: format!("{}: {error}", self.path.display()),
        })
    }

    fn status(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, DeviceError> {
        let size_bytes = self.size_bytes;
        check_range(offset, len, size_bytes)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        }
        Ok(vec![Extent { len, hole: false, zero: false }])
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(offset, len, self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::conformance;

    /// A folder that is gone when dropped.
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
    fn a_file_has_one_user_and_keeps_its_identity() {
        let folder = Folder::new("identity");
        let path = folder.file("a", 8192);
        let device = FileDevice::open(&path).unwrap();
        assert!(matches!(FileDevice::open(&path), Err(FileDeviceError::Locked { .. })));
        let serial = device.serial().to_owned();
        device.write(8191, &[7], Fua::Yes).unwrap();
        drop(device);
        let again = FileDevice::open(&path).unwrap();
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
}
