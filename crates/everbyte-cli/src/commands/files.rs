//! Access of commands to the files of a file system: by the pool's server, or in the pool.
//!
//! Invariants: an error about a file names it in the user's form, `VOLUME:PATH`. The memory of
//! listings is bounded, independent of the server's answers.

use std::cell::Cell;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use everbyte_control::{
    Cause, FileEntry, FileId, FileKind, FileLeak, FilePlace, FileRequest, FileSpace, FileStatus,
    NewFile, PIECE_BYTES_MAX, PathBytes, Request, Response, SetFile, TimeNs, UnreadableEntry,
};

use super::server::split_target;
use super::unexpected;
use crate::arguments::UsageError;
use crate::interrupt::InterruptError;
use crate::output;
use crate::session::{Access, Session, SessionError};

/// Bytes of a file per request.
pub(crate) const PIECE_BYTES: usize = PIECE_BYTES_MAX as usize;
/// Maximum depth of nested directories in a walk of a command.
pub(crate) const LEVELS_MAX: usize = 512;

/// Maximum bytes kept by all listings of a command together.
const LISTED_BYTES_MAX: u64 = 512 << 20;
/// Maximum losses of one directory. Its listing ends after them.
const LOSSES_MAX: u64 = 1 << 20;
/// Maximum losses listed at the end of a command.
const LOSSES_LISTED_MAX: usize = 1000;

/// A file as it is named on the command line: `POOL/VOLUME` or `POOL/VOLUME:PATH`.
#[derive(Clone, Debug)]
pub(crate) struct FileTarget {
    pub(crate) pool: PathBuf,
    pub(crate) volume: String,
    pub(crate) path: PathBytes,
}

impl FileTarget {
    /// Parses the user's text. The pool's path may contain colons: the first colon after an
    /// existing pool and a volume's name ends the volume's name.
    ///
    /// # Errors
    /// The pool does not exist, or the text names no volume.
    pub(crate) fn new(typed: &Path) -> anyhow::Result<Self> {
        let bytes = typed.as_os_str().as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
        // Every colon can be part of a name. The shortest pool that exists wins, the whole text is
        // tried last.
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
                    // An error about an existing pool is more useful than an error about a missing
                    // pool of a shorter name.
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

/// A place after its lookup.
pub(crate) struct FoundFile {
    /// The name in its directory; `None` for a path to the root, or for a path with `.` or `..` at
    /// its end.
    pub(crate) at: Option<FilePlace>,
    pub(crate) file: Option<FileStatus>,
}

/// Bytes of a file, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'b> {
    /// Some bytes.
    Bytes(&'b [u8]),
    /// This number of zeroes without space.
    Hole(u64),
}

/// The entries of a directory, in the order of their names. A drop releases their share of the
/// memory limit.
pub(crate) struct Listing {
    entries: Vec<FileEntry>,
    bytes: u64,
    listed: Rc<Cell<u64>>,
}

impl Listing {
    /// The entries, for a command with a need for them until its end.
    pub(crate) fn keep(mut self) -> Vec<FileEntry> {
        self.bytes = 0;
        std::mem::take(&mut self.entries)
    }

    pub(crate) fn entries(&self) -> &[FileEntry] {
        &self.entries
    }

    /// Counts the memory of some entries.
    fn charge(&mut self, entries: &[FileEntry]) -> anyhow::Result<()> {
        let bytes = |entry: &FileEntry| {
            let target = entry.file.target.as_ref().map_or(0, |target| target.0.len());
            (size_of::<FileEntry>() + entry.name.0.len() + target) as u64
        };
        let bytes: u64 = entries.iter().map(bytes).sum();
        self.bytes += bytes;
        // Before the check: the drop of this listing subtracts the same bytes.
        self.listed.set(self.listed.get() + bytes);
        if self.listed.get() > LISTED_BYTES_MAX {
            bail!(
                "the directories listed at once have more than {LISTED_BYTES_MAX} bytes of names"
            );
        }
        Ok(())
    }

    /// Puts the entries in order.
    fn sort(&mut self) -> anyhow::Result<()> {
        let entries = &mut self.entries;
        entries.sort_unstable_by(|a, b| (&a.name, a.file.inode).cmp(&(&b.name, b.file.inode)));
        // If a name moved during the listing, it can be listed twice.
        entries.dedup_by(|a, b| a.name == b.name && a.file.id() == b.file.id());
        match entries.windows(2).find(|two| two[0].name == two[1].name) {
            // Two files of one name can only come from a damaged or lying server. A copy would mix
            // them.
            Some(two) => bail!("the directory lists two files of the name {}", two[0].name),
            None => Ok(()),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.listed.set(self.listed.get() - self.bytes);
    }
}

/// The files of one file system.
pub(crate) struct Files {
    session: Session,
    volume: String,
    /// Bytes kept by all listings.
    listed: Rc<Cell<u64>>,
    /// The first files and parts of directories among the losses.
    losses: Vec<String>,
    losses_count: u64,
}

impl Files {
    /// For looking at files.
    pub(crate) fn look(target: &FileTarget) -> Result<Self, SessionError> {
        Ok(Self::of(Session::open(&target.pool, Access::Read)?, target))
    }

    /// For changing files. To be ended with [`Files::finish`].
    pub(crate) fn change(target: &FileTarget) -> Result<Self, SessionError> {
        Ok(Self::of(Session::open(&target.pool, Access::Write)?, target))
    }

    fn of(session: Session, target: &FileTarget) -> Self {
        let volume = target.volume.clone();
        Self { session, volume, listed: Rc::default(), losses: Vec::new(), losses_count: 0 }
    }

    /// Ends a change begun with [`Files::change`] and the result `done`.
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

    fn found(&mut self, request: FileRequest) -> anyhow::Result<FoundFile> {
        match self.ask(request, &[])? {
            (Response::FileFound { at, file }, _) => {
                Ok(FoundFile { at, file: file.map(|file| *file) })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The place of `path` from `from` on, or from the root if `from` is `None`.
    pub(crate) fn find(
        &mut self,
        from: Option<FileId>,
        path: &PathBytes,
        follow: bool,
    ) -> anyhow::Result<FoundFile> {
        self.found(FileRequest::Find { from, path: path.clone(), follow })
            .with_context(|| self.shown(path))
    }

    /// The file at `path`. It must exist.
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

    /// Names a file left out by the command, on standard error.
    pub(crate) fn leave_out(&mut self, path: &PathBytes, reason: impl std::fmt::Display) {
        let shown = self.shown(path);
        tracing::error!("{shown}: left out: {reason}");
        self.losses_count += 1;
        // The log has every loss. The list at the end is bounded, because a hostile pool can have
        // any number.
        if self.losses.len() < LOSSES_LISTED_MAX {
            self.losses.push(shown);
        }
    }

    /// Leaves out a file if `done` is an error, unless the error ends the command.
    ///
    /// # Errors
    /// The error of `done`.
    pub(crate) fn go_on(
        &mut self,
        path: &PathBytes,
        done: anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match done {
            // Errors of the connection or of the whole volume end the copy: they would repeat for
            // each file.
            Err(error) if is_of_one_file(&error) => {
                let text = crate::describe(&error);
                let shown = format!("{}: ", self.shown(path));
                self.leave_out(path, text.strip_prefix(&shown).unwrap_or(&text));
                Ok(())
            }
            done => done,
        }
    }

    /// The exit status of a command after its work, with regard to its losses.
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.losses_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The same after a list of all losses.
    pub(crate) fn conclude(&self) -> ExitCode {
        if self.losses_count > 0 {
            output::complain(format!("left out: {}", self.losses_count));
            self.losses.iter().for_each(|loss| output::complain(format!("  {loss}")));
            // After the list, where a reader looks for the size of the loss.
            let more = self.losses_count - self.losses.len() as u64;
            if more > 0 {
                output::complain(format!("  and {more} more, which are named above"));
            }
        }
        self.exit_code()
    }

    /// The reason why other users can change the pool's bytes, if they can.
    pub(crate) fn distrust(&mut self) -> Result<Option<String>, SessionError> {
        self.session.distrust()
    }

    /// The entries of the directory at `path`. Unreadable files and unreadable parts of the
    /// directory are named on standard error and left out.
    pub(crate) fn list(&mut self, directory: FileId, path: &PathBytes) -> anyhow::Result<Listing> {
        let listed = Rc::clone(&self.listed);
        let mut all = Listing { entries: Vec::new(), bytes: 0, listed };
        let mut next = Some(0);
        let losses_before = self.losses_count;
        while let Some(place) = next {
            // A lying server could report unreadable names forever.
            if self.losses_count - losses_before > LOSSES_MAX {
                bail!("{}: more than {LOSSES_MAX} names cannot be read", self.shown(path));
            }
            let listed = self.ask(FileRequest::List { directory, place }, &[]);
            match listed.with_context(|| self.shown(path))? {
                (Response::FileEntries { entries, unreadable, damage, next: after }, _) => {
                    for UnreadableEntry { name, reason } in unreadable {
                        self.leave_out(&below(path, &name), reason);
                    }
                    for damage in damage {
                        self.leave_out(path, format!("names in it: {damage}"));
                    }
                    // Before the entries are kept: the bound holds at every moment.
                    all.charge(&entries).with_context(|| self.shown(path))?;
                    all.entries.extend(entries);
                    next = after;
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
        all.sort().with_context(|| self.shown(path))?;
        Ok(all)
    }

    /// Shows `each` the pieces of a regular file in their order, up to its size when its data were last asked
    /// for.
    pub(crate) fn read_all(
        &mut self,
        file: FileId,
        mut each: impl FnMut(Piece<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (mut offset, mut next) = (0, Some(0));
        while let Some(from) = next {
            let answer = self.ask(FileRequest::Data { file, offset: from }, &[])?;
            let (Response::FileData { ranges, size_bytes, next: after }, _) = answer else {
                return Err(unexpected(&answer.0));
            };
            for (start, end) in ranges {
                if start > offset {
                    each(Piece::Hole(start - offset))?;
                    offset = start;
                }
                while offset < end {
                    let bytes = self.read(file, offset, end - offset)?;
                    if bytes.is_empty() {
                        // It has become shorter.
                        return Ok(());
                    }
                    each(Piece::Bytes(&bytes))?;
                    offset += bytes.len() as u64;
                }
            }
            next = after;
            // No range of data follows, so the rest of the file is a hole.
            if next.is_none() && size_bytes > offset {
                each(Piece::Hole(size_bytes - offset))?;
            }
        }
        Ok(())
    }

    /// Up to `len` bytes of a regular file.
    fn read(&mut self, file: FileId, offset: u64, len: u64) -> anyhow::Result<Vec<u8>> {
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(PIECE_BYTES_MAX);
        let (answer, bytes) = self.ask(FileRequest::Read { file, offset, len }, &[])?;
        match answer {
            Response::FileBytes { .. } => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes up to [`PIECE_BYTES`] to a regular file.
    pub(crate) fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let len = u32::try_from(bytes.len()).context("a piece of a file is too large")?;
        self.done(FileRequest::Write { file, offset, len }, bytes)
    }

    pub(crate) fn make(&mut self, at: &FilePlace, new: NewFile) -> anyhow::Result<FileStatus> {
        let found = self.found(FileRequest::Make { at: at.clone(), new })?;
        // The copy needs the number of the new file for its writes.
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

    /// Renames a file to an unused name.
    pub(crate) fn move_to(&mut self, from: &FilePlace, to: &FilePlace) -> anyhow::Result<()> {
        self.done(FileRequest::Move { from: from.clone(), to: to.clone() }, &[])
    }

    /// The space of the file system.
    pub(crate) fn space(&mut self) -> anyhow::Result<FileSpace> {
        match self.ask(FileRequest::Space, &[])? {
            (Response::FileSpace(space), _) => Ok(space),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The place of the last name of `path` and the type of the file. The name must exist. `None`
    /// if the file or its entry is damaged.
    pub(crate) fn place(
        &mut self,
        path: &PathBytes,
    ) -> anyhow::Result<(FilePlace, Option<FileKind>)> {
        let shown = self.shown(path);
        let is_slash = |byte: &u8| *byte == b'/';
        // Trailing slashes ask for a directory, and are no part of the name.
        let end = path.0.iter().rposition(|byte| !is_slash(byte)).map_or(0, |last| last + 1);
        let start = path.0[..end].iter().rposition(is_slash).map_or(0, |slash| slash + 1);
        let name = PathBytes(path.0[start..end].to_vec());
        if !name.is_name() {
            bail!("{shown}: the path does not end in a name");
        }
        let directory = self.existing(&PathBytes(path.0[..start].to_vec()), true)?;
        if directory.kind != FileKind::Directory {
            bail!("{shown}: not a directory");
        }
        let at = FilePlace { directory: directory.id(), name };
        match self.kind_at(&at).with_context(|| shown.clone())? {
            // The path has slashes behind a file, which POSIX refuses.
            Some(Some(kind)) if kind != FileKind::Directory && end < path.0.len() => {
                bail!("{shown}: not a directory")
            }
            Some(kind) => Ok((at, kind)),
            None => bail!("{shown}: no such file or directory"),
        }
    }

    /// The type of the file of a name, `None` if the name does not exist. The type of a damaged
    /// file is `None`.
    fn kind_at(&mut self, at: &FilePlace) -> anyhow::Result<Option<Option<FileKind>>> {
        match self.status_at(at) {
            Ok(file) => Ok(file.map(|file| Some(file.kind))),
            // A damaged name exists, and `fs rm` must be able to remove it.
            Err(error) if is_damage(&error) => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }

    /// The file of a name, `None` if the name does not exist.
    pub(crate) fn status_at(&mut self, at: &FilePlace) -> anyhow::Result<Option<FileStatus>> {
        let (from, path) = (Some(at.directory), at.name.clone());
        Ok(self.found(FileRequest::Find { from, path, follow: false })?.file)
    }

    /// The names in a directory, with the types of the readable files.
    pub(crate) fn names(
        &mut self,
        directory: FileId,
        path: &PathBytes,
    ) -> anyhow::Result<Vec<(PathBytes, Option<FileKind>)>> {
        let (mut names, mut bytes, mut next) = (Vec::new(), 0, Some(0));
        while let Some(place) = next {
            let listed = self.ask(FileRequest::List { directory, place }, &[]);
            let (answer, _) = listed.with_context(|| self.shown(path))?;
            let Response::FileEntries { entries, unreadable, next: after, .. } = answer else {
                return Err(unexpected(&answer));
            };
            let entries = entries.into_iter().map(|entry| (entry.name, Some(entry.file.kind)));
            // Unreadable names count as names: a removal must reach them.
            let unreadable = unreadable.into_iter().map(|entry| (entry.name, None));
            for named in entries.chain(unreadable) {
                bytes += (size_of_val(&named) + named.0.0.len()) as u64;
                names.push(named);
            }
            // After each answer, whose size the protocol bounds.
            if bytes > LISTED_BYTES_MAX {
                bail!("{}: more than {LISTED_BYTES_MAX} bytes of names", self.shown(path));
            }
            next = after;
        }
        Ok(names)
    }

    /// Removes a name, even if it is damaged. Returns the leftovers of a damaged one.
    pub(crate) fn remove_or_drop(
        &mut self,
        at: &FilePlace,
        is_directory: bool,
    ) -> anyhow::Result<Option<FileLeak>> {
        let removed = if is_directory {
            self.done(FileRequest::RemoveDirectory { at: at.clone() }, &[])
        } else {
            self.remove(at)
        };
        let Err(error) = removed else { return Ok(None) };
        // Unreadable entries keep a directory from being empty.
        let is_dropped = is_damage(&error) || is_directory && is_of_one_file(&error);
        if !is_dropped {
            return Err(error);
        }
        // Only after a normal removal failed: dropping can leak blocks.
        match self.ask(FileRequest::Drop { at: at.clone() }, &[]) {
            Ok((Response::FileDropped(leak), _)) => Ok(Some(leak)),
            Ok((other, _)) => Err(unexpected(&other)),
            Err(dropped) if is_damage(&error) => Err(dropped.into()),
            Err(_) => Err(error),
        }
    }

    /// Makes all answered changes durable.
    pub(crate) fn sync(&mut self) -> anyhow::Result<()> {
        self.done(FileRequest::Sync, &[])
    }
}

/// Returns true if a request was refused because a file or a name is damaged.
fn is_damage(error: &anyhow::Error) -> bool {
    use everbyte_control::ControlError;
    // The refusal comes from a server or from the pool in this process, in different types.
    let refused = match error.downcast_ref::<SessionError>() {
        Some(SessionError::Refused(refused)) => refused,
        Some(SessionError::Control(ControlError::Refused(refused))) => refused,
        _ => return false,
    };
    refused.cause == Some(Cause::FileDamaged)
}

/// Returns true if an error concerns one file, and the command can go on with others.
pub(crate) fn is_of_one_file(error: &anyhow::Error) -> bool {
    if error.is::<InterruptError>() {
        return false;
    }
    if let Some(error) = error.downcast_ref::<SessionError>() {
        use everbyte_control::ControlError;
        return matches!(
            error,
            SessionError::Refused(_) | SessionError::Control(ControlError::Refused(_))
        );
    }
    // A full or read-only file system fails each further file in the same way.
    let system = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    !matches!(
        system,
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem)
    )
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
    // Each class of users: the shift of its three bits, the bit to change the last of them, and its
    // letter.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let may = |bit: u32| bits >> shift & bit != 0;
        shown.push(if may(4) { 'r' } else { '-' });
        shown.push(if may(2) { 'w' } else { '-' });
        // As in ls: a capital letter shows a special bit without the right to execute.
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
        // Times before 1970 are negative, as on ext4.
        Err(before) => -ns(before.duration()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_splits_pool_volume_and_path() {
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
