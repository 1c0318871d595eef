//! The environment of a run, as far as figures depend on it.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine, the medium and the settings of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Seconds since 1970 when the run began.
    pub(crate) started_unix_s: u64,
    /// Load average of the last minute when the run began.
    pub(crate) load: f64,
    /// Medium of the volumes, with the instruction that flushes a line.
    pub(crate) medium: String,
    pub(crate) folder: String,
    /// The option for huge pages of the folder's mount.
    pub(crate) huge_pages: String,
    /// Bytes of each subject's device.
    pub(crate) size_bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) slice_s: f64,
    /// True for a build with debug assertions. Its figures mean nothing.
    pub(crate) debug_build: bool,
    /// True for a smoke test. Its figures mean nothing.
    pub(crate) quick: bool,
}

impl Environment {
    /// Examines the machine.
    pub(crate) fn new(folder: &Path, rounds: usize, slice_s: f64, quick: bool) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let load = read("/proc/loadavg");
        let since_1970 = std::time::UNIX_EPOCH.elapsed();
        Self {
            cpu: cpu_name(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: read("/proc/sys/kernel/osrelease"),
            started_unix_s: since_1970.map_or(0, |since| since.as_secs()),
            load: load.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0),
            medium: String::new(),
            folder: folder.display().to_string(),
            huge_pages: huge_option(&read("/proc/self/mounts"), folder),
            size_bytes: 0,
            rounds,
            slice_s,
            debug_build: cfg!(debug_assertions),
            quick,
        }
    }

    /// Returns a warning if the figures mean nothing.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        (self.debug_build || self.quick)
            .then_some("A debug build or a smoke test: the figures mean nothing.")
    }
}

fn cpu_name(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name).to_owned()
}

/// The `huge=` option of the mount of `folder`.
fn huge_option(mounts: &str, folder: &Path) -> String {
    let on_way = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, options) = (words.next()?, words.nth(1)?);
        folder.starts_with(at).then_some((at.len(), options))
    });
    // The deepest mount on the way to the folder covers the others.
    let options = on_way.max_by_key(|(len, _)| *len).map_or("", |(_, options)| options);
    // tmpfs shows no option if huge pages are off.
    let option = options.split(',').find_map(|option| option.strip_prefix("huge="));
    option.unwrap_or("never").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /mnt tmpfs rw,huge=always,size=1g 0 0\n";
        assert_eq!(huge_option(mounts, Path::new("/mnt/x")), "always");
        assert_eq!(huge_option(mounts, Path::new("/dev/shm")), "never");
        assert_eq!(cpu_name("processor : 0\nmodel name\t: Some CPU\n"), "Some CPU");
        assert_eq!(cpu_name(""), "unknown");
    }
}
