//! `everbyte fs get`.
//!
//! Invariant: the replacement of an existing regular file is atomic, even if the system crashes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileEntry, FileKind, FileStatus, PathBytes, TimeNs};
use everbyte_path::{Access, Attributes, Dir, Entry, Kind, NewFile, Place, open};
use rustix::fs::{Timespec, Timestamps};

use super::files::{FileTarget, Files, LEVELS_MAX, Piece, below, show_kind};
use super::fs_cat::show_bytes;
use crate::interrupt::Interrupt;
use crate::output;

/// Unit of holes, in bytes: a unit of zeroes becomes a hole.
const BLOCK: usize = 4096;
/// Zeroes of one write, in bytes.
const ZEROES: usize = 256 << 10;

const EXAMPLES: &str = "\
Examples:
  everbyte fs get /dev/shm/p/files:/docs/letter               to ./letter
  everbyte fs get /dev/shm/p/files:/docs/letter - | less
  everbyte fs get -rp /dev/shm/p/files:/ /backup/files

An existing file is replaced. With -r symbolic links stay symbolic links. Pipes, sockets, devices, damaged files and
damaged parts of directories are skipped with a message on standard error. The copy continues with all other files,
lists the skipped names at the end, and exits with status 1.

Holes stay holes, and blocks of zeroes become holes. If a program writes a file during its copy, parts of the copy can
have different ages.

The command follows a symbolic link in DESTINATION only if you or root made it. It writes nothing outside of
DESTINATION, even if another user renames directories in it during the copy.";

/// Copy files out of a file system.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file or directory to copy.
    #[arg(value_name = "POOL/VOLUME:PATH")]
    source: PathBuf,
    /// The file to write, a directory to put it in, or - for standard output.
    #[arg(default_value = ".")]
    destination: PathBuf,
    /// Copy directories with their contents.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permissions and times, and as root the owner and group. Otherwise the copy belongs to you,
    /// without set-user-ID and set-group-ID bits. If other users can change the pool, files never
    /// keep these bits.
    #[arg(short, long)]
    preserve: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let source = FileTarget::new(&args.source)?;
    let mut files = Files::look(&source)?;
    let file = files.existing(&source.path, true)?;
    // Before the check of -r: a directory has no bytes, and `show_bytes` reports it.
    if args.destination.as_os_str() == "-" {
        show_bytes(&mut files, &source, &file)?;
        return Ok(ExitCode::SUCCESS);
    }
    if file.kind == FileKind::Directory && !args.recursive {
        bail!("{}: it is a directory: pass -r to copy it with all that is in it", source.shown());
    }
    let interrupt = Interrupt::catch()?;
    let is_root = rustix::process::geteuid().is_root();
    // Only root can give files away. Other users need no trust, because the copy is theirs.
    let distrust = if args.preserve && is_root { files.distrust()? } else { None };
    let mut copy =
        Copy { files, preserve: args.preserve, is_root, distrust, umask: umask(), interrupt };
    match Destination::find(args, &source, &file)? {
        Destination::Named(to) if file.kind == FileKind::Regular => {
            copy.copy_bytes(&source.path, &file, &to)?;
        }
        Destination::Named(to) => copy.copy(&source.path, &file, &to, LEVELS_MAX)?,
        Destination::Directory(dir, shown) => {
            copy.copy_entries(&source.path, &file, (&dir, &shown), LEVELS_MAX)?;
        }
        Destination::Open(out) => copy.copy_into(&source.path, &file, out, &args.destination)?,
    }
    Ok(copy.files.conclude())
}

/// The place of a copy: a name in an open directory.
struct Target {
    dir: Dir,
    name: OsString,
    /// Its path for messages.
    shown: PathBuf,
}

impl Target {
    /// Names the failed creation.
    fn failed(&self) -> String {
        format!("cannot write {}", self.shown.display())
    }
}

/// The destination of a copy.
enum Destination {
    /// A new or replaced name.
    Named(Target),
    /// A directory for the entries of the copied directory.
    Directory(Dir, PathBuf),
    /// A device, a pipe, or an open file.
    Open(File),
}

impl Destination {
    fn find(args: &Args, source: &FileTarget, file: &FileStatus) -> anyhow::Result<Self> {
        let shown = args.destination.clone();
        let failed = || format!("cannot write {}", shown.display());
        let place = Place::following(&shown).with_context(failed)?;
        let found = place.find().with_context(failed)?;
        // The kind is from one look. The opens below check it again on the descriptor.
        let kind = found.as_ref().map(Entry::kind);
        if kind == Some(Kind::Directory) {
            let dir = Dir::open_place(place).with_context(failed)?;
            let path = Path::new(OsStr::from_bytes(&source.path.0));
            return match path.file_name() {
                Some(name) => {
                    let name = name.to_owned();
                    Ok(Self::Named(Target { dir, shown: shown.join(&name), name }))
                }
                None if args.recursive => Ok(Self::Directory(dir, shown)),
                None => bail!("{}: it has no name of its own: name the copy", source.shown()),
            };
        }
        let Some(name) = place.name.clone() else { bail!("{} has no name", shown.display()) };
        match kind {
            None | Some(Kind::File) => {}
            // A directory or link replaces the name as a whole, so no device or pipe is opened for
            // it.
            _ if file.kind != FileKind::Regular => {}
            // A link of /proc to an open file of a program.
            Some(Kind::Symlink) => {
                let kinds = [Kind::File, Kind::Fifo, Kind::CharDevice, Kind::BlockDevice];
                let (out, _) = open(&shown, Access::Write, &kinds).with_context(failed)?;
                return Ok(Self::Open(out));
            }
            _ => {
                let kinds = [Kind::Fifo, Kind::CharDevice, Kind::BlockDevice];
                let (out, _) =
                    place.dir.open_file(&name, Access::Write, &kinds).with_context(failed)?;
                return Ok(Self::Open(out));
            }
        }
        Ok(Self::Named(Target { dir: place.dir, name, shown }))
    }
}

struct Copy {
    files: Files,
    preserve: bool,
    is_root: bool,
    /// The reason why copies lose set-user-id and set-group-id bits.
    distrust: Option<String>,
    umask: u32,
    interrupt: Interrupt,
}

impl Copy {
    /// Copies `file` at `path` to `to`. Replaces an existing object at `to`, and follows no link there.
    fn copy(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        to: &Target,
        levels: usize,
    ) -> anyhow::Result<()> {
        // Between files as well: a tree of empty files has no piece to stop at.
        self.interrupt.check()?;
        match file.kind {
            FileKind::Regular => self.copy_bytes(path, file, to),
            FileKind::Directory => {
                let dir = self.directory(to).with_context(|| to.failed())?;
                self.copy_entries(path, file, (&dir, &to.shown), levels)
            }
            FileKind::Symlink => {
                let target = file.target.clone().unwrap_or_default();
                let attributes = self.attributes(path, file);
                let set = |link: &Entry| {
                    attributes.as_ref().map_or(Ok(()), |set| link.set_link_attributes(set))
                };
                let put = to.dir.put_link(OsStr::from_bytes(&target.0), &to.name, set);
                put.with_context(|| to.failed())
            }
            kind => {
                self.files.leave_out(path, format!("it is a {}", show_kind(kind)));
                Ok(())
            }
        }
    }

    /// Opens or creates the directory at `to`. A link to a directory is an error.
    fn directory(&self, to: &Target) -> io::Result<Dir> {
        match to.dir.find(&to.name)? {
            Some(found) if found.kind() == Kind::Directory => to.dir.dir(&to.name),
            // With --preserve closed to others until the entries are copied: the final mode follows
            // then.
            _ => to.dir.make_dir(&to.name, if self.preserve { 0o700 } else { 0o777 }),
        }
    }

    /// Copies the contents of the directory `file`. Skips and lists unreadable entries.
    fn copy_entries(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        (dir, shown): (&Dir, &Path),
        levels: usize,
    ) -> anyhow::Result<()> {
        // Bounds the recursion and the open descriptors of a hostile tree.
        if levels == 0 {
            bail!(
                "{}: more than {LEVELS_MAX} directories within each other",
                self.files.shown(path)
            );
        }
        let listing = self.files.list(file.id(), path)?;
        for FileEntry { name, file } in listing.entries() {
            let path = below(path, name);
            let name = OsStr::from_bytes(&name.0).to_owned();
            let shown = shown.join(&name);
            let dir = dir.try_clone().context("cannot hold a directory open")?;
            let copied = self.copy(&path, file, &Target { dir, name, shown }, levels - 1);
            self.files.go_on(&path, copied)?;
        }
        // After the entries: their creation changes the times of the directory.
        let Some(attributes) = self.attributes(path, file) else { return Ok(()) };
        let failed = || format!("cannot keep the attributes of {}", shown.display());
        dir.set_attributes(&attributes).with_context(failed)
    }

    /// Writes a file to an open descriptor.
    fn copy_into(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        mut out: File,
        shown: &Path,
    ) -> anyhow::Result<()> {
        let bar = output::copying(file.size_bytes);
        let zeroes = vec![0; ZEROES];
        let interrupt = &self.interrupt;
        let read = self.files.read_all(file.id(), |piece| {
            interrupt.check()?;
            match piece {
                Piece::Bytes(bytes) => out.write_all(bytes)?,
                // Old bytes may be there.
                Piece::Hole(mut left) => {
                    while left > 0 {
                        interrupt.check()?;
                        let len = usize::try_from(left).unwrap_or(ZEROES).min(ZEROES);
                        out.write_all(&zeroes[..len])?;
                        left -= len as u64;
                    }
                }
            }
            bar.inc(len_of(piece));
            Ok(())
        });
        bar.finish_and_clear();
        read.with_context(|| format!("{} to {}", self.files.shown(path), shown.display()))
    }

    /// Replaces the object at `to` with a copy.
    fn copy_bytes(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        to: &Target,
    ) -> anyhow::Result<()> {
        let failed = || to.failed();
        let bar = output::copying(file.size_bytes);
        // Under a temporary name, which its drop removes: an interrupted copy leaves the old file.
        let mut new = NewFile::create(&to.dir).with_context(failed)?;
        let interrupt = &self.interrupt;
        let mut end = 0_u64;
        let read = self.files.read_all(file.id(), |piece| {
            interrupt.check()?;
            if let Piece::Bytes(bytes) = piece {
                write_sparse(new.file(), bytes, end)?;
            }
            end += len_of(piece);
            bar.inc(len_of(piece));
            Ok(())
        });
        bar.finish_and_clear();
        read.with_context(|| self.files.shown(path))?;
        let mut attributes = self.attributes(path, file).unwrap_or_default();
        attributes.mode.get_or_insert(file.permissions & 0o777 & !self.umask);
        let out = new.file();
        // A hole at the end has no write, so the length is set.
        out.set_len(end).with_context(failed)?;
        // Before the name: nobody sees the file with a wider mode or another owner.
        attributes.set(out).with_context(failed)?;
        if to.dir.find(&to.name).with_context(failed)?.is_some() {
            // A crash could leave the old name without the new bytes.
            out.sync_all().with_context(failed)?;
        }
        // The rename is the last step, so the name leads to the old or to the new file.
        new.persist(&to.name).with_context(failed)
    }

    /// Owner, permissions and times of the copy of `file` under --preserve.
    fn attributes(&mut self, path: &PathBytes, file: &FileStatus) -> Option<Attributes> {
        if !self.preserve {
            return None;
        }
        // Set-ID bits without the owner would give the rights of another user.
        let mode = kept_permissions(file.permissions, self.is_root);
        let mode = match &self.distrust {
            // On a directory these bits grant no rights.
            Some(reason) if file.kind == FileKind::Regular && mode & 0o6000 != 0 => {
                let what = format!("its set-user-id and set-group-id bits: {reason}");
                self.files.leave_out(path, what);
                mode & 0o1777
            }
            _ => mode,
        };
        let time = |TimeNs(ns): TimeNs| Timespec {
            // Euclidean, because nanoseconds of times before 1970 count upwards as well.
            tv_sec: i64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns.rem_euclid(1_000_000_000)).unwrap_or(0),
        };
        let times = Timestamps {
            last_access: time(file.accessed_ns),
            last_modification: time(file.modified_ns),
        };
        let owner = self.is_root.then_some((file.uid, file.gid));
        Some(Attributes { owner, mode: Some(mode), times: Some(times) })
    }
}

fn len_of(piece: Piece<'_>) -> u64 {
    match piece {
        Piece::Bytes(bytes) => bytes.len() as u64,
        Piece::Hole(len) => len,
    }
}

/// Writes `bytes` at `offset` of a new file. Blocks of zeroes stay holes.
fn write_sparse(out: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut at = 0;
    // Runs of equal kind make one write each. Blocks of zeroes are never written.
    for run in bytes.chunks(BLOCK).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = run.iter().map(|block| block.len()).sum::<usize>();
        if !is_zero(run[0]) {
            out.write_all_at(&bytes[at..at + len], offset + at as u64)?;
        }
        at += len;
    }
    Ok(())
}

/// The permissions of a copy. A copy with a new owner or group loses set-user-ID and set-group-ID: it must not
/// grant the rights of the new owner.
fn kept_permissions(permissions: u32, keeps_owner: bool) -> u32 {
    if keeps_owner { permissions } else { permissions & 0o1777 }
}

/// Permission bits masked from new files.
pub(super) fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    // The mask can be read only by changing it, so it is restored immediately.
    rustix::process::umask(mask);
    mask.bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_need_kept_owner() {
        for (permissions, without_owner) in
            [(0o4755, 0o755), (0o2770, 0o770), (0o6711, 0o711), (0o1777, 0o1777), (0o640, 0o640)]
        {
            assert_eq!(kept_permissions(permissions, true), permissions);
            assert_eq!(kept_permissions(permissions, false), without_owner, "{permissions:o}");
        }
    }
}
