//! A measurement, passed to its process as JSON.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::access::Pattern;
use super::ft::Class;
use super::subjects::Subject;
use super::words::PAGE;

/// A measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) subject: Subject,
    pub(super) load: Load,
    pub(super) threads: usize,
    pub(super) dram_bytes: u64,
    /// Maximum time.
    pub(super) limit: Duration,
    /// Folder for stores on the medium.
    pub(super) folder: PathBuf,
    /// Empty folder for files of redis-server.
    pub(super) server_folder: Option<PathBuf>,
    /// Slots of a nearly full space, and thousandths of other owners.
    pub(super) slots: u64,
    pub(super) permille: u64,
    /// Memory cgroup under kernel swap. The guardian makes it.
    pub(super) cgroup: Option<Swapped>,
}

/// The work of a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Load {
    /// Pages of `bytes` bytes are filled, touched `warm` times and then `count` times.
    Touch {
        pattern: Pattern,
        stores: bool,
        bytes: u64,
        warm: u64,
        count: u64,
    },
    Ft(Class),
    /// redis-server with about `bytes` bytes of keys and values.
    Serve {
        bytes: u64,
    },
}

impl Load {
    /// Bytes of memory.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Touch { bytes, .. } => bytes,
            Self::Ft(class) => (8 * class.words() as u64).next_multiple_of(PAGE),
            // A forked child that saves can need a copy of everything.
            Self::Serve { bytes } => 2 * bytes,
        }
    }
}

/// The memory cgroup of a process under kernel swap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Swapped {
    pub(super) cgroup: PathBuf,
    /// Memory limit of the process inside of the group.
    pub(super) limit_bytes: u64,
}

impl Swapped {
    /// Moves this process into the cgroup, and sets the limit.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn enter(&self) -> Result<()> {
        // The removal of swap must not find this process still paging.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let set = |name: &str, value: &str| {
            let path = self.cgroup.join(name);
            std::fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
        };
        // Only members are charged, so pages touched before stay outside of the limit.
        set("cgroup.procs", "0")?;
        set("memory.limit_in_bytes", &self.limit_bytes.to_string())
    }
}

/// Takes one measurement of the swap suite.
#[derive(clap::Args)]
pub(crate) struct TaskArgs {
    /// The measurement as JSON.
    task: String,
}

impl TaskArgs {
    /// # Errors
    /// The argument is not a task.
    pub(super) fn task(&self) -> Result<Task> {
        Ok(serde_json::from_str(&self.task)?)
    }
}
