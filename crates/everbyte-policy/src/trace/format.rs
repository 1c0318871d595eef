//! The formats of traces and their names. Knows them only by name.

use std::fmt;
use std::str::FromStr;

use super::columns::Columns;

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// Our own: lines of `time_ns,op,file,offset,len`.
    Csv,
    /// VMware's vscsiStats records, version 1.
    VscsiV1,
    /// The same, version 2.
    VscsiV2,
    /// The servers of Microsoft Research Cambridge.
    Msr,
    /// The text that `blkparse` makes of `blktrace` recordings.
    Blkparse,
    /// fio's I/O logs, versions 2 and 3.
    Fio,
    /// The Storage Performance Council's, as in the UMass repository.
    Spc,
    /// DiskSim's ASCII traces, and MQSim's, which are like them.
    Disksim,
    /// libCacheSim's binary records. They do not distinguish reads from writes.
    OracleGeneral,
    /// The system calls of Mobibench.
    Mobibench,
    /// The block traces of Alibaba Cloud.
    Alibaba,
    /// The block traces of Tencent's cloud. Has to be named.
    Tencent,
    /// The block traces of Florida International University.
    Fiu,
    /// The block traces of SYSTOR '17.
    Systor,
    /// The cache traces of Twitter.
    Twitter,
    /// The key-value traces of Meta's CacheLib.
    Kvcache,
    /// The block numbers of the LIRS paper. They do not distinguish reads from writes. The caller
    /// must name this format.
    Lirs,
    /// libCacheSim's binary records with a header. Some do not distinguish reads from writes.
    Lcs,
    /// Text with these columns, which nothing but the caller can know.
    Columns(Columns),
}

/// The beginning of the name of a format that is given by its columns.
const COLUMNS: &str = "columns:";

impl Format {
    /// All formats with a fixed name, which are all but [`Format::Columns`].
    pub const ALL: [Self; 18] = [
        Self::Csv,
        Self::VscsiV1,
        Self::VscsiV2,
        Self::Msr,
        Self::Blkparse,
        Self::Fio,
        Self::Spc,
        Self::Disksim,
        Self::OracleGeneral,
        Self::Mobibench,
        Self::Alibaba,
        Self::Tencent,
        Self::Fiu,
        Self::Systor,
        Self::Twitter,
        Self::Kvcache,
        Self::Lirs,
        Self::Lcs,
    ];

    /// Returns its name, as it is displayed and parsed, but for the columns of [`Format::Columns`].
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::VscsiV1 => "vscsi-v1",
            Self::VscsiV2 => "vscsi-v2",
            Self::Msr => "msr",
            Self::Blkparse => "blkparse",
            Self::Fio => "fio",
            Self::Spc => "spc",
            Self::Disksim => "disksim",
            Self::OracleGeneral => "oracle-general",
            Self::Mobibench => "mobibench",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Fiu => "fiu",
            Self::Systor => "systor",
            Self::Twitter => "twitter",
            Self::Kvcache => "kvcache",
            Self::Lirs => "lirs",
            Self::Lcs => "lcs",
            Self::Columns(_) => "columns",
        }
    }

    /// Returns all names, for people.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Columns(columns) => write!(f, "{COLUMNS}{columns}"),
            named => f.write_str(named.name()),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(columns) = text.strip_prefix(COLUMNS) {
            return columns.parse().map(Self::Columns);
        }
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of the formats {}", Self::names()))
    }
}
