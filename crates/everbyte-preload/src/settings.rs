//! Settings of a process: environment variables, inherited by its children.

use std::ffi::CStr;
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
    /// Memory is counted at its allocation, not at its first use.
    pub(crate) strict: bool,
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
            strict: number("EVERBYTE_RUN_STRICT") == Some(1),
            bss: number("EVERBYTE_RUN_BSS") == Some(1),
            wear: number("EVERBYTE_RUN_WEAR") == Some(1),
            statistics: number("EVERBYTE_RUN_STATS").map(Duration::from_secs),
        })
    }
}

/// The place of a process among the programs of one `everbyte run`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The program named on the command line. It pages, or it does not start.
    First,
    /// A program started by another one.
    Later,
    /// A program started by one on ordinary memory. The user has its message already.
    Ordinary,
}

unsafe extern "C" {
    static environ: *mut *mut libc::c_char;
}

/// Name of the variable with the stage, and its value's first byte.
const STAGE: &[u8] = b"EVERBYTE_RUN_STAGE=";

impl Stage {
    /// The stage of this process.
    pub(crate) fn read() -> Self {
        let Some(digit) = stage_digit() else { return Self::Later };
        // SAFETY: a byte of the environment, which no other thread changes before the program starts.
        match unsafe { digit.read() } {
            b'0' => Self::First,
            b'2' => Self::Ordinary,
            _ => Self::Later,
        }
    }

    /// Sets the stage of the programs started by this one. It changes the byte in place: `setenv`
    /// would allocate, and the program may have the address of its environment.
    pub(crate) fn pass_on(self) {
        let Some(digit) = stage_digit() else { return };
        let value = match self {
            Self::First => b'0',
            Self::Later => b'1',
            Self::Ordinary => b'2',
        };
        // SAFETY: as in `read`; the kernel put the environment into writable memory of this process.
        unsafe { digit.write(value) };
    }
}

/// The first byte of the stage in the environment.
fn stage_digit() -> Option<*mut u8> {
    // SAFETY: the C library's variable. The loader calls this before the program's threads exist.
    let mut entry = unsafe { environ }.cast_const();
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: the array ends with a null pointer, and the loop ends there.
        let text = unsafe { entry.read() };
        if text.is_null() {
            return None;
        }
        // SAFETY: each entry is a string with an end.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        if bytes.len() > STAGE.len() && bytes.starts_with(STAGE) {
            return Some(text.cast::<u8>().wrapping_add(STAGE.len()));
        }
        entry = entry.wrapping_add(1);
    }
}
