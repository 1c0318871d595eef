//! `everbyte fs get`.
//!
//! Invariant: a regular file that is there already is replaced as a whole or not at all, even if the system crashes.

use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use everbyte_control::{FileEntry, FileKind, FileStatus, PathBytes, TimeNs};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use tempfile::NamedTempFile;

use super::files::{FileTarget, Files, LEVELS_MAX, below, show_kind};
use crate::interrupt::Interrupt;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte fs get /dev/shm/p/files:/docs/letter               to ./letter
  everbyte fs get /dev/shm/p/files:/docs/letter - | less
  everbyte fs get -rp /dev/shm/p/files:/ /backup/files

A file that is there already is replaced. With -r symbolic links stay symbolic links; pipes, sockets,
devices and what cannot be read are named on standard error and left out, and the exit status is 1 then. What reads as
zeroes becomes a hole. Bytes of a file that a program writes meanwhile may be of different moments.";

/// Copy files from a file system to here.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file or directory to copy.
    #[arg(value_name = "POOL/VOLUME:PATH")]
    source: PathBuf,
    /// The file to write, a directory to put it in, or - for standard output.
    #[arg(default_value = ".")]
    destination: PathBuf,
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permissions and times, and as root the owner and group. Otherwise the copy belongs to you, and
    /// whoever runs it gets no rights from it: it is neither set-user-ID nor set-group-ID.
    #[arg(short, long)]
    preserve: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let source = FileTarget::new(&args.source)?;
    let mut files = Files::look(&source)?;
    let file = files.existing(&source.path, true)?;
    if args.destination.as_os_str() == "-" {
        if file.kind != FileKind::Regular {
            bail!("{}: it is a {}", source.shown(), show_kind(file.kind));
        }
        let write = |bytes: &[u8]| {
            output::bytes(bytes);
            Ok(())
        };
        files.read_all(file.id(), write).with_context(|| source.shown())?;
        return Ok(ExitCode::SUCCESS);
    }
    if file.kind == FileKind::Directory && !args.recursive {
        bail!("{}: it is a directory: pass -r to copy it with all that is in it", source.shown());
    }
    let interrupt = Interrupt::catch()?;
    let mut copy = Copy { files, preserve: args.preserve, interrupt, left_out: 0 };
    let destination = destination(args, &source)?;
    if file.kind == FileKind::Regular {
        copy.copy_to_named(&source.path, &file, &destination)?;
    } else {
        copy.copy(&source.path, &file, &destination, LEVELS_MAX)?;
    }
    Ok(if copy.left_out == 0 { copy.files.exit_code() } else { ExitCode::FAILURE })
}

/// The path of the copy itself.
fn destination(args: &Args, source: &FileTarget) -> anyhow::Result<PathBuf> {
    if !args.destination.is_dir() {
        return Ok(args.destination.clone());
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(&source.path.0));
    match path.file_name() {
        Some(name) => Ok(args.destination.join(name)),
        None if args.recursive => Ok(args.destination.clone()),
        None => bail!("{}: it has no name of its own: name the copy", source.shown()),
    }
}

struct Copy {
    files: Files,
    preserve: bool,
    interrupt: Interrupt,
    /// Files of types that are not copied.
    left_out: u64,
}

impl Copy {
    /// Copies `file`, which is at `path`, to `to`, whatever is there: nothing that lies there leads
    /// elsewhere.
    fn copy(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        to: &Path,
        levels: usize,
    ) -> anyhow::Result<()> {
        let failed = || format!("cannot make {}", to.display());
        match file.kind {
            FileKind::Regular => self.copy_bytes(path, file, to)?,
            FileKind::Directory => self.copy_directory(path, file, to, levels)?,
            FileKind::Symlink => {
                let target = file.target.clone().unwrap_or_default();
                let target = std::ffi::OsStr::from_bytes(&target.0);
                let is_link = fs::symlink_metadata(to).is_ok_and(|found| !found.is_dir());
                if is_link {
                    fs::remove_file(to).with_context(failed)?;
                }
                symlink(target, to).with_context(failed)?;
                self.preserve(file, to)?;
            }
            kind => {
                tracing::error!(
                    "{}: left out: it is a {}",
                    self.files.shown(path),
                    show_kind(kind)
                );
                self.left_out += 1;
            }
        }
        Ok(())
    }

    fn copy_directory(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        to: &Path,
        levels: usize,
    ) -> anyhow::Result<()> {
        if levels == 0 {
            bail!(
                "{}: more than {LEVELS_MAX} directories within each other",
                self.files.shown(path)
            );
        }
        // What only leads to a directory is none: the copy stays where it belongs.
        let is_there = fs::symlink_metadata(to).is_ok_and(|found| found.is_dir());
        if !is_there {
            fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
        }
        let listed = self.files.list(file.id(), path)?;
        for FileEntry { name, file } in listed {
            let to = to.join(std::ffi::OsStr::from_bytes(&name.0));
            self.copy(&below(path, &name), &file, &to, levels - 1)?;
        }
        self.preserve(file, to)
    }

    /// Copies a file to where the user said: into a device, or what a link there leads to.
    fn copy_to_named(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        to: &Path,
    ) -> anyhow::Result<()> {
        if fs::metadata(to).is_ok_and(|found| !found.is_file()) {
            let bar = output::copying(file.size_bytes);
            let out = File::options().write(true).open(to);
            let mut out = out.with_context(|| format!("cannot write {}", to.display()))?;
            self.write_bytes(path, file, &mut |bytes| Ok(out.write_all(bytes)?), &bar)?;
            bar.finish_and_clear();
            return Ok(());
        }
        // A link to a file stays one.
        self.copy_bytes(path, file, &fs::canonicalize(to).unwrap_or_else(|_| to.to_owned()))
    }

    /// Puts a copy in the place of whatever is at `to`.
    fn copy_bytes(&mut self, path: &PathBytes, file: &FileStatus, to: &Path) -> anyhow::Result<()> {
        let bar = output::copying(file.size_bytes);
        let failed = || format!("cannot write {}", to.display());
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut out = NamedTempFile::new_in(dir).with_context(failed)?;
        let mut end = 0;
        let mut write = |bytes: &[u8]| {
            let out = out.as_file_mut();
            if bytes.iter().all(|byte| *byte == 0) {
                out.seek(SeekFrom::Current(i64::try_from(bytes.len())?))?;
            } else {
                out.write_all(bytes)?;
            }
            end += bytes.len() as u64;
            Ok(())
        };
        self.write_bytes(path, file, &mut write, &bar)?;
        out.as_file().set_len(end).with_context(failed)?;
        let mode =
            if self.preserve { file.permissions } else { file.permissions & 0o777 & !umask() };
        out.as_file().set_permissions(Permissions::from_mode(mode & 0o777)).with_context(failed)?;
        let (copy, out) = out.into_parts();
        self.preserve(file, &out)?;
        if fs::symlink_metadata(to).is_ok() {
            // A crash could leave the old name with none of the new bytes.
            copy.sync_all().with_context(failed)?;
        }
        out.persist(to).with_context(failed)?;
        bar.finish_and_clear();
        Ok(())
    }

    fn write_bytes(
        &mut self,
        path: &PathBytes,
        file: &FileStatus,
        write: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let read = self.files.read_all(file.id(), |bytes| {
            self.interrupt.check()?;
            bar.inc(bytes.len() as u64);
            write(bytes)
        });
        read.with_context(|| self.files.shown(path))
    }

    /// Gives the copy the owner, permissions and times of `file`, if that is wanted.
    fn preserve(&self, file: &FileStatus, to: &Path) -> anyhow::Result<()> {
        if !self.preserve {
            return Ok(());
        }
        let failed = || format!("cannot keep the attributes of {}", to.display());
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            lchown(to, Some(file.uid), Some(file.gid)).with_context(failed)?;
        }
        if file.kind != FileKind::Symlink {
            let mode = kept_permissions(file.permissions, is_root);
            fs::set_permissions(to, Permissions::from_mode(mode)).with_context(failed)?;
        }
        let time = |TimeNs(ns): TimeNs| Timespec {
            tv_sec: i64::try_from(ns.div_euclid(1_000_000_000)).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns.rem_euclid(1_000_000_000)).unwrap_or(0),
        };
        let times = Timestamps {
            last_access: time(file.accessed_ns),
            last_modification: time(file.modified_ns),
        };
        utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(failed)
    }
}

/// The permissions that a copy keeps. One that does not keep its owner and group gives nobody the rights of
/// those that it has instead.
fn kept_permissions(permissions: u32, keeps_owner: bool) -> u32 {
    if keeps_owner { permissions } else { permissions & 0o1777 }
}

/// Permissions that new files do not get.
pub(super) fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_an_owner_are_kept_with_the_owner_alone() {
        for (permissions, without_owner) in
            [(0o4755, 0o755), (0o2770, 0o770), (0o6711, 0o711), (0o1777, 0o1777), (0o640, 0o640)]
        {
            assert_eq!(kept_permissions(permissions, true), permissions);
            assert_eq!(kept_permissions(permissions, false), without_owner, "{permissions:o}");
        }
    }
}
