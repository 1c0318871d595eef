//! Settings of a cache and the identity of its backing device: the header of its volume.
//!
//! Invariant: the header is written as a whole in one block, so a crash leaves the old or the new
//! one. A damaged header is refused with the reason.

use std::fmt;

use everbyte_device::{BackingIdentity, IdentityMatch};
use everbyte_policy::sim::Kind;
use serde::{Deserialize, Serialize};

use crate::layout::{BACKING_BYTES_MAX, PAGE, PAGE_U64};

const MAGIC: [u8; 8] = *b"EVRCACHE";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 20;

/// The moment at which the backing device gets a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Later, in the order of its sectors.
    #[default]
    WriteBack,
    /// Before the write is answered, in addition to the cache.
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

/// Identity of a backing device: its name, and its distinguishing properties.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// `file`, `block` or `nbd`.
    pub kind: String,
    /// Name to open: an absolute path or a URI.
    pub name: String,
    /// Further identity, such as device and inode numbers; may be empty.
    pub serial: String,
    /// Identity that is independent of the device's name. `None` if it is unknown, as for exports,
    /// and in the first headers of this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingIdentity>,
}

impl Identity {
    /// Compares two identities. Without a lasting identity of both, the serial decides, or the name
    /// if the serial is empty, and the result is at most `Plausible`.
    #[must_use]
    pub fn compare(&self, other: &Self) -> IdentityMatch {
        if self.kind != other.kind {
            return IdentityMatch::Different;
        }
        if let (Some(own), Some(found)) = (&self.backing, &other.backing) {
            return own.compare(found);
        }
        let is_same = if self.serial.is_empty() && other.serial.is_empty() {
            self.name == other.name
        } else {
            self.serial == other.serial
        };
        if is_same { IdentityMatch::Plausible } else { IdentityMatch::Different }
    }

    /// Returns true if a cache of the one device would change bytes below a cache of the other. Two
    /// names of one export are taken for two backing devices.
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        match (&self.backing, &other.backing) {
            (Some(own), Some(found)) => own.shares_bytes_with(found),
            _ => self.name == other.name || self.compare(other) != IdentityMatch::Different,
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

/// Settings of a cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The backing device behind it.
    #[serde(rename = "storage")]
    pub backing: Identity,
    /// Size of the backing device in bytes.
    #[serde(rename = "storage_bytes")]
    pub backing_bytes: u64,
    /// Bytes of DRAM for pages.
    pub dram_bytes: u64,
    /// Bytes of SCM for pages. See [`Settings::volume_page_bytes_max`].
    pub scm_bytes: u64,
    /// The moment at which the backing device gets a write.
    pub mode: Mode,
    /// The replacement policy.
    pub policy: Kind,
    /// Writes of at most this many bytes are small, for policies with this distinction.
    pub small_write_bytes: u16,
}

/// Errors of checking settings and of reading a header.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A size is out of its range.
    #[error("{what} of {bytes} bytes is out of range: it must be from {min} to {max}")]
    Size {
        /// Name of the setting.
        what: &'static str,
        /// Its value in bytes.
        bytes: u64,
        /// The smallest value, in bytes.
        min: u64,
        /// The largest value, in bytes.
        max: u64,
    },
    /// The policy cannot run a cache.
    #[error("policy {policy} cannot run a cache: {why}; use one of {usable}")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// Its reason.
        why: &'static str,
        /// Names of the usable policies.
        usable: String,
    },
    /// The backing device's name is too long for the header.
    #[error("the name of the backing device is too long: {bytes} bytes do not fit in {max}")]
    TooLong {
        /// Bytes used by the settings.
        bytes: usize,
        /// Bytes reserved in the header.
        max: usize,
    },
    /// The header is damaged.
    #[error("corrupt header of the cache at byte {at} of its volume: {what}")]
    Corrupt {
        /// Offset in the volume, in bytes.
        at: u64,
        /// Description of the damage.
        what: String,
    },
}

impl Settings {
    /// Checks sizes and policy.
    ///
    /// # Errors
    /// `Size`, if a size is out of range; `Policy`, if the policy cannot run a cache.
    pub fn check(&self) -> Result<(), SettingsError> {
        let pages_max = u64::from(everbyte_policy::sim::Spec::PAGES_MAX);
        let sizes = [
            ("backing device", self.backing_bytes, 1, BACKING_BYTES_MAX),
            ("DRAM", self.dram_bytes, PAGE_U64, pages_max * PAGE_U64),
            ("SCM", self.scm_bytes, PAGE_U64, pages_max * PAGE_U64),
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

    /// Returns the largest number of page bytes in the volume: pages that live there, a persisted
    /// copy of each page in DRAM, and pages that are pending write-back.
    #[must_use]
    pub fn volume_page_bytes_max(&self) -> u64 {
        (self.scm_pages() + self.dram_pages() + u64::from(self.pending_pages_max())) * PAGE_U64
    }

    pub(crate) fn dram_pages(&self) -> u64 {
        self.dram_bytes / PAGE_U64
    }

    pub(crate) fn scm_pages(&self) -> u64 {
        self.scm_bytes / PAGE_U64
    }

    /// Returns the largest number of evicted pages pending write-back: a sixteenth of the pages,
    /// from 4 to 4096, so that they are written in runs.
    pub(crate) fn pending_pages_max(&self) -> u32 {
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
        // The length comes from the medium, and may lie beyond the block.
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

/// Returns the reason why a policy cannot run a cache; `None` if it can.
pub(crate) fn refusal(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Spitfire => Some("it has pages in both tiers at once"),
        kind if !kind.has_two_tiers() => Some("it knows one tier only"),
        _ => None,
    }
}

/// Returns the policies that can run a cache.
pub fn usable_policies() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| refusal(*kind).is_none())
}

/// Returns the names of the policies that can run a cache, for messages.
pub(crate) fn usable() -> String {
    usable_policies().map(Kind::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use everbyte_device::FileIdentity;

    use super::*;

    fn settings() -> Settings {
        Settings {
            backing: Identity {
                kind: "file".into(),
                name: "/srv/disk".into(),
                serial: "inode 7".into(),
                backing: None,
            },
            backing_bytes: 1 << 20,
            dram_bytes: 1 << 16,
            scm_bytes: 1 << 18,
            mode: Mode::WriteThrough,
            policy: Kind::Hybrid,
            small_write_bytes: 512,
        }
    }

    #[test]
    fn file_identity_ignores_names() {
        let file = |name: &str, born_ns| {
            let identity = FileIdentity { device: 1, file_system: 2, inode: 3, born_ns };
            let backing = Some(BackingIdentity::File(identity));
            Identity { name: name.into(), backing, ..settings().backing }
        };
        let disk = file("/srv/disk", Some(1));
        assert_eq!(disk.compare(&file("/other", Some(1))), IdentityMatch::Same);
        assert!(disk.shares_bytes_with(&file("/other", Some(1))));
        assert_eq!(disk.compare(&file("/srv/disk", Some(2))), IdentityMatch::Different);
        assert!(!disk.shares_bytes_with(&file("/srv/disk", Some(2))));
        // As headers of the first version have it.
        let old = settings().backing;
        assert_eq!(old.compare(&disk), IdentityMatch::Plausible);
        let other = Identity { serial: "inode 8".into(), ..disk.clone() };
        assert_eq!(old.compare(&other), IdentityMatch::Different);
        assert!(old.shares_bytes_with(&other), "they have one name");
        let export = |name: &str| Identity {
            kind: "nbd".into(),
            name: name.into(),
            serial: String::new(),
            backing: None,
        };
        assert!(export("nbd://a/x").shares_bytes_with(&export("nbd://a/x")));
        assert_eq!(export("nbd://a/x").compare(&export("nbd://a/y")), IdentityMatch::Different);
        assert!(!export("nbd://a/x").shares_bytes_with(&disk));
    }

    #[test]
    fn header_reads_back() {
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
    fn impossible_settings_are_refused() {
        for (wrong, words) in [
            (Settings { backing_bytes: 0, ..settings() }, "backing device of 0"),
            (Settings { backing_bytes: u64::MAX, ..settings() }, "backing device of"),
            (Settings { dram_bytes: 4095, ..settings() }, "DRAM"),
            (Settings { scm_bytes: 1 << 60, ..settings() }, "SCM"),
            (Settings { policy: Kind::Lru, ..settings() }, "one tier only"),
            (Settings { policy: Kind::Spitfire, ..settings() }, "both tiers"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        for policy in Kind::ALL {
            // All policies for creation can be opened.
            let settings = Settings { policy, ..settings() };
            let made = crate::policies::AnyPolicy::new(&settings);
            assert_eq!(settings.check().is_ok(), made.is_ok(), "{policy}");
            let is_named = usable().split(", ").any(|name| name == policy.name());
            assert_eq!(is_named, made.is_ok(), "{policy}");
        }
        let mut long = settings();
        long.backing.name = "x".repeat(5000);
        assert!(matches!(long.encode(), Err(SettingsError::TooLong { .. })));
    }
}
