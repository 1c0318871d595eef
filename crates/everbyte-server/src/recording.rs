//! Recording of requests to exports, in our trace format.
//!
//! Invariants: if a recording fails, it ends, and serving continues. A file is emptied only after
//! it is known not to be a pool or a backing device.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use everbyte::backing::KnownBacking;
use everbyte_device::BackingIdentity;
use everbyte_device::record::{RecordedOp, RecordedRequest, Recorder, RequestLog};
use everbyte_media::Stack;
use everbyte_path::{Access, Kind, Place, Rights, look, open_unmagical};
use everbyte_policy::trace::{CsvWriter, Request, RequestOp};
use everbyte_pool::format::{MAGIC, SUPERBLOCK_COPIES};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::open_pool::OpenPool;

/// The longest request in a record: readers take longer requests for mistakes. Only requests for
/// zeroes are longer.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Permissions of a new record: the requests of clients are private.
const RECORD_MODE: u32 = 0o600;

/// Reasons why requests cannot be recorded in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The system refused.
    #[error("cannot write to {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The system refused the rights for opening the file.
    #[error("cannot open {}: {source}", path.display())]
    Rights {
        /// The file.
        path: PathBuf,
        /// The system's words, and the rights.
        source: io::Error,
    },
    /// The file exists. The record would replace it.
    #[error("{} exists already, and a record would replace it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file must not be replaced in any case.
    #[error("{} is {what}: record into another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// The use of the file.
        what: String,
    },
}

impl OpenPool {
    /// Makes an empty file at `path` for a record. With `force`, drops the contents of an existing
    /// file, but never of a pool, a device, or a backing device of a cache.
    ///
    /// # Errors
    /// See [`RecordError`]. Nothing was changed then.
    pub fn record_file(&self, path: &Path, force: bool) -> Result<File, RecordError> {
        let failed = |source| RecordError::Io { path: path.to_owned(), source };
        let refused = |source| match self.pool.rights() {
            Rights::Own => failed(source),
            _ => RecordError::Rights { path: path.to_owned(), source },
        };
        // First as a new file: without one, nothing can be lost.
        match self.open_record(path, None) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(refused(error)),
        }
        // Not emptied until its use is known. A pipe is opened only if another program reads it.
        let is_pipe = look(path).is_ok_and(|found| found.kind() == Kind::Fifo);
        let access = if is_pipe { Access::Write } else { Access::ReadWrite };
        let file = self.open_record(path, Some(access)).map_err(|error| {
            if is_pipe && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
                let what = "it is a named pipe, and no program reads it";
                return failed(io::Error::new(error.kind(), what));
            }
            refused(error)
        })?;
        if let Some(what) = self.what_is(&file).map_err(failed)? {
            return Err(RecordError::InUse { path: path.to_owned(), what });
        }
        // After the look at its use: even `force` replaces no pool and no device.
        if !force {
            return Err(RecordError::Exists { path: path.to_owned() });
        }
        // Pipes have no contents to drop.
        if file.metadata().map_err(failed)?.is_file() {
            file.set_len(0).map_err(failed)?;
        }
        Ok(file)
    }

    /// Opens the file of a record; a new file without `access`. If another user can change the
    /// pool, opens it with this user's rights.
    fn open_record(&self, path: &Path, access: Option<Access>) -> io::Result<File> {
        let rights = self.pool.rights();
        if rights == Rights::Own {
            return open_own(path, access);
        }
        let how = match access {
            None => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            Some(Access::Write) => OFlags::WRONLY,
            Some(_) => OFlags::RDWR,
        };
        // NONBLOCK keeps the open of a pipe from waiting for its reader.
        let flags = how | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(RECORD_MODE);
        let file = rights.run_io(|| open_unmagical(path, flags, mode))?;
        let flags = fcntl_getfl(&file)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// The reason against replacing an existing file; `None` if it may be replaced.
    fn what_is(&self, file: &File) -> io::Result<Option<String>> {
        let found = file.metadata()?;
        let is_device = found.file_type().is_block_device();
        if !found.is_file() && !is_device {
            // A pipe or a terminal has no contents to lose.
            return Ok(None);
        }
        let (identity, stack) = (BackingIdentity::of(file)?, Stack::of(file)?);
        if self.pool.shares_bytes_with(&stack) {
            return Ok(Some("the pool that is served".to_owned()));
        }
        let is_it = |_: &str, known: &KnownBacking| {
            let recorded = known.identity.backing.as_ref();
            recorded.is_some_and(|recorded| recorded.shares_bytes_with(&identity))
                || known.stack.as_ref().is_some_and(|known| known.shares_bytes_with(&stack))
        };
        if let Some(cache) = self.pool.find_backing(is_it).map_err(io::Error::other)? {
            return Ok(Some(format!("the backing device of cache {cache}")));
        }
        if is_device {
            return Ok(Some("a block device".to_owned()));
        }
        // Open pools and backing files are locked by their process.
        if file.try_lock().is_err() {
            return Ok(Some("in use by another process".to_owned()));
        }
        // A closed pool holds no lock: its superblocks identify it.
        let is_pool = SUPERBLOCK_COPIES.iter().any(|copy| {
            let mut start = [0; MAGIC.len()];
            file.read_exact_at(&mut start, copy.0).is_ok() && start == MAGIC
        });
        Ok(is_pool.then(|| "a pool".to_owned()))
    }
}

/// Opens the file of a record with the rights of the process. Links of other users are not followed.
fn open_own(path: &Path, access: Option<Access>) -> io::Result<File> {
    let Some(access) = access else {
        let place = Place::of(path)?;
        return place.dir.create_new(place.name()?, RECORD_MODE);
    };
    let kinds = [Kind::File, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo];
    Ok(Place::following(path)?.open(access, &kinds)?.0)
}

/// Destination of a record, such as a file or a compressor before a file.
pub trait RecordOutput: Write + Send {
    /// Writes the end mark. It shows a reader the completeness of the record.
    ///
    /// # Errors
    /// The errors of the file.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Starts recording to `output` at `path`.
///
/// # Errors
/// It cannot be written, or the system has no thread for it.
pub fn start(output: Box<dyn RecordOutput>, path: &Path) -> Result<Recorder, RecordError> {
    let failed = |source| RecordError::Io { path: path.to_owned(), source };
    let csv = CsvWriter::new(BufWriter::new(output)).map_err(failed)?;
    let shown = path.display().to_string();
    let recorder = Recorder::start(Box::new(CsvLog(csv)), move |error| {
        tracing::warn!(%error, "{shown}: recording has ended; serving goes on");
    });
    recorder.map_err(failed)
}

/// The file.
struct CsvLog(CsvWriter<BufWriter<Box<dyn RecordOutput>>>);

impl RequestLog for CsvLog {
    fn write(&mut self, name: &str, recorded: &RecordedRequest) -> io::Result<()> {
        let op = match recorded.op {
            RecordedOp::Read => RequestOp::Read,
            RecordedOp::Write => RequestOp::Write,
            RecordedOp::Flush => RequestOp::Flush,
            RecordedOp::Discard => RequestOp::Trim,
            RecordedOp::WriteZeroes => RequestOp::Zero,
        };
        let RecordedRequest { time_ns, mut offset, len, .. } = *recorded;
        let mut left = len;
        loop {
            // Readers take longer requests for mistakes.
            let len = left.min(REQUEST_BYTES_MAX);
            self.0.write(&Request { time_ns, op, file: 0, offset, len }, name)?;
            left -= len;
            offset += len;
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn record_follows_no_link_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        open_own(&file, None).unwrap().write_all(b"x").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(open_own(&link, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(open_own(&link, Some(Access::ReadWrite)).is_ok());
        if !everbyte_testkit::is_root("give links to another user") {
            return;
        }
        for path in [&link, folder.path()] {
            lchown(path, Some(4000), Some(4000)).unwrap();
        }
        let error = open_own(&link, Some(Access::ReadWrite)).unwrap_err().to_string();
        assert!(error.contains("link of user 4000"), "{error}");
    }
}
