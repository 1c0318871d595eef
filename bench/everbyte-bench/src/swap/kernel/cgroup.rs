//! A memory cgroup for the measured program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{read, set};

/// Attempts to empty a group, and the time between them.
const ATTEMPTS: u32 = 3000;
const PAUSE: Duration = Duration::from_millis(20);

/// A new group below the mount.
pub(super) struct Cgroup {
    pub(super) at: PathBuf,
}

impl Cgroup {
    /// Makes the group.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn make(mount: &Path) -> Result<Self> {
        let at = mount.join(format!("everbyte-bench.{}", std::process::id()));
        fs::create_dir(&at).with_context(|| format!("cannot make {}", at.display()))?;
        Ok(Self { at })
    }

    /// Limits memory, and memory with swap, to `bytes`. The program lowers the first limit.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn bound(&self, bytes: u64, swappiness: u32) -> Result<()> {
        // The kernel refuses a limit of both below that of memory, so memory comes first.
        set(&self.at.join("memory.limit_in_bytes"), &bytes.to_string())?;
        set(&self.at.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
        set(&self.at.join("memory.swappiness"), &swappiness.to_string())
    }

    /// Kills the members of the group, and waits for their end.
    ///
    /// # Errors
    /// A member does not end.
    pub(super) fn kill_members(&self) -> Result<()> {
        let path = self.at.join("cgroup.procs");
        for _ in 0..ATTEMPTS {
            let members = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            if members.is_empty() {
                return Ok(());
            }
            for member in members.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
                // It may have ended, or be a zombie.
                let _gone = kill_process(member, Signal::KILL);
            }
            std::thread::sleep(PAUSE);
        }
        bail!("processes in {} do not end: {}", self.at.display(), read(&path))
    }

    /// Number of times at the limit.
    pub(super) fn times_full(&self) -> String {
        read(self.at.join("memory.failcnt"))
    }

    /// Members killed by the kernel because it found no page to swap out.
    pub(super) fn kills(&self) -> u64 {
        let control = read(self.at.join("memory.oom_control"));
        let count = control.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes the empty group.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn remove(&self) -> Result<()> {
        // Only cached pages of files are left. The removal does not depend on them.
        let _tried = set(&self.at.join("memory.force_empty"), "0");
        fs::remove_dir(&self.at).with_context(|| format!("cannot remove {}", self.at.display()))
    }
}
