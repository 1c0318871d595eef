//! What a cache is set to, and which storage it belongs to: the header of its volume.
//!
//! Invariant: the header is written as a whole in one block, so a crash leaves the old or the new
//! one; one that is damaged is refused with what is wrong.

use std::fmt;

use everbyte_device::{BackingIdentity, Likeness};
use everbyte_policy::sim::Kind;
use serde::{Deserialize, Serialize};

use crate::layout::{PAGE, PAGE_U64, STORAGE_BYTES_MAX};

const MAGIC: [u8; 8] = *b"EVRCACHE";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 20;

/// When storage gets what is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Later, in the order of its sectors.
    #[default]
    WriteBack,
    /// Before the write is answered, besides the cache.
    WriteThrough,
    /// Before the write is answered, and only it, unless the page is cached already.
    WriteAround,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::WriteBack, Self::WriteThrough, Self::WriteAround];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
            Self::WriteAround => "write-around",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which backing device this is: what it is called, and what tells it from others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// `file`, `block` or `nbd`.
    pub kind: String,
    /// What to open: an absolute path or a URI.
    pub name: String,
    /// What else tells it from others, such as device and inode numbers; may be empty.
    pub serial: String,
    /// What stays with it whatever it is called; `None` if nothing is known, as of exports, and in
    /// headers written before there was such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingIdentity>,
}

impl Identity {
    /// Whether this is the backing device that `other` says. Without what stays with a device, its
    /// serial decides, or its name if that is empty, and then nothing is proven.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Likeness {
        if self.kind != other.kind {
            return Likeness::Different;
        }
        if let (Some(own), Some(found)) = (&self.backing, &other.backing) {
            return own.compare(found);
        }
        let is_same = if self.serial.is_empty() && other.serial.is_empty() {
            self.name == other.name
        } else {
            self.serial == other.serial
        };
        if is_same { Likeness::Plausible } else { Likeness::Different }
    }

    /// Whether a cache of the one would change bytes below a cache of the other. Two names of one
    /// export are taken for two backing devices.
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        match (&self.backing, &other.backing) {
            (Some(own), Some(found)) => own.shares_bytes_with(found),
            _ => self.name == other.name || self.compare(other) != Likeness::Different,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        if !self.serial.is_empty() {
            write!(f, " ({})", self.serial)?;
        }
        Ok(())
    }
}

/// What a cache is set to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The storage behind it.
    pub storage: Identity,
    /// Size of the storage in bytes.
    pub storage_bytes: u64,
    /// Bytes of DRAM for pages.
    pub dram_bytes: u64,
    /// Bytes of storage-class memory for pages. See [`Settings::memory_bytes_max`].
    pub scm_bytes: u64,
    /// When storage gets what is written.
    pub mode: Mode,
    /// Who decides what is cached, by a name of [`Kind`].
    pub policy: Kind,
    /// Writes of at most this many bytes are small, for policies that tell them apart.
    pub small_write_bytes: u16,
}

/// Why a cache cannot be set so, or a header cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A size is out of its range.
    #[error("{what} of {bytes} bytes is out of range: it must be from {min} to {max}")]
    Size {
        /// What has the size.
        what: &'static str,
        /// The size.
        bytes: u64,
        /// The smallest there may be.
        min: u64,
        /// The largest there may be.
        max: u64,
    },
    /// The policy cannot run a cache.
    #[error("policy {policy} cannot run a cache: {why}; use one of {usable}")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// Why not.
        why: &'static str,
        /// Those that can be used.
        usable: String,
    },
    /// The storage's name is too long for the header.
    #[error("the name of the storage is too long: {bytes} bytes do not fit in {max}")]
    TooLong {
        /// Bytes that the settings take.
        bytes: usize,
        /// Bytes there are.
        max: usize,
    },
    /// The header is not one.
    #[error("corrupt header of the cache at byte {at} of its volume: {what}")]
    Corrupt {
        /// Where in the volume.
        at: u64,
        /// What is wrong.
        what: String,
    },
}

impl Settings {
    /// Checks sizes and policy.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let pages_max = u64::from(everbyte_policy::sim::Spec::PAGES_MAX);
        let sizes = [
            ("storage", self.storage_bytes, 1, STORAGE_BYTES_MAX),
            ("DRAM", self.dram_bytes, PAGE_U64, pages_max * PAGE_U64),
            ("storage-class memory", self.scm_bytes, PAGE_U64, pages_max * PAGE_U64),
        ];
        for (what, bytes, min, max) in sizes {
            if !(min..=max).contains(&bytes) {
                return Err(SettingsError::Size { what, bytes, min, max });
            }
        }
        if let Some(why) = refusal(self.policy) {
            let (policy, usable) = (self.policy.name(), usable());
            return Err(SettingsError::Policy { policy, why, usable });
        }
        Ok(())
    }

    /// Bytes of pages that the volume may hold at most: those that live there, a durable shadow of
    /// each page in DRAM, and those that wait for being written back.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        (self.scm_pages() + self.dram_pages() + u64::from(self.aside_pages_max())) * PAGE_U64
    }

    pub(crate) fn dram_pages(&self) -> u64 {
        self.dram_bytes / PAGE_U64
    }

    pub(crate) fn scm_pages(&self) -> u64 {
        self.scm_bytes / PAGE_U64
    }

    /// Evicted pages that may wait for being written back: a sixteenth of the pages, so that they
    /// go to storage in runs, and at most 4096.
    pub(crate) fn aside_pages_max(&self) -> u32 {
        let share = (self.scm_pages() + self.dram_pages()) / 16;
        u32::try_from(share.clamp(4, 4096)).unwrap_or(4096)
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, SettingsError> {
        let text = serde_json::to_vec(self).expect("numbers and names have no failure");
        let max = PAGE - HEAD_BYTES;
        if text.len() > max {
            return Err(SettingsError::TooLong { bytes: text.len(), max });
        }
        let mut block = vec![0; PAGE];
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let len = u32::try_from(text.len()).expect("less than a page");
        block[12..16].copy_from_slice(&len.to_le_bytes());
        block[16..20].copy_from_slice(&crc32c::crc32c(&text).to_le_bytes());
        block[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(&text);
        Ok(block)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, SettingsError> {
        let corrupt = |at: u64, what: &str| SettingsError::Corrupt { at, what: what.to_owned() };
        let word = |at: usize| {
            block.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        if block.get(..8) != Some(&MAGIC) {
            return Err(corrupt(0, "it does not begin with the magic bytes"));
        }
        if word(8) != VERSION {
            return Err(corrupt(8, "its version is unknown to this program"));
        }
        let len = word(12) as usize;
        let text = len.checked_add(HEAD_BYTES).and_then(|end| block.get(HEAD_BYTES..end));
        let text = text.ok_or_else(|| corrupt(12, "its length is impossible"))?;
        if crc32c::crc32c(text) != word(16) {
            return Err(corrupt(16, "its checksum is wrong"));
        }
        let settings: Self = serde_json::from_slice(text)
            .map_err(|error| corrupt(HEAD_BYTES as u64, &error.to_string()))?;
        settings.check()?;
        Ok(settings)
    }
}

/// Why a policy cannot run a cache, if it cannot.
pub(crate) fn refusal(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Spitfire => Some("it has pages in both kinds of memory at once"),
        kind if !kind.has_two_tiers() => Some("it knows one kind of memory only"),
        _ => None,
    }
}

/// Names of the policies that can be used, for messages.
pub(crate) fn usable() -> String {
    let usable = Kind::ALL.into_iter().filter(|kind| refusal(*kind).is_none());
    usable.map(Kind::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use everbyte_device::FileIdentity;

    use super::*;

    fn settings() -> Settings {
        Settings {
            storage: Identity {
                kind: "file".into(),
                name: "/srv/disk".into(),
                serial: "inode 7".into(),
                backing: None,
            },
            storage_bytes: 1 << 20,
            dram_bytes: 1 << 16,
            scm_bytes: 1 << 18,
            mode: Mode::WriteThrough,
            policy: Kind::Hybrid,
            small_write_bytes: 512,
        }
    }

    #[test]
    fn one_file_under_two_names_is_one_and_two_of_one_name_are_two() {
        let file = |name: &str, born_ns| {
            let identity = FileIdentity { device: 1, file_system: 2, inode: 3, born_ns };
            let backing = Some(BackingIdentity::File(identity));
            Identity { name: name.into(), backing, ..settings().storage }
        };
        let disk = file("/srv/disk", Some(1));
        assert_eq!(disk.compare(&file("/other", Some(1))), Likeness::Same);
        assert!(disk.shares_bytes_with(&file("/other", Some(1))));
        assert_eq!(disk.compare(&file("/srv/disk", Some(2))), Likeness::Different);
        assert!(!disk.shares_bytes_with(&file("/srv/disk", Some(2))));
        // As headers of the first version have it.
        let old = settings().storage;
        assert_eq!(old.compare(&disk), Likeness::Plausible);
        let other = Identity { serial: "inode 8".into(), ..disk.clone() };
        assert_eq!(old.compare(&other), Likeness::Different);
        assert!(old.shares_bytes_with(&other), "they have one name");
        let export = |name: &str| Identity {
            kind: "nbd".into(),
            name: name.into(),
            serial: String::new(),
            backing: None,
        };
        assert!(export("nbd://a/x").shares_bytes_with(&export("nbd://a/x")));
        assert_eq!(export("nbd://a/x").compare(&export("nbd://a/y")), Likeness::Different);
        assert!(!export("nbd://a/x").shares_bytes_with(&disk));
    }

    #[test]
    fn a_header_reads_back() {
        let block = settings().encode().unwrap();
        assert_eq!(block.len(), PAGE);
        assert_eq!(Settings::decode(&block).unwrap(), settings());
    }

    #[test]
    fn damage_is_named() {
        let good = settings().encode().unwrap();
        for (at, words) in [(0, "magic"), (8, "version"), (14, "length"), (30, "checksum")] {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            let error = Settings::decode(&bad).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(Settings::decode(&[]).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (wrong, words) in [
            (Settings { storage_bytes: 0, ..settings() }, "storage of 0"),
            (Settings { storage_bytes: u64::MAX, ..settings() }, "storage of"),
            (Settings { dram_bytes: 4095, ..settings() }, "DRAM"),
            (Settings { scm_bytes: 1 << 60, ..settings() }, "class memory"),
            (Settings { policy: Kind::Lru, ..settings() }, "one kind of memory only"),
            (Settings { policy: Kind::Spitfire, ..settings() }, "both kinds of memory"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        for policy in Kind::ALL {
            // Whatever may be created can be opened.
            let settings = Settings { policy, ..settings() };
            let made = crate::policies::AnyPolicy::new(&settings);
            assert_eq!(settings.check().is_ok(), made.is_ok(), "{policy}");
            let is_named = usable().split(", ").any(|name| name == policy.name());
            assert_eq!(is_named, made.is_ok(), "{policy}");
        }
        let mut long = settings();
        long.storage.name = "x".repeat(5000);
        assert!(matches!(long.encode(), Err(SettingsError::TooLong { .. })));
    }
}
