//! Files and devices for mediums: their kinds, options, opening and allocation.
//!
//! Invariants: a kind claims to survive power loss only if the kernel's own promises (MAP_SYNC, `msync`)
//! carry the claim as far as the device. Knows nothing of the meaning of the bytes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use everbyte_path::{Access, Identity, Kind, Place, WrongKind};
use rustix::fs::{
    Advice, FallocateFlags, SeekFrom, fadvise, fallocate, fstatfs, major, minor, seek,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::MapFlags;

use crate::emulate::Technology;
use crate::error::OpenError;
use crate::free_space::{RAMFS_MAGIC, check_free_space};
use crate::map::{is_synchronous, to_usize};
use crate::medium::PersistenceDomain;
use crate::units::{BLOCK, BLOCK_U64};

/// Permissions of a new file.
const FILE_MODE: u32 = 0o600;

const SYS_CHAR_DEVICES: &str = "/sys/dev/char";
/// Bytes in the unit of a file's count of allocated blocks (`st_blocks`).
const SECTOR_BYTES: u64 = 512;
const SYS_NVDIMM_DEVICES: &str = "/sys/bus/nd/devices";

/// Options for opening a medium. The default maps a file shared and writable, without emulation.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MediaOptions {
    pub(crate) emulate: Option<Technology>,
    pub(crate) count_wear: bool,
    pub(crate) force_flush: bool,
    pub(crate) private: bool,
    pub(crate) read_only: bool,
    pub(crate) reserve_bytes: Option<u64>,
    pub(crate) populate: bool,
}

impl MediaOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the costs of a technology to every line read, flushed and streamed, and runs the flush
    /// instructions also on media without need of them.
    pub fn emulate(mut self, technology: Option<Technology>) -> Self {
        self.emulate = technology;
        self
    }

    /// Counts the lines written to each frame of 4 KiB, at 8 bytes a frame, if a technology is emulated; see
    /// [`Mapped::wear`](crate::Mapped::wear).
    pub fn count_wear(mut self, count: bool) -> Self {
        self.count_wear = count;
        self
    }

    /// Runs the flush instructions also on media without need of them.
    pub fn force_flush(mut self, force: bool) -> Self {
        self.force_flush = force;
        self
    }

    /// Maps a copy-on-write copy: the file never changes, and all stores are lost in the end. A file opened
    /// by path is opened for reading only. A DAX device can only be mapped shared: every non-zero block of it
    /// is copied into memory instead.
    pub fn private(mut self, private: bool) -> Self {
        self.private = private;
        self
    }

    /// Maps for reading only; a store is then a bug of the caller's and panics. Together with
    /// `private` it has no effect.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Address space to reserve; at least the medium's length. It bounds the growth of the open medium.
    /// Default: 1 TiB or 16 times the length, whichever is more, or the rest below a limit on address space.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = Some(bytes);
        self
    }

    /// Maps every page when the medium is opened or grows, not when it is first touched, where the
    /// kernel can (Linux 5.14). No access pays for a page fault then; opening takes longer, about
    /// a second for every few GiB of small pages.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    pub(crate) fn writable(&self) -> bool {
        self.private || !self.read_only
    }
}

/// Kind of memory behind a medium. It decides about flushes, `msync` and the persistence domain.
///
/// | what is opened | kind | a flush | a fence adds | survives |
/// | --- | --- | --- | --- | --- |
/// | file on a DAX file system | `dax` | flush instruction; none with eADR | - | power |
/// | device DAX on an NVDIMM bus | `dax` | the same | - | power |
/// | other device DAX (CXL, set-aside DRAM) | `dax` | flush instruction | - | process |
/// | other file, block device | `file` | notes the pages | `msync` | power |
/// | file on tmpfs or ramfs | `tmpfs` | nothing | - | process |
/// | file on hugetlbfs | `hugetlbfs` | nothing | - | process |
/// | any of them, as a private copy | `private` | nothing | - | nothing |
/// | no file | `anonymous` | nothing | - | nothing |
///
/// Every fence is an `sfence`. Every flush is counted, also one without an instruction.
/// [`MediaOptions::force_flush`] and emulation make the flush instructions run on every kind.
///
/// "PersistenceDomain power" is as true as the layers below. A DAX file system on memory declared persistent
/// to the kernel (`memmap=`), or a disk that ignores its own flush command, makes a false promise, and
/// nothing here can detect it. eADR is believed if every region of the NVDIMM bus reports a domain that
/// includes the processor's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MediaKind {
    /// Persistent memory mapped directly.
    Dax,
    /// A file or block device behind the page cache.
    File,
    /// A file in memory.
    Tmpfs,
    /// A file of huge pages.
    Hugetlbfs,
    /// A copy-on-write copy of a file.
    Private,
    /// Memory of this process.
    Anonymous,
}

impl std::fmt::Display for MediaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::File => "file",
            Self::Tmpfs => "tmpfs",
            Self::Hugetlbfs => "hugetlbfs",
            Self::Private => "private",
            Self::Anonymous => "anonymous",
        })
    }
}

/// Properties of a file, found out before it is mapped.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) kind: MediaKind,
    pub(crate) persistence_domain: PersistenceDomain,
    pub(crate) len: u64,
    /// Page size of its mappings in bytes.
    pub(crate) page: u64,
    /// Flags to map it with.
    pub(crate) flags: MapFlags,
    /// True if the processor's cache is in the persistence domain.
    pub(crate) cache_persists: bool,
    /// True for a regular file: its length can change.
    pub(crate) regular: bool,
    /// True if the kernel maps it shared only: a private copy is made by copying.
    pub(crate) shared_only: bool,
}

/// Opens the file at `path` as `options` need it.
pub(crate) fn open_path(path: &Path, options: &MediaOptions) -> Result<File, OpenError> {
    let write = !options.private && !options.read_only;
    let access = if write { Access::ReadWrite } else { Access::Read };
    let name = path.display().to_string();
    let kinds = [Kind::File, Kind::BlockDevice, Kind::CharDevice];
    match everbyte_path::open(path, access, &kinds) {
        Ok((file, _)) => Ok(file),
        Err(error) if WrongKind::of(&error).is_some() => Err(OpenError::NotMappable { name }),
        Err(error) => Err(OpenError::io("open", &name)(error)),
    }
}

/// A name for messages.
pub(crate) fn name_of(file: &File) -> String {
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    fs::read_link(&link).unwrap_or(link).display().to_string()
}

/// Determines the kind of `file` and how to map it.
pub(crate) fn probe(file: &File, name: &str, options: &MediaOptions) -> Result<Probe, OpenError> {
    let metadata = file.metadata().map_err(OpenError::io("inspect", name))?;
    let file_type = metadata.file_type();
    let mut probe = if file_type.is_file() {
        probe_regular(file, name, metadata.len())?
    } else if file_type.is_block_device() {
        let len =
            seek(file, SeekFrom::End(0)).map_err(|e| OpenError::io("measure", name)(e.into()));
        Probe { len: len?, ..Probe::paged_file(0) }
    } else if file_type.is_char_device() {
        let rdev = metadata.rdev();
        let device = format!("{SYS_CHAR_DEVICES}/{}:{}", major(rdev), minor(rdev));
        probe_device_dax(Path::new(&device))
            .ok_or_else(|| OpenError::NotMappable { name: name.to_owned() })?
    } else {
        return Err(OpenError::NotMappable { name: name.to_owned() });
    };
    check_length(name, probe.len, probe.page)?;
    if probe.kind == MediaKind::File || probe.kind == MediaKind::Dax {
        let synchronous = is_synchronous(file, probe.len, options.writable() && !options.private);
        if synchronous.map_err(OpenError::io("map", name))? {
            probe.flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
            probe.kind = MediaKind::Dax;
        }
    }
    if options.private {
        probe.flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        probe.kind = MediaKind::Private;
        probe.persistence_domain = PersistenceDomain::Nothing;
    }
    probe.cache_persists = probe.kind == MediaKind::Dax
        && probe.persistence_domain == PersistenceDomain::Power
        && cache_persists(Path::new(SYS_NVDIMM_DEVICES));
    Ok(probe)
}

/// Checks that `len` is a positive multiple of `unit`.
pub(crate) fn check_length(name: &str, len: u64, unit: u64) -> Result<(), OpenError> {
    if len == 0 || !len.is_multiple_of(unit) {
        return Err(OpenError::BadLength { name: name.to_owned(), len, unit });
    }
    Ok(())
}

/// Sets the length of `file` to `len` bytes and allocates all of it on the file system: no later store can
/// run out of space. Never shortens it. Both are durable afterwards.
///
/// # Errors
/// `BadLength` unless `len` is a positive multiple of 4096; `NoRoom` before anything is allocated,
/// see [`check_free_space`]; `NoSpace`; `Io`.
pub fn allocate_file(file: &File, len: u64) -> Result<(), OpenError> {
    allocate_from(file, 0, len)
}

/// The same for a file with possibly mapped first `in_use` bytes: those are not touched. Later holes stay if
/// the file system can allocate only by writing.
pub(crate) fn allocate_from(file: &File, in_use: u64, len: u64) -> Result<(), OpenError> {
    let name = name_of(file);
    check_length(&name, len, BLOCK_U64)?;
    if i64::try_from(len).is_err() {
        return Err(OpenError::NoSpace { name, len });
    }
    let metadata = file.metadata().map_err(OpenError::io("inspect", &name))?;
    let allocated = metadata.blocks().saturating_mul(SECTOR_BYTES);
    check_free_space(file, &name, len.saturating_sub(allocated))?;
    if in_use < len {
        let allocate = || fallocate(file, FallocateFlags::empty(), in_use, len - in_use);
        let allocated = match retry_on_intr(allocate) {
            // The C library would then write to a byte of every block, in use or not: if it has found the
            // byte to be 0 it stores 0 again, over concurrent stores of others.
            Err(Errno::OPNOTSUPP) => lengthen_by_writing(file, in_use, len),
            other => other.map_err(io::Error::from),
        };
        allocated.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                OpenError::NoSpace { name: name.clone(), len }
            }
            _ => OpenError::io("allocate", &name)(error),
        })?;
    }
    file.sync_all().map_err(OpenError::io("sync", &name))
}

/// Makes `file` `len` bytes long by writing zeroes behind its end, and behind the bytes in use.
fn lengthen_by_writing(file: &File, in_use: u64, len: u64) -> io::Result<()> {
    let zeroes = [0; BLOCK];
    let mut at = file.metadata()?.len().max(in_use);
    while at < len {
        let piece = BLOCK.min(to_usize(len - at));
        file.write_all_at(&zeroes[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Makes loads of `file` equal to its device's contents: writes back the kernel's changes, and then drops the
/// kernel's pages. The file has no concurrent users and no mapping, except for bytes without later use. Does
/// nothing for files in memory, and for devices without pages in the kernel.
///
/// # Errors
/// `Io`: stored contents cannot be written back and are lost. The kernel reports it once; the next opening of
/// the file then finds its device's contents.
pub fn writeback_and_invalidate(file: &File) -> Result<(), OpenError> {
    let name = name_of(file);
    let metadata = file.metadata().map_err(OpenError::io("inspect", &name))?;
    let is_kept = if metadata.is_file() {
        probe_regular(file, &name, metadata.len())?.kind == MediaKind::File
    } else {
        metadata.file_type().is_block_device()
    };
    if is_kept { settle_by(file, &name, File::sync_data) } else { Ok(()) }
}

/// The same by `sync`, for pages kept by the kernel.
fn settle_by(
    file: &File,
    name: &str,
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), OpenError> {
    // On a DAX file system it writes back the lines that a process left in the processor's cache.
    sync(file).map_err(OpenError::io("sync", name))?;
    // Pages with a failed write-back are clean, and differ from the device. The kernel takes this advice for
    // all pages except dirty or mapped ones.
    let forgotten = fadvise(file, 0, None, Advice::DontNeed);
    forgotten.map_err(|error| OpenError::io("read anew", name)(error.into()))
}

/// Makes a new file of `len` bytes at `path`, fully allocated and durable, its name included. Only its owner
/// can open it. A failure removes the new file, and nothing else.
///
/// # Errors
/// As [`allocate_file`]; `Io` also if `path` exists, even as a dangling link.
pub fn create_file(path: &Path, len: u64) -> Result<File, OpenError> {
    let name = path.display().to_string();
    check_length(&name, len, BLOCK_U64)?;
    let place = Place::of(path).map_err(OpenError::io("create", &name))?;
    let file = place.name().and_then(|own| place.dir.create_new(own, FILE_MODE));
    let file = file.map_err(OpenError::io("create", &name))?;
    let finish = || {
        allocate_file(&file, len)?;
        place.dir.sync().map_err(OpenError::io("sync the directory of", &name))
    };
    match finish() {
        Ok(()) => Ok(file),
        Err(error) => {
            remove_created(path, &file);
            Err(error)
        }
    }
}

/// Removes the name `path` if it is the caller's new name of `file`, and not a later replacement. Ignores a
/// failed removal: it follows another error, and that error matters.
pub fn remove_created(path: &Path, file: &File) {
    let _best_effort = file.metadata().and_then(|made| {
        let place = Place::of(path)?;
        place.dir.remove_exact(place.name()?, Identity::of(&made))
    });
}

impl Probe {
    fn paged_file(len: u64) -> Self {
        Self {
            kind: MediaKind::File,
            persistence_domain: PersistenceDomain::Power,
            len,
            page: BLOCK_U64,
            flags: MapFlags::SHARED,
            cache_persists: false,
            regular: false,
            shared_only: false,
        }
    }
}

fn probe_regular(file: &File, name: &str, len: u64) -> Result<Probe, OpenError> {
    let system = fstatfs(file).map_err(|e| OpenError::io("inspect", name)(e.into()))?;
    let probe = Probe { regular: true, ..Probe::paged_file(len) };
    let persistence_domain = PersistenceDomain::Process;
    Ok(match system.f_type {
        libc::TMPFS_MAGIC | RAMFS_MAGIC => {
            Probe { kind: MediaKind::Tmpfs, persistence_domain, ..probe }
        }
        libc::HUGETLBFS_MAGIC => {
            let page = u64::try_from(system.f_bsize).unwrap_or(BLOCK_U64);
            Probe { kind: MediaKind::Hugetlbfs, persistence_domain, page, ..probe }
        }
        _ => probe,
    })
}

/// Reads the kernel's description of a character device; `None` if it is not a DAX one.
fn probe_device_dax(device: &Path) -> Option<Probe> {
    let number = |file| fs::read_to_string(device.join(file)).ok()?.trim().parse::<u64>().ok();
    let (len, page) = (number("size")?, number("align")?);
    // Set-aside DRAM and CXL memory come as DAX devices too; only those on the NVDIMM bus are
    // declared persistent.
    let place = fs::canonicalize(device).ok()?;
    let nvdimm = place
        .components()
        .any(|part| part.as_os_str().to_str().is_some_and(|part| part.starts_with("ndbus")));
    let persistence_domain =
        if nvdimm { PersistenceDomain::Power } else { PersistenceDomain::Process };
    let page = page.max(BLOCK_U64);
    let dax = Probe { kind: MediaKind::Dax, persistence_domain, page, ..Probe::paged_file(len) };
    Some(Probe { shared_only: true, ..dax })
}

/// Returns true if every region under `devices` counts the processor's cache as persistent (eADR).
fn cache_persists(devices: &Path) -> bool {
    let Ok(entries) = fs::read_dir(devices) else { return false };
    let mut domains = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|n| n.starts_with("region")))
        .map(|entry| fs::read_to_string(entry.path().join("persistence_domain")))
        .peekable();
    domains.peek().is_some()
        && domains.all(|domain| domain.is_ok_and(|domain| domain.trim() == "cpu_cache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritable_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        let fails = |_: &File| Err(io::Error::from_raw_os_error(libc::EIO));
        let error = settle_by(&file, "it", fails).unwrap_err();
        assert!(error.to_string().contains("cannot sync it"), "{error}");
        for settled in [writeback_and_invalidate(&file), settle_by(&file, "it", File::sync_data)] {
            settled.unwrap();
            let mut bytes = [0; 5];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"bytes");
        }
    }

    #[test]
    fn fallback_allocation_writes_new_end_only() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let (old, new) = (5 * BLOCK_U64 + 100, 9 * BLOCK_U64);
        file.write_all_at(b"old", 3 * BLOCK_U64).unwrap();
        file.set_len(old).unwrap();
        lengthen_by_writing(&file, BLOCK_U64, new).unwrap();
        let mut expected = vec![0; to_usize(new)];
        expected[3 * BLOCK..3 * BLOCK + 3].copy_from_slice(b"old");
        assert_eq!(fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(), expected);
        // The holes before are holes still, so nothing was written there.
        let allocated = file.metadata().unwrap().blocks() * SECTOR_BYTES;
        assert_eq!(allocated, (1 + 4) * BLOCK_U64);
        lengthen_by_writing(&file, BLOCK_U64, BLOCK_U64).unwrap();
        assert_eq!(file.metadata().unwrap().len(), new, "it is never shortened");
        // A file that was truncated under its mapping.
        file.set_len(0).unwrap();
        lengthen_by_writing(&file, 2 * BLOCK_U64, 3 * BLOCK_U64).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * SECTOR_BYTES, BLOCK_U64);
    }

    #[test]
    fn allocation_skips_used_range() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(4 * BLOCK_U64).unwrap();
        allocate_from(&file, 4 * BLOCK_U64, 6 * BLOCK_U64).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(
            (metadata.len(), metadata.blocks() * SECTOR_BYTES),
            (6 * BLOCK_U64, 2 * BLOCK_U64)
        );
        allocate_from(&file, 6 * BLOCK_U64, 6 * BLOCK_U64).unwrap();
        allocate_file(&file, 6 * BLOCK_U64).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * SECTOR_BYTES, 6 * BLOCK_U64);
    }

    #[test]
    fn eadr_needs_every_region_to_say_so() {
        let bus = tempfile::tempdir().unwrap();
        assert!(!cache_persists(bus.path()), "no region");
        assert!(!cache_persists(&bus.path().join("absent")));
        let region = |name: &str, domain: &str| {
            let region = bus.path().join(name);
            fs::create_dir_all(&region).unwrap();
            fs::write(region.join("persistence_domain"), domain).unwrap();
        };
        region("nmem0", "");
        region("region0", "cpu_cache\n");
        assert!(cache_persists(bus.path()));
        region("region1", "memory_controller\n");
        assert!(!cache_persists(bus.path()));
    }

    #[test]
    fn device_dax_is_persistent_on_nvdimm_bus_only() {
        let sys = tempfile::tempdir().unwrap();
        for (place, domain) in [
            ("ndbus0/region0/dax0.0", PersistenceDomain::Power),
            ("platform/dax1.0", PersistenceDomain::Process),
        ] {
            let device = sys.path().join(place);
            fs::create_dir_all(&device).unwrap();
            assert!(probe_device_dax(&device).is_none(), "no attributes");
            fs::write(device.join("size"), "4194304\n").unwrap();
            fs::write(device.join("align"), "2097152\n").unwrap();
            let probe = probe_device_dax(&device).unwrap();
            assert_eq!((probe.len, probe.page), (4 << 20, 2 << 20));
            assert_eq!(probe.persistence_domain, domain);
        }
    }
}
