//! Filebench's personalities: file sets, steps and threads, as `workloads/*.f` of Filebench 1.5 define
//! them.
//!
//! Invariants: a step is what Filebench calls a flowop, and counts as one operation; sizes and widths
//! are the definition's, only the number of files and threads are ours to vary.

use clap::ValueEnum;

/// Bytes of a read or write (`iosize`).
pub(crate) const IO_BYTES: u64 = 1 << 20;
/// An append has fewer bytes than this (`meanappendsize`), all counts being as likely.
pub(crate) const APPEND_BYTES: u64 = 16 << 10;
/// Shape of the gamma distributions, of sizes and of directories.
pub(crate) const GAMMA: f64 = 1.5;

/// A workload of Filebench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Personality {
    /// Makes the whole file set.
    Createfiles,
    /// Creates, appends, reads and deletes.
    Fileserver,
    /// Replaces a file, and reads five.
    Webproxy,
    /// Reads ten files, and appends to a log.
    Webserver,
    /// Mail: as a web proxy, but each change is made durable.
    Varmail,
}

/// A flowop. All but `Delete`, `Stat` and `AppendLog` are about the file that the thread has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Create,
    Open,
    WriteWhole,
    ReadWhole,
    Append,
    Fsync,
    Close,
    Delete,
    Stat,
    AppendLog,
}

/// Kinds of operations, which have latencies of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Create,
    Open,
    Write,
    Read,
    Append,
    Fsync,
    Close,
    Delete,
    Stat,
}

/// The size of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileBytes {
    /// All have this size.
    Constant(u64),
    /// The mean of a gamma distribution.
    Gamma(u64),
}

/// The paper's Table 1: mean file size in KiB, threads, and percent of reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Published {
    pub(crate) file_kib: u64,
    pub(crate) threads: usize,
    pub(crate) reads_percent: u64,
}

const READ_ONE: [Step; 3] = [Step::Open, Step::ReadWhole, Step::Close];

impl Operation {
    pub(crate) const ALL: [Self; 9] = [
        Self::Create,
        Self::Open,
        Self::Write,
        Self::Read,
        Self::Append,
        Self::Fsync,
        Self::Close,
        Self::Delete,
        Self::Stat,
    ];

    /// Names of the metrics of its median and its 99th percentile.
    pub(crate) fn metrics(self) -> [&'static str; 2] {
        match self {
            Self::Create => ["p50_create", "p99_create"],
            Self::Open => ["p50_open", "p99_open"],
            Self::Write => ["p50_write", "p99_write"],
            Self::Read => ["p50_read", "p99_read"],
            Self::Append => ["p50_append", "p99_append"],
            Self::Fsync => ["p50_fsync", "p99_fsync"],
            Self::Close => ["p50_close", "p99_close"],
            Self::Delete => ["p50_delete", "p99_delete"],
            Self::Stat => ["p50_stat", "p99_stat"],
        }
    }
}

#[cfg(test)]
impl Step {
    /// The kind of operation that it is.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::Create => Operation::Create,
            Self::Open => Operation::Open,
            Self::WriteWhole => Operation::Write,
            Self::ReadWhole => Operation::Read,
            Self::Append | Self::AppendLog => Operation::Append,
            Self::Fsync => Operation::Fsync,
            Self::Close => Operation::Close,
            Self::Delete => Operation::Delete,
            Self::Stat => Operation::Stat,
        }
    }
}

impl FileBytes {
    pub(crate) fn mean(self) -> u64 {
        match self {
            Self::Constant(bytes) | Self::Gamma(bytes) => bytes,
        }
    }
}

impl Personality {
    pub(crate) const ALL: [Self; 5] =
        [Self::Createfiles, Self::Fileserver, Self::Webproxy, Self::Webserver, Self::Varmail];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Createfiles => "createfiles",
            Self::Fileserver => "fileserver",
            Self::Webproxy => "webproxy",
            Self::Webserver => "webserver",
            Self::Varmail => "varmail",
        }
    }

    /// The steps of a thread, over and over.
    pub(crate) fn steps(self) -> Vec<Step> {
        use Step::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole};
        match self {
            Self::Createfiles => vec![Create, Step::WriteWhole, Close],
            Self::Fileserver => {
                let changes = [Create, Step::WriteWhole, Close, Open, Append, Close];
                [&changes[..], &READ_ONE, &[Delete, Step::Stat]].concat()
            }
            Self::Webproxy => {
                let replaces = [Delete, Create, Append, Close];
                [&replaces[..], &READ_ONE.repeat(5)].concat()
            }
            Self::Webserver => [&READ_ONE.repeat(10)[..], &[AppendLog]].concat(),
            Self::Varmail => {
                let arrives = [Delete, Create, Append, Fsync, Close];
                let is_marked = [Open, ReadWhole, Append, Fsync, Close];
                [&arrives[..], &is_marked, &READ_ONE].concat()
            }
        }
    }

    pub(crate) fn file_bytes(self) -> FileBytes {
        match self {
            Self::Createfiles | Self::Webproxy => FileBytes::Constant(16 << 10),
            Self::Webserver | Self::Varmail => FileBytes::Gamma(16 << 10),
            Self::Fileserver => FileBytes::Gamma(128 << 10),
        }
    }

    /// Mean number of files of a directory.
    pub(crate) fn directory_width(self) -> u32 {
        match self {
            Self::Createfiles => 100,
            Self::Fileserver | Self::Webserver => 20,
            Self::Webproxy | Self::Varmail => 1_000_000,
        }
    }

    /// Percent of the file set that is there when the threads begin (`prealloc`).
    pub(crate) fn present_percent(self) -> u32 {
        match self {
            Self::Createfiles => 0,
            Self::Webserver => 100,
            Self::Fileserver | Self::Webproxy | Self::Varmail => 80,
        }
    }

    pub(crate) fn threads(self) -> usize {
        match self {
            Self::Createfiles | Self::Varmail => 16,
            Self::Fileserver => 50,
            Self::Webproxy | Self::Webserver => 100,
        }
    }

    /// The workload's line of the paper's table, if it is there.
    pub(crate) fn published(self) -> Option<Published> {
        let line =
            |file_kib, threads, reads_percent| Some(Published { file_kib, threads, reads_percent });
        match self {
            Self::Createfiles => line(16, 16, 0),
            Self::Fileserver => line(128, 50, 30),
            Self::Webproxy => line(16, 100, 80),
            Self::Webserver => line(16, 100, 90),
            Self::Varmail => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a step is taken in a round of all steps.
    fn count(personality: Personality, step: Step) -> usize {
        personality.steps().iter().filter(|&&own| own == step).count()
    }

    #[test]
    fn mixes_match_filebench() {
        let lengths = Personality::ALL.map(|personality| personality.steps().len());
        assert_eq!(lengths, [3, 11, 19, 31, 13]);
        for (step, counts) in [
            (Step::Create, [1, 1, 1, 0, 1]),
            (Step::Delete, [0, 1, 1, 0, 1]),
            (Step::Open, [0, 2, 5, 10, 2]),
            (Step::Close, [1, 3, 6, 10, 3]),
            (Step::ReadWhole, [0, 1, 5, 10, 2]),
            (Step::WriteWhole, [1, 1, 0, 0, 0]),
            (Step::Append, [0, 1, 1, 0, 2]),
            (Step::AppendLog, [0, 0, 0, 1, 0]),
            (Step::Fsync, [0, 0, 0, 0, 2]),
            (Step::Stat, [0, 1, 0, 0, 0]),
        ] {
            assert_eq!(Personality::ALL.map(|own| count(own, step)), counts, "{step:?}");
        }
    }

    #[test]
    fn steps_on_open_files_have_one() {
        for personality in Personality::ALL {
            let mut is_open = false;
            for step in personality.steps() {
                match step {
                    Step::Create | Step::Open => {
                        assert!(!is_open, "{personality:?} opens two");
                        is_open = true;
                    }
                    Step::Close => is_open = false,
                    Step::WriteWhole | Step::ReadWhole | Step::Append | Step::Fsync => {
                        assert!(is_open, "{personality:?}: {step:?} of no file");
                    }
                    Step::Delete | Step::Stat | Step::AppendLog => {}
                }
            }
            assert!(!is_open, "{personality:?} leaves a file open");
        }
    }

    #[test]
    fn sizes_and_threads_match_the_paper() {
        for personality in Personality::ALL {
            let Some(published) = personality.published() else { continue };
            assert_eq!(personality.file_bytes().mean(), published.file_kib << 10);
            assert_eq!(personality.threads(), published.threads);
        }
    }
}
