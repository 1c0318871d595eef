//! Personalities of Filebench 1.5 (`workloads/*.f`): file sets, steps and threads.
//!
//! Invariants: a step is a flowop of Filebench and counts as one operation. Sizes, widths and steps are those of the
//! definitions. Only the number of files and the number of threads vary.

use clap::ValueEnum;

/// Size of a read or write in bytes (`iosize`).
pub(crate) const IO_BYTES: usize = 1 << 20;
/// Exclusive upper bound of the size of an append. Sizes are distributed evenly around `meanappendsize`.
pub(crate) const APPEND_BYTES: u64 = 16 << 10;
/// Shape of the gamma distributions of sizes and directories.
pub(crate) const GAMMA: f64 = 1.5;

/// A workload of Filebench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Personality {
    /// Creates the whole file set.
    Createfiles,
    /// Creates, appends, reads and deletes.
    Fileserver,
    /// Replaces a file and reads five files.
    Webproxy,
    /// Reads ten files and appends to a log.
    Webserver,
    /// Mail: like a web proxy, but each change is synced.
    Varmail,
}

/// A flowop. `Delete`, `Stat` and `AppendLog` need no open file. The other steps after `Open` use the file that the
/// thread has open.
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

impl Step {
    /// Number of steps.
    pub(crate) const COUNT: usize = Self::AppendLog as usize + 1;
}

/// A personality's definition.
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    /// Parts of a thread's loop, each with its number of repetitions.
    steps: &'static [(usize, &'static [Step])],
    /// Mean size of a file in bytes.
    pub(crate) file_bytes: u32,
    /// True if sizes have a gamma distribution, false if all sizes are equal.
    pub(crate) is_gamma: bool,
    /// Mean number of files in a directory.
    pub(crate) directory_width: u32,
    /// Percentage of the file set that exists at the start (`prealloc`).
    pub(crate) present_percent: u32,
    pub(crate) threads: usize,
}

use Step::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, Stat, WriteWhole};

const READ_ONE: [Step; 3] = [Open, ReadWhole, Close];

/// The definitions in the order of [`Personality`].
const DEFINITIONS: [Definition; 5] = [
    Definition {
        name: "createfiles",
        steps: &[(1, &[Create, WriteWhole, Close])],
        file_bytes: 16 << 10,
        is_gamma: false,
        directory_width: 100,
        present_percent: 0,
        threads: 16,
    },
    Definition {
        name: "fileserver",
        steps: &[
            (1, &[Create, WriteWhole, Close, Open, Append, Close]),
            (1, &READ_ONE),
            (1, &[Delete, Stat]),
        ],
        file_bytes: 128 << 10,
        is_gamma: true,
        directory_width: 20,
        present_percent: 80,
        threads: 50,
    },
    Definition {
        name: "webproxy",
        steps: &[(1, &[Delete, Create, Append, Close]), (5, &READ_ONE)],
        file_bytes: 16 << 10,
        is_gamma: false,
        directory_width: 1_000_000,
        present_percent: 80,
        threads: 100,
    },
    Definition {
        name: "webserver",
        steps: &[(10, &READ_ONE), (1, &[AppendLog])],
        file_bytes: 16 << 10,
        is_gamma: true,
        directory_width: 20,
        present_percent: 100,
        threads: 100,
    },
    Definition {
        name: "varmail",
        steps: &[
            (1, &[Delete, Create, Append, Fsync, Close]),
            (1, &[Open, ReadWhole, Append, Fsync, Close]),
            (1, &READ_ONE),
        ],
        file_bytes: 16 << 10,
        is_gamma: true,
        directory_width: 1_000_000,
        present_percent: 80,
        threads: 16,
    },
];

impl Personality {
    pub(crate) const ALL: [Self; 5] =
        [Self::Createfiles, Self::Fileserver, Self::Webproxy, Self::Webserver, Self::Varmail];

    pub(crate) fn definition(self) -> &'static Definition {
        &DEFINITIONS[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.definition().name
    }

    /// The steps of a thread's loop.
    pub(crate) fn steps(self) -> Vec<Step> {
        let parts = self.definition().steps.iter();
        parts.flat_map(|&(times, steps)| steps.repeat(times)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a step in one loop.
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
        let own = Personality::ALL.map(Personality::definition);
        let lines = own.map(|line| (line.name, line.file_bytes >> 10, line.threads));
        let [published @ .., _varmail] = lines;
        let paper = [
            ("createfiles", 16, 16),
            ("fileserver", 128, 50),
            ("webproxy", 16, 100),
            ("webserver", 16, 100),
        ];
        assert_eq!(published, paper);
    }
}
