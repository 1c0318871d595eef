//! Messages about the health of a pool and of its volumes. Commands print the same types as JSON.

use serde::{Deserialize, Serialize};

/// Health of a pool, from best to worst; `everbyte_pool::Health` defines each value.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum HealthStatus {
    /// Nothing is wrong.
    Clean,
    /// All bytes can be read, and something is missing.
    Degraded,
    /// Structures or bytes are damaged.
    Damaged,
    /// The pool cannot be judged.
    #[default]
    #[serde(other)]
    Unknown,
}

impl HealthStatus {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Degraded => "degraded",
            Self::Damaged => "damaged",
            Self::Unknown => "unknown",
        }
    }
}

/// A deleted volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeletedStatus {
    /// The name it had.
    pub name: String,
    /// Its damage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// Freed bytes of a damaged volume.
    pub freed_bytes: u64,
    /// Bytes of a damaged volume that are unusable until a repair.
    pub leaked_bytes: u64,
}
