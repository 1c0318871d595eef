//! Flags of files, as `chattr` sets them.

/// Flags of a file, as `chattr` sets them. The bits are Linux's (`FS_*_FL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileFlags(u32);

impl FileFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Bytes, attributes and names are fixed. A directory neither gets nor loses entries.
    pub const IMMUTABLE: Self = Self(0x10);
    /// Only appends change the file. A directory gets entries and loses none.
    pub const APPEND_ONLY: Self = Self(0x20);
    /// Backup programs skip the file.
    pub const NO_DUMP: Self = Self(0x40);
    /// Accesses keep the time of the last access.
    pub const NO_ATIME: Self = Self(0x80);

    /// All flags.
    pub const ALL: Self = Self(0xf0);
    /// Flags inherited from the directory of a new file.
    pub(crate) const INHERITED: Self = Self::NO_DUMP.with(Self::NO_ATIME);
    /// Flags that need privileges.
    pub const PRIVILEGED: Self = Self::IMMUTABLE.with(Self::APPEND_ONLY);

    /// The flags with these bits; `None` for another bit.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    /// Its bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if it has any of `flags`.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// These flags and `flags`.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// The intersection with `flags`.
    #[must_use]
    pub const fn common(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    /// The symmetric difference.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flag_bits_are_rejected() {
        for bit in (0..32).map(|bit| 1 << bit) {
            assert_eq!(
                FileFlags::from_bits(bit).is_some(),
                (0x10..=0x80).contains(&bit),
                "{bit:#x}"
            );
        }
        assert_eq!(FileFlags::from_bits(0xf0), Some(FileFlags::ALL));
    }
}
