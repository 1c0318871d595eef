//! Identities of backing files and block devices. Paths and device names change, identities do not.
//!
//! Owns the sources of identities (birth times of files, `/sys` of devices) and the comparison of two
//! identities. The system assigns some numbers again at each start, for example device numbers. Such
//! numbers alone prove nothing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstatvfs, statx};
use serde::{Deserialize, Serialize};

/// Files in the folder of a disk below `/sys` with a permanent name of the disk, by preference.
const NAMES_OF_DISKS: [&str; 7] =
    ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial", "device/cid"];

/// Folders of links with permanent names of block devices, by preference.
const STABLE_LINKS: [&str; 3] = ["/dev/disk/by-id", "/dev/mapper", "/dev/disk/by-path"];

/// Certainty that two identities belong to one backing file or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdentityMatch {
    /// Proof of one file or device.
    Same,
    /// Neither proof nor contradiction: the system has too little information.
    Plausible,
    /// Proof of two files or devices.
    Different,
}

/// A file's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Number of the device of its file system. It can change at a restart.
    pub device: u64,
    /// Identifier of the file system; 0 if it has none.
    pub file_system: u64,
    /// Inode number. File systems reuse the numbers of deleted files.
    pub inode: u64,
    /// Birth time of the file, in nanoseconds since 1970, if the file system knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
}

impl FileIdentity {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let times = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        // A file system without birth times clears the bit.
        let born_ns = times.ok().filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        let born_ns = born_ns.and_then(|stat| {
            let seconds = u64::try_from(stat.stx_btime.tv_sec).ok()?;
            seconds.checked_mul(1_000_000_000)?.checked_add(u64::from(stat.stx_btime.tv_nsec))
        });
        Ok(Self {
            device: metadata.dev(),
            // 0 means no identifier, as from a file system without one.
            file_system: fstatvfs(file).map_or(0, |stat| stat.f_fsid),
            inode: metadata.ino(),
            born_ns,
        })
    }

    fn compare(&self, other: &Self) -> IdentityMatch {
        // Many file systems have no identifier. They all report 0.
        let is_same_id = self.file_system != 0 && self.file_system == other.file_system;
        let is_same_system = is_same_id || self.device == other.device;
        match (self.born_ns, other.born_ns) {
            _ if self.inode != other.inode => IdentityMatch::Different,
            (Some(born), Some(other)) if born != other => IdentityMatch::Different,
            (Some(_), Some(_)) if is_same_system => IdentityMatch::Same,
            // Some file systems, for example XFS, derive their identifier from the device number.
            (Some(_), Some(_)) => IdentityMatch::Plausible,
            _ if is_same_system => IdentityMatch::Plausible,
            _ => IdentityMatch::Different,
        }
    }
}

/// The identity of a backing file or block device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BackingIdentity {
    /// A file.
    File(FileIdentity),
    /// A loop device: part of a file.
    Loop {
        /// The file.
        file: FileIdentity,
        /// First byte of the device in the file.
        offset_bytes: u64,
    },
    /// A disk with a permanent name, or a partition of such a disk.
    Disk {
        /// The kind of the name and the name: `wwid naa.5000c500a1b2c3d4`.
        hardware: String,
        /// First sector of the partition; `None` for the whole disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition_start: Option<u64>,
    },
    /// A block device with a number alone.
    Number {
        /// Its device number.
        device: u64,
        /// Identifier of the system's start. `sequence` counts from this start.
        boot: String,
        /// The system's sequence number of the disk (`diskseq`); 0 if it has none.
        sequence: u64,
    },
}

impl BackingIdentity {
    /// The identity of an open file or block device.
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.file_type().is_block_device() {
            return Ok(Self::of_device(metadata.rdev()));
        }
        FileIdentity::of(file).map(Self::File)
    }

    /// The identity of the file or block device at `path`. This call does not open it, so it calls no driver and
    /// does not wait for the other end of a pipe.
    ///
    /// # Errors
    /// The system's.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::of(&to_look_at(path)?)
    }

    fn of_device(device: u64) -> Self {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // The resolved folder of a partition lies in the folder of its disk.
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
        let known = folder.ok().and_then(|folder| Self::of_folder(&folder));
        known.unwrap_or_else(|| Self::Number {
            device,
            boot: word(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default(),
            sequence: number(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}/diskseq"))),
        })
    }

    /// The identity of the device described by this folder of `/sys`. `None` if the folder has only its
    /// number.
    fn of_folder(folder: &Path) -> Option<Self> {
        if let Some(path) = word(&folder.join("loop/backing_file")) {
            // The file may be deleted, or hidden from this process.
            let file = FileIdentity::of(&to_look_at(Path::new(&path)).ok()?).ok()?;
            return Some(Self::Loop { file, offset_bytes: number(&folder.join("loop/offset")) });
        }
        let is_partition = folder.join("partition").exists();
        // A partition has no permanent name of its own.
        let disk = if is_partition { folder.parent()? } else { folder };
        let mut names = NAMES_OF_DISKS.iter();
        let hardware = names.find_map(|name| {
            let found = word(&disk.join(name))?;
            Some(format!("{} {found}", name.trim_start_matches("device/")))
        })?;
        let partition_start = is_partition.then(|| number(&folder.join("start")));
        Some(Self::Disk { hardware, partition_start })
    }

    /// Compares it with the identity of another backing file or device.
    #[must_use]
    pub fn compare(&self, other: &Self) -> IdentityMatch {
        match (self, other) {
            (Self::File(file), Self::File(other)) => file.compare(other),
            (
                Self::Loop { file, offset_bytes },
                Self::Loop { file: other, offset_bytes: other_offset },
            ) if offset_bytes == other_offset => file.compare(other),
            (Self::Disk { .. }, Self::Disk { .. }) if self == other => IdentityMatch::Same,
            (
                Self::Number { device, boot, sequence },
                Self::Number { device: other, boot: other_boot, sequence: other_sequence },
            ) if device == other => match boot == other_boot && *sequence != 0 {
                // Sequence numbers count from the system's start, so they compare only within one.
                true if sequence == other_sequence => IdentityMatch::Same,
                true => IdentityMatch::Different,
                false => IdentityMatch::Plausible,
            },
            _ => IdentityMatch::Different,
        }
    }

    /// Returns true if a write to one may change bytes of the other: they may be the same, or one may be
    /// a part of the other (a partition, a loop device over the file).
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::File(file) | Self::Loop { file, .. },
                Self::File(other) | Self::Loop { file: other, .. },
            ) => file.compare(other) != IdentityMatch::Different,
            (
                Self::Disk { hardware, partition_start: start },
                Self::Disk { hardware: other, partition_start: other_start },
            ) => {
                // A whole disk shares its bytes with each partition.
                hardware == other
                    && (start.is_none() || other_start.is_none() || start == other_start)
            }
            _ => self.compare(other) != IdentityMatch::Different,
        }
    }
}

/// The path to keep for a file or block device. Some links keep the name of a block device when the
/// system numbers its disks again. For a block device the path is `path` if it is such a link, else the
/// first such link to the device. Otherwise the path has no symbolic links.
///
/// # Errors
/// Nothing exists at `path`.
pub fn stable_path(path: &Path) -> io::Result<PathBuf> {
    let real = path.canonicalize()?;
    if !fs::metadata(&real)?.file_type().is_block_device() {
        return Ok(real);
    }
    Ok(stable_link(&std::path::absolute(path)?, real, &STABLE_LINKS.map(Path::new)))
}

/// The path to keep for the block device `real`, named `given` by the caller: a link in one of
/// `folders`, by preference, or `real`.
fn stable_link(given: &Path, real: PathBuf, folders: &[&Path]) -> PathBuf {
    // A link chosen by the caller stays: each of the folders has permanent names.
    if folders.iter().any(|folder| given.parent() == Some(*folder)) {
        return given.to_owned();
    }
    folders.iter().find_map(|folder| link_to(&real, folder)).unwrap_or(real)
}

/// The first link in `folder` to `real`, by name.
fn link_to(real: &Path, folder: &Path) -> Option<PathBuf> {
    let mut links: Vec<PathBuf> =
        fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // In a fixed order, so that each start of the system chooses the same link.
    links.sort();
    links.into_iter().find(|link| link.canonicalize().is_ok_and(|found| found == real))
}

/// A handle of the file or device at `path`, for queries only.
fn to_look_at(path: &Path) -> io::Result<File> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Contents of a file below `/sys` or `/proc`, trimmed; `None` if it is empty or cannot be read.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(path: &Path) -> u64 {
    word(path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(device: u64, inode: u64, born_ns: Option<u64>) -> FileIdentity {
        FileIdentity { device, file_system: 5, inode, born_ns }
    }

    #[test]
    fn recreated_file_differs() {
        let old = file(1, 7, Some(100));
        assert_eq!(old.compare(&file(1, 7, Some(100))), IdentityMatch::Same);
        assert_eq!(old.compare(&file(1, 7, Some(101))), IdentityMatch::Different);
        assert_eq!(old.compare(&file(1, 8, Some(100))), IdentityMatch::Different);
        assert_eq!(old.compare(&file(1, 7, None)), IdentityMatch::Plausible);
        // The file system has another number after a restart.
        assert_eq!(old.compare(&file(2, 7, Some(100))), IdentityMatch::Same);
        // XFS then has another identifier as well.
        let elsewhere = |born_ns| FileIdentity { file_system: 6, ..file(2, 7, born_ns) };
        assert_eq!(old.compare(&elsewhere(Some(100))), IdentityMatch::Plausible);
        assert_eq!(old.compare(&elsewhere(Some(101))), IdentityMatch::Different);
        assert_eq!(old.compare(&elsewhere(None)), IdentityMatch::Different);
    }

    /// A folder like those of `/sys`. A drop removes it.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = format!("everbyte-device-sys-{name}-{}", std::process::id());
            let sys = Self(std::env::temp_dir().join(folder));
            for (path, text) in files {
                let path = sys.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            sys
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            // Nothing depends on it.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn disk_and_partition_have_stable_identity() {
        let files = [
            ("disk/device/wwid", "naa.1\n"),
            ("disk/device/serial", "s1\n"),
            ("disk/sda1/partition", "1\n"),
            ("disk/sda1/start", "2048\n"),
            ("other/serial", "s2\n"),
            ("silent/serial", "\n"),
        ];
        let sys = Sys::new("disks", &files);
        let of = |name: &str| BackingIdentity::of_folder(&sys.0.join(name));
        let disk = of("disk").unwrap();
        let part = of("disk/sda1").unwrap();
        let expected =
            BackingIdentity::Disk { hardware: "wwid naa.1".into(), partition_start: Some(2048) };
        assert_eq!(part, expected);
        assert_eq!(disk.compare(&of("disk").unwrap()), IdentityMatch::Same);
        assert_eq!(disk.compare(&part), IdentityMatch::Different);
        assert!(disk.shares_bytes_with(&part) && part.shares_bytes_with(&part));
        let other = of("other").unwrap();
        assert_eq!(disk.compare(&other), IdentityMatch::Different);
        assert!(!disk.shares_bytes_with(&other));
        assert_eq!(of("silent"), None);
    }

    #[test]
    fn loop_device_has_identity_of_file() {
        let sys = Sys::new("loops", &[("one.img", "1"), ("two.img", "2")]);
        let set = |image: &str| {
            let path = sys.0.join(image).display().to_string();
            fs::create_dir_all(sys.0.join("loop0/loop")).unwrap();
            fs::write(sys.0.join("loop0/loop/backing_file"), path).unwrap();
            BackingIdentity::of_folder(&sys.0.join("loop0")).unwrap()
        };
        let (one, two) = (set("one.img"), set("two.img"));
        assert_eq!(one.compare(&two), IdentityMatch::Different);
        assert_ne!(one.compare(&set("one.img")), IdentityMatch::Different);
        let file = BackingIdentity::of(&File::open(sys.0.join("one.img")).unwrap()).unwrap();
        assert!(file.shares_bytes_with(&one) && !file.shares_bytes_with(&two));
        assert_eq!(file.compare(&one), IdentityMatch::Different);
    }

    #[test]
    fn identity_check_opens_no_fifo() {
        let sys = Sys::new("looks", &[("file", "1")]);
        let path = sys.0.join("file");
        let opened = BackingIdentity::of(&File::open(&path).unwrap()).unwrap();
        assert_eq!(BackingIdentity::at(&path).unwrap(), opened);
        // Who opens it waits for its other end.
        let pipe = sys.0.join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let pipe = BackingIdentity::at(&pipe).unwrap();
        assert_eq!(pipe.compare(&opened), IdentityMatch::Different);
        assert!(BackingIdentity::at(&sys.0.join("none")).is_err());
    }

    #[test]
    fn disk_sequence_is_valid_until_reboot() {
        let at = |device, boot: &str, sequence| BackingIdentity::Number {
            device,
            boot: boot.into(),
            sequence,
        };
        let first = at(7, "a", 3);
        assert_eq!(first.compare(&at(7, "a", 3)), IdentityMatch::Same);
        assert_eq!(first.compare(&at(7, "a", 4)), IdentityMatch::Different);
        assert_eq!(first.compare(&at(7, "b", 4)), IdentityMatch::Plausible);
        assert_eq!(first.compare(&at(8, "a", 3)), IdentityMatch::Different);
        assert_eq!(at(7, "a", 0).compare(&at(7, "a", 0)), IdentityMatch::Plausible);
    }

    #[test]
    fn identities_can_be_kept_as_text() {
        for identity in [
            BackingIdentity::File(file(1, 2, None)),
            BackingIdentity::Loop { file: file(1, 2, Some(3)), offset_bytes: 4096 },
            BackingIdentity::Disk { hardware: "serial x".into(), partition_start: Some(1) },
            BackingIdentity::Number { device: 1, boot: "b".into(), sequence: 2 },
        ] {
            let text = serde_json::to_string(&identity).unwrap();
            assert_eq!(serde_json::from_str::<BackingIdentity>(&text).unwrap(), identity);
        }
    }

    #[test]
    fn stable_path_prefers_first_stable_link() {
        let devices = [("sda", ""), ("sdb", ""), ("sdc", ""), ("by-id/zz-unrelated", "")];
        let sys = Sys::new("links", &devices);
        // As `temp_dir` may be a link itself.
        let dev = sys.0.canonicalize().unwrap();
        fs::create_dir(dev.join("by-path")).unwrap();
        for (link, device) in [
            ("by-id/wwn-2", "../sdb"),
            ("by-id/wwn-1", "../sda"),
            ("by-id/gone", "../sdz"),
            ("by-path/pci-1", "../sda"),
            ("by-path/pci-3", "../sdc"),
        ] {
            std::os::unix::fs::symlink(device, dev.join(link)).unwrap();
        }
        let folders = ["by-id", "none", "by-path"].map(|name| dev.join(name));
        let folders = [&*folders[0], &*folders[1], &*folders[2]];
        let kept = |given: &str, device: &str| {
            let kept = stable_link(&dev.join(given), dev.join(device), &folders);
            kept.strip_prefix(&dev).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(kept("sda", "sda"), "by-id/wwn-1");
        assert_eq!(kept("sdb", "sdb"), "by-id/wwn-2", "never one that leads to another device");
        assert_eq!(kept("elsewhere/link", "sdc"), "by-path/pci-3");
        assert_eq!(kept("by-path/pci-1", "sda"), "by-path/pci-1", "a stable link stays as given");
        assert_eq!(stable_link(&dev.join("sda"), dev.join("sda"), &folders[1..2]), dev.join("sda"));
    }

    #[test]
    fn paths_of_files_have_no_links() {
        let sys = Sys::new("paths", &[("real", "")]);
        let link = sys.0.join("link");
        std::os::unix::fs::symlink(sys.0.join("real"), &link).unwrap();
        assert_eq!(stable_path(&link).unwrap(), sys.0.join("real").canonicalize().unwrap());
        assert!(stable_path(&sys.0.join("none")).is_err());
    }
}
