//! Files by system calls, on tmpfs or on another file system.

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, ensure};
use everbyte_device::Fua;
use rustix::fs::fdatasync;
use rustix::io::{ReadWriteFlags, pwritev2};

use super::floor::nameless_file;
use crate::subject::{Session, Subject, fill};
use crate::workload::Workload;

/// Smallest unit of direct I/O in bytes.
const DIRECT_BYTES_MIN: usize = 512;

/// Durability of a file's writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// None: tmpfs.
    Volatile,
    /// By `RWF_DSYNC` or `fdatasync`, with direct I/O past the page cache.
    Direct,
    /// By `RWF_DSYNC` or `fdatasync`, through the page cache.
    Buffered,
}

/// A file.
pub(crate) struct FileSubject {
    name: &'static str,
    kind: FileKind,
    file: File,
}

impl FileSubject {
    /// A new file in `folder` on tmpfs.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn on_tmpfs(folder: &Path, size_bytes: u64) -> Result<Self> {
        Self::over("tmpfs", FileKind::Volatile, nameless_file(folder, size_bytes)?, size_bytes)
    }

    /// A subject over `file`, after a write of the whole file.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn over(
        name: &'static str,
        kind: FileKind,
        file: File,
        size_bytes: u64,
    ) -> Result<Self> {
        let subject = Self { name, kind, file };
        fill(&mut &subject, size_bytes, 64 << 10)?;
        // ext4 allocates blocks at the flush: later rewrites find them.
        fdatasync(&subject.file)?;
        Ok(subject)
    }
}

/// Writes and makes only this write durable, by one system call.
///
/// # Errors
/// The system's.
pub(crate) fn write_durably(file: &File, offset: u64, data: &[u8]) -> Result<()> {
    let written = pwritev2(file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC)?;
    // A part alone would count as a whole request.
    ensure!(written == data.len(), "{written} of {} bytes were written", data.len());
    Ok(())
}

impl Subject for FileSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn refuses(&self, workload: &Workload) -> Option<String> {
        match self.kind {
            FileKind::Volatile if workload.writes() && workload.durability.is_stricter() => {
                Some("has nothing that makes a write durable".into())
            }
            FileKind::Direct if workload.bytes < DIRECT_BYTES_MIN => {
                Some("direct I/O has no smaller unit than 512 bytes".into())
            }
            _ => None,
        }
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        // Dirty pages of the last workload would be written during this one.
        if self.kind == FileKind::Buffered && workload.writes() {
            fdatasync(&self.file)?;
        }
        Ok(())
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }
}

impl Session for &FileSubject {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        match (fua, self.kind) {
            (Fua::Yes, FileKind::Direct | FileKind::Buffered) => {
                write_durably(&self.file, offset, data)
            }
            _ => Ok(self.file.write_all_at(data, offset)?),
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.kind != FileKind::Volatile {
            fdatasync(&self.file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_write_stays_in_its_range() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 3000], 0).unwrap();
        write_durably(&file, 1000, &[2; 1000]).unwrap();
        let mut bytes = [0; 3000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..1000].iter().chain(&bytes[2000..]).all(|byte| *byte == 1));
        assert!(bytes[1000..2000].iter().all(|byte| *byte == 2));
    }
}
