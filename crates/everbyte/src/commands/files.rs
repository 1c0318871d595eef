//! The files of a file system as commands reach them: by the pool's server, or in the pool itself.
//!
//! Invariant: an error about a file names it as the user would, `VOLUME:PATH`.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use everbyte_control::{
    FileEntry, FileId, FileKind, FilePlace, FileRequest, FileStatus, NewFile, PIECE_BYTES_MAX,
    PathBytes, Request, Response, SetFile, TimeNs, UnreadableEntry,
};
use everbyte_server::{Session, SessionError};

use super::server::split_target;
use super::unexpected;
use crate::arguments::UsageError;

/// Bytes of a file that are moved at once.
pub(crate) const PIECE_BYTES: usize = PIECE_BYTES_MAX as usize;
/// Most directories within each other that a command walks into.
pub(crate) const LEVELS_MAX: usize = 512;

/// A file as it is named on the command line: `POOL/VOLUME` or `POOL/VOLUME:PATH`.
#[derive(Clone, Debug)]
pub(crate) struct FileTarget {
    pub(crate) pool: PathBuf,
    pub(crate) volume: String,
    pub(crate) path: PathBytes,
}

impl FileTarget {
    /// Reads what the user typed. The pool's path may have colons itself: the first that follows an
    /// existing pool and a volume's name ends that name.
    ///
    /// # Errors
    /// There is no such pool, or no volume is named.
    pub(crate) fn new(typed: &Path) -> anyhow::Result<Self> {
        let bytes = typed.as_os_str().as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
        let splits =
            colons.map(|(at, _)| (&bytes[..at], &bytes[at + 1..])).chain([(bytes, &[][..])]);
        let part = |bytes: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
        let mut wrong = None;
        for (target, path) in splits {
            match split_target(&part(target)) {
                Ok((pool, Some(volume))) => {
                    return Ok(Self { pool, volume, path: PathBytes(path.to_vec()) });
                }
                Ok((pool, None)) => {
                    let what =
                        format!("{} names no volume: write POOL/VOLUME:PATH", pool.display());
                    // That there is a pool says more than that there is none of a shorter name.
                    wrong = Some(UsageError(what).into());
                }
                Err(error) => {
                    wrong.get_or_insert(error);
                }
            }
        }
        Err(wrong.expect("the whole is always tried"))
    }

    pub(crate) fn shown(&self) -> String {
        shown(&self.volume, &self.path)
    }
}

fn shown(volume: &str, path: &PathBytes) -> String {
    format!("{volume}:{path}")
}

/// `directory` and a name in it.
pub(crate) fn below(directory: &PathBytes, name: &PathBytes) -> PathBytes {
    let mut path = directory.0.clone();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(&name.0);
    PathBytes(path)
}

/// A place that was looked up.
pub(crate) struct Found {
    /// The name in its directory; `None` for a path to the root, or that ends in `.` or `..`.
    pub(crate) at: Option<FilePlace>,
    pub(crate) file: Option<FileStatus>,
}

/// The files of one file system.
pub(crate) struct Files {
    session: Session,
    volume: String,
    /// True once a listing has left out files that cannot be read.
    is_incomplete: bool,
}

impl Files {
    /// For looking at files.
    pub(crate) fn look(target: &FileTarget) -> Result<Self, SessionError> {
        Ok(Self::of(Session::look(&target.pool)?, target))
    }

    /// For changing files. To be ended with [`Files::finish`].
    pub(crate) fn change(target: &FileTarget) -> Result<Self, SessionError> {
        Ok(Self::of(Session::change(&target.pool)?, target))
    }

    fn of(session: Session, target: &FileTarget) -> Self {
        Self { session, volume: target.volume.clone(), is_incomplete: false }
    }

    /// Ends what began with [`Files::change`] and came to `done`.
    pub(crate) fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        self.session.finish(done)
    }

    /// A path in this file system as error messages name it.
    pub(crate) fn shown(&self, path: &PathBytes) -> String {
        shown(&self.volume, path)
    }

    fn ask(
        &mut self,
        request: FileRequest,
        bytes: &[u8],
    ) -> Result<(Response, Vec<u8>), SessionError> {
        let volume = self.volume.clone();
        self.session.ask_attached(Request::Files { volume, request }, bytes)
    }

    fn done(&mut self, request: FileRequest, bytes: &[u8]) -> anyhow::Result<()> {
        match self.ask(request, bytes)? {
            (Response::FileDone, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn found(&mut self, request: FileRequest) -> anyhow::Result<Found> {
        match self.ask(request, &[])? {
            (Response::FileFound { at, file }, _) => Ok(Found { at, file: file.map(|file| *file) }),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The place of `path` from `from` on, the root if that is `None`.
    pub(crate) fn find(
        &mut self,
        from: Option<FileId>,
        path: &PathBytes,
        follow: bool,
    ) -> anyhow::Result<Found> {
        self.found(FileRequest::Find { from, path: path.clone(), follow })
            .with_context(|| self.shown(path))
    }

    /// The file at `path`, which must exist.
    pub(crate) fn existing(
        &mut self,
        path: &PathBytes,
        follow: bool,
    ) -> anyhow::Result<FileStatus> {
        match self.find(None, path, follow)?.file {
            Some(file) => Ok(file),
            None => bail!("{}: no such file or directory", self.shown(path)),
        }
    }

    /// The exit status of a command that has done its work but for what listings have left out.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.is_incomplete { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// The entries of the directory at `path`, in the order of their names. Files that cannot be read are named on
    /// standard error and left out.
    pub(crate) fn list(
        &mut self,
        directory: FileId,
        path: &PathBytes,
    ) -> anyhow::Result<Vec<FileEntry>> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(place) = next {
            let listed = self.ask(FileRequest::List { directory, place }, &[]);
            match listed.with_context(|| self.shown(path))? {
                (Response::FileEntries { entries, unreadable, next: after }, _) => {
                    for UnreadableEntry { name, reason } in unreadable {
                        let path = self.shown(&below(path, &name));
                        tracing::error!("{path}: left out: {reason}");
                        self.is_incomplete = true;
                    }
                    all.extend(entries);
                    next = after;
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Shows `each` the pieces of a regular file in their order.
    pub(crate) fn read_all(
        &mut self,
        file: FileId,
        mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut offset = 0;
        loop {
            let request = FileRequest::Read { file, offset, len: PIECE_BYTES_MAX };
            let (answer, bytes) = self.ask(request, &[])?;
            if !matches!(answer, Response::FileBytes { .. }) {
                return Err(unexpected(&answer));
            }
            if bytes.is_empty() {
                return Ok(());
            }
            each(&bytes)?;
            offset += bytes.len() as u64;
        }
    }

    /// Writes up to [`PIECE_BYTES`] to a regular file.
    pub(crate) fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let len = u32::try_from(bytes.len()).context("a piece of a file is too large")?;
        self.done(FileRequest::Write { file, offset, len }, bytes)
    }

    pub(crate) fn make(&mut self, at: &FilePlace, new: NewFile) -> anyhow::Result<FileStatus> {
        let found = self.found(FileRequest::Make { at: at.clone(), new })?;
        found.file.context("the server has not said what it made")
    }

    pub(crate) fn set(&mut self, file: FileId, set: SetFile) -> anyhow::Result<()> {
        self.found(FileRequest::Set { file, set }).map(drop)
    }

    pub(crate) fn rename(&mut self, from: &FilePlace, to: &FilePlace) -> anyhow::Result<()> {
        self.done(FileRequest::Rename { from: from.clone(), to: to.clone() }, &[])
    }

    pub(crate) fn remove(&mut self, at: &FilePlace) -> anyhow::Result<()> {
        self.done(FileRequest::Remove { at: at.clone() }, &[])
    }

    /// Makes everything durable that was answered before.
    pub(crate) fn sync(&mut self) -> anyhow::Result<()> {
        self.done(FileRequest::Sync, &[])
    }
}

/// Type and permissions as `ls -l` shows them.
pub(crate) fn show_mode(file: &FileStatus) -> String {
    let kind = match file.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let bits = file.permissions;
    let mut shown = String::from(kind);
    // Who: the shift of the three bits, the bit that changes the last, and how it is shown.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let may = |bit: u32| bits >> shift & bit != 0;
        shown.push(if may(4) { 'r' } else { '-' });
        shown.push(if may(2) { 'w' } else { '-' });
        shown.push(match (may(1), bits & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// The type of a file in words.
pub(crate) fn show_kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// A time of a local file.
pub(crate) fn since_1970(time: SystemTime) -> TimeNs {
    let ns = |distance: Duration| i128::try_from(distance.as_nanos()).unwrap_or(i128::MAX);
    TimeNs(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => ns(since),
        Err(before) => -ns(before.duration()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_pool_a_volume_and_a_path_whatever_has_colons() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("a:b");
        std::fs::write(&pool, "").unwrap();
        for (typed, volume, path) in [
            ("v", "v", ""),
            ("v:", "v", ""),
            ("v:/d/e:f", "v", "/d/e:f"),
            ("v-2:x/y", "v-2", "x/y"),
        ] {
            let target = FileTarget::new(&pool.join(typed)).unwrap();
            assert_eq!(target.pool, pool, "{typed}");
            assert_eq!(
                (target.volume.as_str(), target.path.0.as_slice()),
                (volume, path.as_bytes())
            );
        }
        for (wrong, what) in [(pool.clone(), "no volume"), (folder.path().join("c/v:x"), "no pool")]
        {
            let error = FileTarget::new(&wrong).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn names_are_joined_with_one_slash() {
        let path = |text: &str| PathBytes(text.as_bytes().to_vec());
        for directory in ["", "/"] {
            assert_eq!(below(&path(directory), &path("x")), path("/x"));
        }
        assert_eq!(below(&path("a"), &path("x")), path("a/x"));
    }
}
