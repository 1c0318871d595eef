//! Settings of a process: environment variables, inherited by its children.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of a process.
pub(crate) struct Settings {
    /// Maximum number of bytes in DRAM.
    pub(crate) dram_bytes: u64,
    /// Maximum number of bytes outside DRAM.
    pub(crate) space_bytes: u64,
    /// The pool and its swap volume; without them the rest is in memory, too.
    pub(crate) volume: Option<(PathBuf, String)>,
    /// The program's zero-initialized variables page too.
    pub(crate) bss: bool,
    /// Slot writes are counted and reported at the end.
    pub(crate) wear: bool,
    /// Statistics are written at the end, and so often before.
    pub(crate) statistics: Option<Duration>,
    /// A server may lend memory writable by other users.
    pub(crate) trust_pool: bool,
}

impl Settings {
    /// # Errors
    /// The missing or invalid variable.
    pub(crate) fn read() -> Result<Self, &'static str> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let pool = std::env::var_os("EVERBYTE_RUN_POOL").map(PathBuf::from);
        let volume = std::env::var("EVERBYTE_RUN_VOLUME").ok();
        Ok(Self {
            dram_bytes: number("EVERBYTE_RUN_DRAM").ok_or("EVERBYTE_RUN_DRAM")?,
            space_bytes: number("EVERBYTE_RUN_SPACE").ok_or("EVERBYTE_RUN_SPACE")?,
            volume: pool.zip(volume),
            trust_pool: number("EVERBYTE_RUN_TRUST_POOL") == Some(1),
            bss: number("EVERBYTE_RUN_BSS") == Some(1),
            wear: number("EVERBYTE_RUN_WEAR") == Some(1),
            statistics: number("EVERBYTE_RUN_STATS").map(Duration::from_secs),
        })
    }
}
