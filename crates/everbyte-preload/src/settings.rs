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
    /// Children write statistics too.
    pub(crate) child_statistics: bool,
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
            child_statistics: number("EVERBYTE_RUN_CHILD_STATS") == Some(1),
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

/// Name of the variable with the stage: a digit, a colon, and the number of the first process.
const STAGE: &[u8] = b"EVERBYTE_RUN_STAGE=";
const DIGIT: usize = STAGE.len();
const FIRST_PROCESS: usize = DIGIT + 2;
/// Digits of a process number, with zeroes in front.
const PROCESS_DIGITS: usize = 10;

impl Stage {
    /// The stage of this process.
    pub(crate) fn read() -> Self {
        match stage_entry() {
            Some(entry) if entry[DIGIT] == b'0' => Self::First,
            Some(entry) if entry[DIGIT] == b'2' => Self::Ordinary,
            _ => Self::Later,
        }
    }

    /// Sets the stage of the programs started by this one. It changes the bytes in place: `setenv`
    /// would allocate, and the program may have the address of its environment.
    pub(crate) fn pass_on(self) {
        let Some(entry) = stage_entry() else { return };
        entry[DIGIT] = match self {
            Self::First => b'0',
            Self::Later => b'1',
            Self::Ordinary => b'2',
        };
    }
}

/// Notes this process as the first one, for the programs that it becomes by `exec`.
pub(crate) fn note_first_process() {
    if let Some(entry) = stage_entry() {
        entry[FIRST_PROCESS..].copy_from_slice(this_process().as_bytes());
    }
}

/// True if this program is the first one or has replaced it.
pub(crate) fn is_first_process() -> bool {
    stage_entry().is_some_and(|entry| entry[FIRST_PROCESS..] == *this_process().as_bytes())
}

fn this_process() -> String {
    format!("{:0PROCESS_DIGITS$}", std::process::id())
}

/// The variable with the stage in the environment, if it has its full length.
fn stage_entry() -> Option<&'static mut [u8]> {
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
        let len = unsafe { CStr::from_ptr(text) }.count_bytes();
        // SAFETY: the kernel put the environment into writable memory of this process, and each
        // caller drops its slice before the next call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), len) };
        if bytes.starts_with(STAGE) && bytes.len() == FIRST_PROCESS + PROCESS_DIGITS {
            return Some(bytes);
        }
        entry = entry.wrapping_add(1);
    }
}
