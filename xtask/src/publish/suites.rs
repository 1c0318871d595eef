//! The list of suites: names, commands, the time that each takes, and what of its output is kept.
//!
//! The one place where that stands. A suite is published as a whole, by one run of one commit.

/// Form of what a command writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// The document of `everbyte-bench`.
    Bench,
    /// Comma-separated values with a heading.
    Csv,
}

/// A suite that pages take figures from.
#[derive(Debug)]
pub(crate) struct Suite {
    /// Name, and that of the file in `docs/results`.
    pub(crate) name: &'static str,
    /// Packages, targets and arguments after `cargo run --release`, quoted as for a shell; `TRACES` stands for
    /// the files of the folder of traces, `OUT` for the file that is written; without it that is the
    /// standard output.
    pub(crate) command: &'static str,
    pub(crate) form: Form,
    /// Minutes that it takes on two cores.
    pub(crate) minutes: u32,
    /// True if its figures are times, so that the machine must be idle.
    pub(crate) needs_idle: bool,
    /// Traces by the beginnings of their names; empty for all, or where there are none.
    pub(crate) traces: &'static [&'static str],
    /// Metrics, or columns, that are kept, besides rows that say why there is no figure; empty for all.
    pub(crate) kept: &'static [&'static str],
    /// Words of which a kept workload has one; empty for all.
    pub(crate) workloads: &'static [&'static str],
}

/// Traces of the hybrid cache's paper, and the five real ones.
const EIGHT: &[&str] = &[
    "cloudPhysicsIO.",
    "fio_small.",
    "mixed.",
    "mobigen.",
    "mqsim_tpcc-small.",
    "sqlite_wal.",
    "web.",
    "webserver.",
];

/// Workloads of the comparison of schemes: means, the paper's words, and the rows of its Figures 5 and 6.
const SCHEMES: &[&str] = &[
    "all IOzone-like writes",
    "dram: random write 4K in 4M, checkpoint",
    "dram: append",
    "dram: metadata",
    "redo, as a",
    "a block journal",
    "ext4 in order",
    "ext4 with data",
    "dram: initial write 1K in 128K, checkpoint",
    "dram: initial write 1K in 1M, checkpoint",
    "dram: initial write 1K in 4M, checkpoint",
    "dram: initial write 1K in 16M, checkpoint",
    "dram: initial write 100K in 128K, checkpoint",
    "dram: initial write 100K in 1M, checkpoint",
    "dram: initial write 100K in 4M, checkpoint",
    "dram: initial write 100K in 16M, checkpoint",
    "dram: sequential write 1K in 128K, checkpoint",
    "dram: sequential write 1K in 1M, checkpoint",
    "dram: sequential write 1K in 4M, checkpoint",
    "dram: sequential write 1K in 16M, checkpoint",
    "dram: sequential write 100K in 128K, checkpoint",
    "dram: sequential write 100K in 1M, checkpoint",
    "dram: sequential write 100K in 4M, checkpoint",
    "dram: sequential write 100K in 16M, checkpoint",
    "dram: random write 1K in 128K, checkpoint",
    "dram: random write 1K in 1M, checkpoint",
    "dram: random write 1K in 4M, checkpoint",
    "dram: random write 1K in 16M, checkpoint",
    "dram: random write 100K in 128K, checkpoint",
    "dram: random write 100K in 1M, checkpoint",
    "dram: random write 100K in 4M, checkpoint",
    "dram: random write 100K in 16M, checkpoint",
];

pub(crate) const SUITES: [Suite; 18] = [
    Suite {
        name: "block",
        command: "-p everbyte-bench -- block --repeats 9 --seconds 0.08 --output OUT",
        form: Form::Bench,
        minutes: 9,
        needs_idle: true,
        traces: &[],
        kept: &[
            "time",
            "time_to_floor",
            "time_to_places",
            "rate",
            "server_cpu",
            "media_bytes_per_byte",
            "media_bytes_to_whole_blocks",
            "fences",
            "log_bytes",
        ],
        workloads: &[],
    },
    Suite {
        name: "consistency",
        command: "-p everbyte-bench -- consistency --skip tpcc,threshold,points --output OUT",
        form: Form::Bench,
        minutes: 9,
        needs_idle: true,
        traces: &[],
        kept: &[
            "time_to_rollback_min",
            "time_to_rollback_mean",
            "time_to_rollback_max",
            "time_to_rollback_published_min",
            "time_to_rollback_published_mean",
            "time_to_rollback_published_max",
            "time_to_rollback",
            "time_to_rollback_published",
            "media_bytes_per_byte",
            "log_bytes_per_byte",
            "log_bytes_of_pass",
            "speed_least",
            "speed_most",
            "speed_mean",
        ],
        workloads: SCHEMES,
    },
    Suite {
        name: "tpcc",
        command: "-p everbyte-bench -- consistency --skip matrix,threshold,points --output OUT",
        form: Form::Bench,
        minutes: 23,
        needs_idle: true,
        traces: &[],
        kept: &["tpmc", "tpmc_to_none", "tpmc_to_rollback_published"],
        workloads: &[],
    },
    Suite {
        name: "points",
        command: "-p everbyte-bench -- consistency --skip matrix,threshold,tpcc --repeats 15 --output OUT",
        form: Form::Bench,
        minutes: 1,
        needs_idle: true,
        traces: &[],
        kept: &["time", "time_to_tmpfs_mapped"],
        workloads: &[],
    },
    Suite {
        name: "scaling",
        command: "-p everbyte-bench -- scaling --output OUT",
        form: Form::Bench,
        minutes: 1,
        needs_idle: true,
        traces: &[],
        kept: &["time", "rate", "rate_to_one_thread", "lanes_from", "line_from", "medium_from"],
        workloads: &[],
    },
    Suite {
        name: "cache",
        command: "-p everbyte-bench -- cache --skip timed --output OUT",
        form: Form::Bench,
        minutes: 9,
        needs_idle: true,
        traces: &[],
        kept: &[
            "counted_rate_to_backing",
            "counted_rate_to_backing_at_most",
            "hits",
            "hits_simulated",
            "scm_bytes",
        ],
        workloads: &[],
    },
    Suite {
        name: "cache-clients",
        command: "-p everbyte-bench -- cache --sizes 20,50 --seconds 0.3 --output OUT",
        form: Form::Bench,
        minutes: 8,
        needs_idle: true,
        traces: &[],
        kept: &["rate", "rate_to_backing", "rate_to_one_thread", "timed_hits"],
        workloads: &[],
    },
    Suite {
        name: "layers",
        command: "-p everbyte-bench -- layers --repeats 7 --seconds 0.5 --output OUT",
        form: Form::Bench,
        minutes: 13,
        needs_idle: true,
        traces: &[],
        kept: &[
            "rate",
            "throughput",
            "rate_to_ramdisk",
            "rate_to_direct",
            "rate_to_disk_least",
            "rate_to_disk_most",
        ],
        workloads: &[],
    },
    Suite {
        name: "files",
        command: "-p everbyte-bench -- files --output OUT",
        form: Form::Bench,
        minutes: 2,
        needs_idle: true,
        traces: &[],
        kept: &[
            "time",
            "time_to_floor",
            "rate_to_tmpfs",
            "time_to_volume",
            "cpu",
            "cpu_to_floor",
            "cpu_rate_to_tmpfs",
            "cpu_to_volume",
            "durable_time",
            "p50",
            "p99",
            "p99_to_ext4",
            "fences",
            "log_bytes",
            "bytes_stored",
            "allocations",
        ],
        workloads: &[],
    },
    Suite {
        name: "mount",
        command: "-p everbyte-bench -- mount --repeats 5 --output OUT",
        form: Form::Bench,
        minutes: 9,
        needs_idle: true,
        traces: &[],
        kept: &[
            "time",
            "time_to_null",
            "time_to_plain",
            "server_cpu",
            "rate",
            "rate_to_plain",
            "rate_to_passthrough",
        ],
        workloads: &[],
    },
    Suite {
        name: "index",
        command: "-p everbyte-bench -- index --skip nodes,sizes,misses,directories \
                  --files 640000 --create-files 2560000 --threads 1,16 --seconds 1 --output OUT",
        form: Form::Bench,
        minutes: 60,
        needs_idle: true,
        traces: &[],
        kept: &["rate", "durable_rate", "rate_to_pmfs_radix", "lookups", "index_share"],
        workloads: &[],
    },
    Suite {
        name: "swap",
        command: "-p everbyte-bench -- swap --kernel-swap --repeats 5 --footprint 128 --classes s,a \
                  --except 50% --except 'FT.A, t2' --except 'FT.A, flash' --output OUT",
        form: Form::Bench,
        minutes: 40,
        needs_idle: true,
        traces: &[],
        kept: &[],
        workloads: &[],
    },
    Suite {
        name: "swap-paper",
        command: "-p everbyte-bench -- swap --kernel-swap --repeats 3 \
                  --skip slots,paging,crowded,direct,serving --classes b --except 70% --except 50% \
                  --except t2 --except flash --except cluster0 --output OUT",
        form: Form::Bench,
        minutes: 25,
        needs_idle: true,
        traces: &[],
        kept: &[],
        workloads: &[],
    },
    Suite {
        name: "media",
        command: "-p everbyte-bench -- media --output OUT",
        form: Form::Bench,
        minutes: 1,
        needs_idle: true,
        traces: &[],
        kept: &["time", "time_to_4k", "modelled_time"],
        workloads: &[],
    },
    Suite {
        name: "simulation",
        command: "-p everbyte-cli -- sim TRACES --policy hybrid,clock-migration --backing sd,hdd,ssd \
                  --csv OUT",
        form: Form::Csv,
        minutes: 1,
        needs_idle: false,
        traces: EIGHT,
        kept: &[
            "trace",
            "policy",
            "size",
            "backing",
            "hit_ratio",
            "scm_writes",
            "scm_bytes",
            "elapsed_ns",
        ],
        workloads: &[],
    },
    Suite {
        name: "wear",
        command: "-p everbyte-bench -- wear TRACES --output OUT",
        form: Form::Bench,
        minutes: 3,
        needs_idle: false,
        traces: &[],
        kept: &[],
        workloads: &[],
    },
    Suite {
        name: "policies",
        command: "-p everbyte-policy --example judge -- TRACES",
        form: Form::Csv,
        minutes: 1,
        needs_idle: false,
        traces: &[],
        kept: &[],
        workloads: &[],
    },
    Suite {
        name: "ablation",
        command: "-p everbyte-policy --example judge -- --ablation TRACES",
        form: Form::Csv,
        minutes: 1,
        needs_idle: false,
        traces: &[],
        kept: &[],
        workloads: &[],
    },
];

/// The suite with a name.
pub(crate) fn find(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}
