//! `everbyte fs put`.
//!
//! Invariants: a file gets its name after all its bytes are written. The command reports success
//! once everything is durable.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FilePlace, FileStatus, NewFile, PathBytes, SetFile};
use everbyte_path::{Access, Dir, Entry, Kind, Place, open, open_input};
use indicatif::ProgressBar;

use super::files::{FileTarget, Files, FoundFile, LEVELS_MAX, PIECE_BYTES, below, since_1970};
use super::fs_get::umask;
use super::source::DataRanges;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs put letter /dev/shm/p/files:/docs/             as docs/letter
  pg_dump base | everbyte fs put - /dev/shm/p/files:/base.sql
  everbyte fs put -rp /srv/photos /dev/shm/p/files:/photos

If the destination is an existing directory, the copy gets the name of its source in it. With -r an existing directory of
that name keeps its other entries. The command writes a file under a name beginning with '.put-', and renames it when it
is complete. Programs with the old file open keep it, and other hard links still lead to it. If the command
is killed, the file '.put-...' remains and can be removed.

With -r symbolic links stay symbolic links. Pipes, sockets and devices are skipped with a message on standard error, and
the exit status is 1. Holes stay holes.

The command follows a symbolic link in SOURCE only if you or root made it. It follows no link below SOURCE, even if
another user replaces files during the copy.

Exit status 0 means: the whole copy is durable.";

/// Copy files into a file system.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file or directory to copy, or - for standard input.
    source: PathBuf,
    /// The file to write, or a directory to put it in.
    #[arg(value_name = "POOL/VOLUME[:PATH]")]
    target: PathBuf,
    /// Copy directories with their contents.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permissions, owner, group and times. Otherwise a replaced file passes on its permissions
    /// and owner. Other files belong to you, with the source's permissions minus your umask.
    #[arg(short, long)]
    preserve: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    // Before the pool: a missing source must not lock or recover a pool.
    let source = Source::open(args)?;
    let files = Files::change(&target)?;
    let mut copy = Copy { files, preserve: args.preserve, umask: umask(), left_out: 0 };
    let done = put(&mut copy, source, &target);
    let left_out = copy.left_out;
    copy.files.finish(done)?;
    Ok(if left_out == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The source of a copy, opened before the pool.
enum Source {
    /// Standard input, or an open pipe or device.
    Stream(File),
    /// A regular file or a block device.
    File(File, Metadata, PathBuf),
    Directory(Dir, PathBuf),
}

impl Source {
    fn open(args: &Args) -> anyhow::Result<Self> {
        let path = &args.source;
        // A duplicate: the copy closes its descriptor, and standard input stays open.
        if path.as_os_str() == "-" {
            let input = rustix::stdio::stdin().try_clone_to_owned();
            return Ok(Self::Stream(input.context("there is no standard input")?.into()));
        }
        let failed = || path.display().to_string();
        let place = Place::following(path).with_context(failed)?;
        let found = place.find().with_context(failed)?;
        match found.as_ref().map(Entry::kind) {
            Some(Kind::Directory) if !args.recursive => bail!(
                "{}: it is a directory: pass -r to copy it with all that is in it",
                path.display()
            ),
            Some(Kind::Directory) => {
                let dir = Dir::open_place(place).with_context(failed)?;
                Ok(Self::Directory(dir, path.clone()))
            }
            // A link of /proc to an open file of a program.
            Some(Kind::Symlink) => {
                let kinds = [Kind::File, Kind::Fifo, Kind::CharDevice, Kind::BlockDevice];
                Ok(Self::Stream(open(path, Access::Read, &kinds).with_context(failed)?.0))
            }
            Some(Kind::Fifo) => Ok(Self::Stream(open_input(path).with_context(failed)?.0)),
            _ => {
                let name = place.name().with_context(failed)?;
                let kinds = [Kind::File, Kind::BlockDevice];
                let opened = place.dir.open_file(name, Access::Read, &kinds);
                let (file, metadata) = opened.with_context(failed)?;
                Ok(Self::File(file, metadata, path.clone()))
            }
        }
    }

    /// Its name in a destination directory.
    fn name(&self) -> Option<PathBytes> {
        let name = match self {
            Self::Stream(_) => return None,
            Self::File(_, _, path) => path.file_name()?.to_owned(),
            Self::Directory(dir, path) => match path.file_name() {
                Some(name) => name.to_owned(),
                // A source such as . or / has its name only on the descriptor's path.
                None => dir.path().ok()?.file_name()?.to_owned(),
            },
        };
        Some(PathBytes(name.as_bytes().to_vec()))
    }
}

fn put(copy: &mut Copy, source: Source, target: &FileTarget) -> anyhow::Result<()> {
    let mut path = target.path.clone();
    let mut found = copy.files.find(None, &path, true)?;
    if let Some(directory) = found.file.as_ref().filter(|file| file.kind == FileKind::Directory) {
        let Some(name) = source.name() else {
            bail!("{}: it is a directory: name the file in it", target.shown());
        };
        let from = Some(directory.id());
        path = below(&path, &name);
        found = copy.files.find(from, &name, true).with_context(|| copy.files.shown(&path))?;
    }
    let failed = copy.files.shown(&path);
    let put = match source {
        Source::Stream(input) => copy.put_bytes(&input, &path, found, None),
        Source::File(file, metadata, _) => copy.put_bytes(&file, &path, found, Some(&metadata)),
        Source::Directory(dir, shown) => {
            copy.put_directory((&dir, &shown), &path, found, LEVELS_MAX)
        }
    };
    put?;
    copy.files.sync().context(failed)
}

struct Copy {
    files: Files,
    preserve: bool,
    umask: u32,
    /// Skipped files by type.
    left_out: u64,
}

impl Copy {
    /// Copies the entry `name` of `dir` to `path` of the file system. `found` is the entry's state, `shown` its path
    /// for messages.
    fn put(
        &mut self,
        (dir, name, shown): (&Dir, &OsStr, &Path),
        path: &PathBytes,
        found: FoundFile,
        levels: usize,
    ) -> anyhow::Result<()> {
        let failed = || shown.display().to_string();
        let entry = dir.entry(name).with_context(failed)?;
        match entry.kind() {
            Kind::Directory => {
                let dir = dir.dir(name).with_context(failed)?;
                self.put_directory((&dir, shown), path, found, levels)
            }
            Kind::Symlink => self.put_link(&entry, path, found).with_context(failed),
            Kind::File => {
                let opened = dir.open_file(name, Access::Read, &[Kind::File]);
                let (file, metadata) = opened.with_context(failed)?;
                self.put_bytes(&file, path, found, Some(&metadata))
            }
            kind => {
                tracing::error!("{}: left out: it is a {kind}", shown.display());
                self.left_out += 1;
                Ok(())
            }
        }
    }

    fn put_directory(
        &mut self,
        (from, from_shown): (&Dir, &Path),
        path: &PathBytes,
        found: FoundFile,
        levels: usize,
    ) -> anyhow::Result<()> {
        let shown = self.files.shown(path);
        let failed = || from_shown.display().to_string();
        // The limit bounds the recursion.
        if levels == 0 {
            bail!("{}: more than {LEVELS_MAX} directories within each other", failed());
        }
        let metadata = from.metadata().with_context(failed)?;
        let directory = match (found.file, found.at) {
            (Some(file), _) if file.kind == FileKind::Directory => file,
            // Replacing a file by a directory could not be atomic, and would lose the file.
            (Some(_), _) => bail!("{shown}: there is a file of this name that is no directory"),
            (None, Some(at)) => {
                let new = self.new_file(FileKind::Directory, Some(&metadata));
                self.files.make(&at, new).context(shown)?
            }
            (None, None) => bail!("{shown}: no such file or directory"),
        };
        // Through the open directory: a renamed or replaced parent does not redirect the copy.
        for name in from.names().with_context(failed)? {
            let shown = from_shown.join(&name);
            let bytes = PathBytes(name.as_bytes().to_vec());
            let path = below(path, &bytes);
            // By the number of the directory, for the same reason within the pool.
            let found = self.files.find(Some(directory.id()), &bytes, false)?;
            self.put((from, &name, &shown), &path, found, levels - 1)?;
        }
        // Last: the copied entries change the times of the directory.
        self.preserve(&directory, Some(&metadata)).with_context(|| self.files.shown(path))
    }

    fn put_link(&mut self, link: &Entry, path: &PathBytes, found: FoundFile) -> anyhow::Result<()> {
        let metadata = link.metadata();
        let target = Some(PathBytes(link.link_target()?.as_bytes().to_vec()));
        let new = NewFile { target, ..self.new_file(FileKind::Symlink, Some(metadata)) };
        let at = self.place(path, found)?;
        let aside = aside(&at);
        let put = (|| {
            let made = self.files.make(&aside, new)?;
            // Before the name, as for files: the link appears complete.
            self.preserve(&made, Some(metadata))?;
            self.files.rename(&aside, &at)
        })();
        self.settle(put, &aside, path)
    }

    /// Copies the bytes of `source` to a regular file at `path`.
    fn put_bytes(
        &mut self,
        source: &File,
        path: &PathBytes,
        found: FoundFile,
        metadata: Option<&Metadata>,
    ) -> anyhow::Result<()> {
        let mut new = self.new_file(FileKind::Regular, metadata);
        let replaced = found.file.as_ref().filter(|file| file.kind == FileKind::Regular);
        // Without --preserve, the copy keeps the permissions and the owner of the replaced file.
        if let (Some(replaced), false) = (replaced, self.preserve) {
            (new.permissions, new.uid, new.gid) =
                (replaced.permissions, replaced.uid, replaced.gid);
        }
        let at = self.place(path, found)?;
        // A temporary name: a failed copy must not replace the old file.
        let aside = aside(&at);
        let bar = output::copying(metadata.map_or(0, Metadata::len));
        let put = (|| {
            let made = self.files.make(&aside, new)?;
            self.write_all(source, &made, &bar)?;
            // After the writes, which change the times, and before the name.
            self.preserve(&made, metadata)?;
            self.files.rename(&aside, &at)
        })();
        bar.finish_and_clear();
        self.settle(put, &aside, path)
    }

    /// Copies data and size. Holes stay holes.
    fn write_all(
        &mut self,
        source: &File,
        file: &FileStatus,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let mut data = DataRanges::of(source).context("the source cannot be read")?;
        let (mut buffer, mut offset) = (vec![0; PIECE_BYTES], 0);
        while let Some(len) = data.read(&mut buffer).context("the source cannot be read")? {
            offset = len.offset;
            let piece = &buffer[..len.bytes];
            // Zeroes become a hole.
            if piece.iter().any(|byte| *byte != 0) {
                self.files.write(file.id(), offset, piece)?;
            }
            offset += len.bytes as u64;
            bar.set_position(offset);
        }
        // A hole at the end has no write. The source may also have grown or shrunk.
        let size_bytes = Some(offset.max(data.end()));
        self.files.set(file.id(), SetFile { size_bytes, ..SetFile::default() })
    }

    /// The final name of a file. An error if a directory has the name.
    fn place(&self, path: &PathBytes, found: FoundFile) -> anyhow::Result<FilePlace> {
        let shown = self.files.shown(path);
        if found.file.is_some_and(|file| file.kind == FileKind::Directory) {
            bail!("{shown}: there is a directory of this name");
        }
        if path.0.ends_with(b"/") {
            bail!("{shown}: there is no such directory");
        }
        found.at.with_context(|| format!("{shown}: no file can have this name"))
    }

    /// Completes a new file, or removes the rest of a failed copy.
    fn settle(
        &mut self,
        put: anyhow::Result<()>,
        aside: &FilePlace,
        path: &PathBytes,
    ) -> anyhow::Result<()> {
        if put.is_err() {
            // It may not be there, and the first error says more.
            let _ = self.files.remove(aside);
        }
        put.with_context(|| self.files.shown(path))
    }

    fn new_file(&self, kind: FileKind, metadata: Option<&Metadata>) -> NewFile {
        let mode = metadata.map_or(0o666, MetadataExt::mode);
        match metadata.filter(|_| self.preserve) {
            Some(kept) => NewFile {
                kind,
                permissions: mode & 0o7777,
                uid: kept.uid(),
                gid: kept.gid(),
                target: None,
            },
            None => NewFile {
                kind,
                permissions: if kind == FileKind::Symlink {
                    0o777
                } else {
                    mode & 0o777 & !self.umask
                },
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                target: None,
            },
        }
    }

    /// Sets the owner, permissions and times of a copy under --preserve.
    fn preserve(&mut self, file: &FileStatus, metadata: Option<&Metadata>) -> anyhow::Result<()> {
        let Some(source) = metadata.filter(|_| self.preserve) else { return Ok(()) };
        let time = |time: io::Result<_>| time.ok().map(since_1970);
        let set = SetFile {
            size_bytes: None,
            permissions: Some(source.mode() & 0o7777),
            uid: Some(source.uid()),
            gid: Some(source.gid()),
            accessed_ns: time(source.accessed()),
            modified_ns: time(source.modified()),
        };
        self.files.set(file.id(), set)
    }
}

/// An unused name in the directory of `at`.
fn aside(at: &FilePlace) -> FilePlace {
    let name = format!(".put-{:016x}", rand::random::<u64>());
    FilePlace { directory: at.directory, name: PathBytes(name.into_bytes()) }
}
