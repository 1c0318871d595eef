//! A memory cgroup for the one program that pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{read, set};

/// Looks at a group that is to become empty, and the time between them.
const LOOKS: u32 = 3000;
const LOOK: Duration = Duration::from_millis(20);

/// A group of its own, below the mount.
pub(super) struct Cgroup {
    pub(super) at: PathBuf,
}

impl Cgroup {
    /// Makes the group.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn make(mount: &Path) -> Result<Self> {
        let at = mount.join(format!("everbyte-bench.{}", std::process::id()));
        fs::create_dir(&at).with_context(|| format!("cannot make {}", at.display()))?;
        Ok(Self { at })
    }

    /// Bounds memory, and memory with swap, to `bytes`; the program itself lowers the former.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn bound(&self, bytes: u64, swappiness: u32) -> Result<()> {
        set(&self.at.join("memory.limit_in_bytes"), &bytes.to_string())?;
        set(&self.at.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
        set(&self.at.join("memory.swappiness"), &swappiness.to_string())
    }

    fn members(&self) -> Result<Vec<Pid>> {
        let path = self.at.join("cgroup.procs");
        let members =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(members.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
    }

    /// Kills whoever is in the group, and waits until nobody is.
    ///
    /// # Errors
    /// Somebody stays.
    pub(super) fn kill_members(&self) -> Result<()> {
        for _ in 0..LOOKS {
            let members = self.members()?;
            if members.is_empty() {
                return Ok(());
            }
            for member in members {
                // It may be gone by now, or a child that nobody has waited for yet.
                let _gone = kill_process(member, Signal::KILL);
            }
            std::thread::sleep(LOOK);
        }
        bail!("processes in {} do not end: {:?}", self.at.display(), self.members()?)
    }

    /// Times that the limit was met.
    pub(super) fn times_full(&self) -> String {
        read(&self.at.join("memory.failcnt"))
    }

    /// Programs in the group that the kernel has killed, for it found nothing to swap out.
    pub(super) fn kills(&self) -> u64 {
        let control = read(&self.at.join("memory.oom_control"));
        let count = control.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes the group, which is empty.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn remove(&self) -> Result<()> {
        // What is left are cached pages of files, without which it is removed as well.
        let _tried = set(&self.at.join("memory.force_empty"), "0");
        fs::remove_dir(&self.at).with_context(|| format!("cannot remove {}", self.at.display()))
    }
}
