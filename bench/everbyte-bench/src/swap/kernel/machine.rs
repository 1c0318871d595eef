//! The conditions for kernel swap on a machine.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Available memory beyond the need.
const SPARE: u64 = 4 << 30;

/// Checks the machine for `need` bytes of swap and memory. Returns the mount of the memory cgroups.
///
/// # Errors
/// The reason: not root, swap is in use, memory is short, or no memory cgroup of version 1 is mounted.
pub(in crate::swap) fn check(need: u64) -> Result<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        bail!("kernel swap cannot be measured: that needs root");
    }
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    examine(need, &read("/proc/swaps")?, &read("/proc/meminfo")?, &read("/proc/self/mounts")?)
}

fn examine(need: u64, swaps: &str, meminfo: &str, mounts: &str) -> Result<PathBuf> {
    // Pages could go to the other device, and its traffic would count.
    if let Some(used) = swaps.lines().nth(1) {
        let device = used.split_whitespace().next().unwrap_or("?");
        bail!("kernel swap cannot be measured: the machine swaps to {device} already");
    }
    let available = available(meminfo).context("/proc/meminfo does not say MemAvailable")?;
    if available < need + SPARE {
        bail!(
            "kernel swap cannot be measured: it takes {} MiB and {} MiB to spare, and {} MiB are available",
            need >> 20,
            SPARE >> 20,
            available >> 20
        );
    }
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (at, kind, options) = (words.nth(1)?, words.next()?, words.next()?);
        let is_it = kind == "cgroup" && options.split(',').any(|option| option == "memory");
        is_it.then(|| PathBuf::from(at))
    });
    mount
        .context("kernel swap cannot be measured: there is no mount of memory cgroups of version 1")
}

/// Available bytes of memory.
pub(super) fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_SWAPS: &str = "Filename\tType\tSize\tUsed\tPriority\n";
    const MEMORY: &str = "MemTotal: 99 kB\nMemAvailable:   8388608 kB\n";
    const MOUNTS: &str = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n";

    fn refusal(need: u64, swaps: &str, meminfo: &str, mounts: &str) -> String {
        examine(need, swaps, meminfo, mounts).unwrap_err().to_string()
    }

    #[test]
    fn unfit_machine_is_refused() {
        assert_eq!(examine(1 << 30, NO_SWAPS, MEMORY, MOUNTS).unwrap(), PathBuf::from("/c/memory"));
        let swaps = format!("{NO_SWAPS}/dev/vdb partition 1 0 -2\n");
        assert!(refusal(1, &swaps, MEMORY, MOUNTS).contains("swaps to /dev/vdb already"));
        let short = refusal(5 << 30, NO_SWAPS, MEMORY, MOUNTS);
        assert!(
            short.contains("takes 5120 MiB and 4096 MiB to spare, and 8192 MiB are"),
            "{short}"
        );
        let version_2 = "none /c cgroup2 rw,memory 0 0\n";
        assert!(refusal(1, NO_SWAPS, MEMORY, version_2).contains("no mount of memory cgroups"));
    }
}
