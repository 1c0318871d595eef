//! `everbyte fs put`.
//!
//! Invariants: a file gets its name when all its bytes are there; the command says that it succeeded
//! once everything is durable.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileKind, FilePlace, FileStatus, NewFile, PathBytes, SetFile};
use indicatif::ProgressBar;

use super::files::{FileTarget, Files, Found, LEVELS_MAX, PIECE_BYTES, below, since_1970};
use super::fs_get::umask;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs put letter /dev/shm/p/files:/docs/             as docs/letter
  pg_dump base | everbyte fs put - /dev/shm/p/files:/base.sql
  everbyte fs put -rp /srv/photos /dev/shm/p/files:/photos

Into an existing directory a file or directory is put under its own name; with -r an existing directory
of that name keeps what else is in it. A file is written under a name that begins with '.put-' in its
directory, and takes the place of what had its name once it is complete: programs that have the old
one open keep it, and other hard links still lead to it. If the command is killed, the file '.put-...'
is left behind and can be removed.

With -r symbolic links stay symbolic links; pipes, sockets and devices are named on standard error and
left out, and the exit status is 1 then. Blocks of zeroes take no space.

Exit status 0 says that all of it is durable.";

/// Copy files from here to a file system.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file or directory to copy, or - for standard input.
    source: PathBuf,
    /// The file to write, or a directory to put it in.
    #[arg(value_name = "POOL/VOLUME[:PATH]")]
    target: PathBuf,
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permissions, owner, group and times. Otherwise the owner is you, a file that is replaced
    /// hands on its permissions and owner, and others get the source's permissions without your umask.
    #[arg(short, long)]
    preserve: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = FileTarget::new(&args.target)?;
    let source = Source::open(args)?;
    let files = Files::change(&target)?;
    let mut copy = Copy { files, preserve: args.preserve, umask: umask(), left_out: 0 };
    let done = put(&mut copy, source, &target);
    let left_out = copy.left_out;
    copy.files.finish(done)?;
    Ok(if left_out == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The source of a copy, found before the pool is touched.
enum Source {
    Input,
    Path(PathBuf, Metadata),
}

impl Source {
    fn open(args: &Args) -> anyhow::Result<Self> {
        if args.source.as_os_str() == "-" {
            return Ok(Self::Input);
        }
        let path = &args.source;
        let found = fs::metadata(path).with_context(|| path.display().to_string())?;
        if found.is_dir() && !args.recursive {
            bail!(
                "{}: it is a directory: pass -r to copy it with all that is in it",
                path.display()
            );
        }
        Ok(Self::Path(path.clone(), found))
    }

    /// The name that it keeps in a directory.
    fn name(&self) -> Option<PathBytes> {
        match self {
            Self::Input => None,
            Self::Path(path, _) => {
                let resolved = fs::canonicalize(path).ok();
                let name = path.file_name().or_else(|| resolved.as_deref()?.file_name());
                name.map(|name| PathBytes(name.as_bytes().to_vec()))
            }
        }
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
        Source::Input => copy.put_bytes(&mut io::stdin().lock(), &path, found, None),
        Source::Path(from, metadata) => copy.put(&from, &metadata, &path, found, LEVELS_MAX),
    };
    put?;
    copy.files.sync().context(failed)
}

struct Copy {
    files: Files,
    preserve: bool,
    umask: u32,
    /// Files of types that are not copied.
    left_out: u64,
}

impl Copy {
    /// Copies what is at `from` here to `path` there, where `found` was found.
    fn put(
        &mut self,
        from: &Path,
        metadata: &Metadata,
        path: &PathBytes,
        found: Found,
        levels: usize,
    ) -> anyhow::Result<()> {
        let kind = metadata.file_type();
        if kind.is_dir() {
            return self.put_directory(from, metadata, path, found, levels);
        }
        if kind.is_symlink() {
            return self.put_link(from, metadata, path, found);
        }
        if kind.is_file() || levels == LEVELS_MAX {
            let source = File::open(from).with_context(|| from.display().to_string());
            return self.put_bytes(&mut source?, path, found, Some(metadata));
        }
        tracing::error!("{}: left out: it is no file, directory or link", from.display());
        self.left_out += 1;
        Ok(())
    }

    fn put_directory(
        &mut self,
        from: &Path,
        metadata: &Metadata,
        path: &PathBytes,
        found: Found,
        levels: usize,
    ) -> anyhow::Result<()> {
        let shown = self.files.shown(path);
        if levels == 0 {
            bail!("{}: more than {LEVELS_MAX} directories within each other", from.display());
        }
        let directory = match (found.file, found.at) {
            (Some(file), _) if file.kind == FileKind::Directory => file,
            (Some(_), _) => bail!("{shown}: there is a file of this name that is no directory"),
            (None, Some(at)) => {
                let new = self.new_file(FileKind::Directory, Some(metadata));
                self.files.make(&at, new).context(shown)?
            }
            (None, None) => bail!("{shown}: no such file or directory"),
        };
        let failed = || from.display().to_string();
        let mut names = Vec::new();
        for entry in fs::read_dir(from).with_context(failed)? {
            names.push(entry.with_context(failed)?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let from = from.join(&name);
            let metadata = fs::symlink_metadata(&from);
            let metadata = metadata.with_context(|| from.display().to_string())?;
            let name = PathBytes(name.as_bytes().to_vec());
            let path = below(path, &name);
            let found = self.files.find(Some(directory.id()), &name, false)?;
            self.put(&from, &metadata, &path, found, levels - 1)?;
        }
        self.preserve(&directory, Some(metadata)).with_context(|| self.files.shown(path))
    }

    fn put_link(
        &mut self,
        from: &Path,
        metadata: &Metadata,
        path: &PathBytes,
        found: Found,
    ) -> anyhow::Result<()> {
        let target = fs::read_link(from).with_context(|| from.display().to_string())?;
        let target = Some(PathBytes(target.as_os_str().as_bytes().to_vec()));
        let new = NewFile { target, ..self.new_file(FileKind::Symlink, Some(metadata)) };
        let at = self.place(path, found)?;
        let aside = aside(&at);
        let put = (|| {
            let made = self.files.make(&aside, new)?;
            self.preserve(&made, Some(metadata))?;
            self.files.rename(&aside, &at)
        })();
        self.settle(put, &aside, path)
    }

    /// Copies the bytes of `source` to a regular file at `path`.
    fn put_bytes(
        &mut self,
        source: &mut dyn Read,
        path: &PathBytes,
        found: Found,
        metadata: Option<&Metadata>,
    ) -> anyhow::Result<()> {
        let mut new = self.new_file(FileKind::Regular, metadata);
        let replaced = found.file.as_ref().filter(|file| file.kind == FileKind::Regular);
        if let (Some(replaced), false) = (replaced, self.preserve) {
            (new.permissions, new.uid, new.gid) =
                (replaced.permissions, replaced.uid, replaced.gid);
        }
        let at = self.place(path, found)?;
        let aside = aside(&at);
        let bar = output::copying(metadata.map_or(0, Metadata::len));
        let put = (|| {
            let made = self.files.make(&aside, new)?;
            self.write_all(source, &made, &bar)?;
            self.preserve(&made, metadata)?;
            self.files.rename(&aside, &at)
        })();
        bar.finish_and_clear();
        self.settle(put, &aside, path)
    }

    fn write_all(
        &mut self,
        source: &mut dyn Read,
        file: &FileStatus,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let (mut buffer, mut offset) = (vec![0; PIECE_BYTES], 0);
        loop {
            let len = fill(source, &mut buffer).context("the source cannot be read")?;
            let piece = &buffer[..len];
            if piece.iter().any(|byte| *byte != 0) {
                self.files.write(file.id(), offset, piece)?;
            }
            offset += len as u64;
            bar.inc(len as u64);
            if len < PIECE_BYTES {
                break;
            }
        }
        self.files.set(file.id(), SetFile { size_bytes: Some(offset), ..SetFile::default() })
    }

    /// The name at which a file is to be, unless a directory has it.
    fn place(&self, path: &PathBytes, found: Found) -> anyhow::Result<FilePlace> {
        let shown = self.files.shown(path);
        if found.file.is_some_and(|file| file.kind == FileKind::Directory) {
            bail!("{shown}: there is a directory of this name");
        }
        if path.0.ends_with(b"/") {
            bail!("{shown}: there is no such directory");
        }
        found.at.with_context(|| format!("{shown}: no file can have this name"))
    }

    /// Ends the making of a file: what is left of one that failed goes.
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

    /// Gives a copy the owner, permissions and times of its source, if that is wanted.
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

/// A name beside `at` that nobody has.
fn aside(at: &FilePlace) -> FilePlace {
    let name = format!(".put-{:016x}", rand::random::<u64>());
    FilePlace { directory: at.directory, name: PathBytes(name.into_bytes()) }
}

/// Reads until the buffer is full or the source has ended.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match source.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
