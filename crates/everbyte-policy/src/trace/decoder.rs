//! The decoder of each format.

use super::column_lines::ColumnLines;
use super::decode::{LineFormat, RecordFormat};
use super::format::Format;
use super::lcs::Lcs;
use super::{
    alibaba, blkparse, csv, disksim, fio, fiu, kvcache, lirs, mobibench, msr, oracle_general, spc,
    systor, tencent, twitter, vscsi,
};

/// The decoder of a trace.
pub(crate) enum Decoder {
    Lines(Box<dyn LineFormat + Send>),
    /// With the bytes of a header and of a record.
    Records(Box<dyn RecordFormat + Send>, usize, usize),
    /// All was read.
    Ended,
}

impl Decoder {
    /// Makes the decoder of a trace with this beginning; `None` if that lacks the header of the format.
    pub(crate) fn new(format: Format, head: &[u8], assumes_reads: bool) -> Option<Self> {
        Some(match format {
            Format::VscsiV1 => Self::Records(Box::new(vscsi::Vscsi::V1), 0, vscsi::V1_BYTES),
            Format::VscsiV2 => Self::Records(Box::new(vscsi::Vscsi::V2), 0, vscsi::V2_BYTES),
            Format::OracleGeneral => {
                let records = oracle_general::OracleGeneral;
                Self::Records(Box::new(records), 0, oracle_general::RECORD_BYTES)
            }
            Format::Lcs => {
                let lcs = Lcs::new(head, assumes_reads)?;
                let (header, record) = (lcs.header_bytes(), lcs.record_bytes());
                Self::Records(Box::new(lcs), header, record)
            }
            Format::Csv => Self::Lines(Box::new(csv::Csv)),
            Format::Msr => Self::Lines(Box::<msr::Msr>::default()),
            Format::Blkparse => Self::Lines(Box::new(blkparse::Blkparse::new(head))),
            Format::Fio => Self::Lines(Box::<fio::Fio>::default()),
            Format::Spc => Self::Lines(Box::new(spc::Spc)),
            Format::Disksim => Self::Lines(Box::new(disksim::Disksim)),
            Format::Mobibench => Self::Lines(Box::<mobibench::Mobibench>::default()),
            Format::Alibaba => Self::Lines(Box::new(alibaba::Alibaba)),
            Format::Tencent => Self::Lines(Box::new(tencent::Tencent)),
            Format::Fiu => Self::Lines(Box::<fiu::Fiu>::default()),
            Format::Systor => Self::Lines(Box::new(systor::Systor)),
            Format::Twitter => Self::Lines(Box::new(twitter::Twitter)),
            Format::Kvcache => Self::Lines(Box::<kvcache::Kvcache>::default()),
            Format::Lirs => Self::Lines(Box::new(lirs::Lirs)),
            Format::Columns(columns) => Self::Lines(Box::new(ColumnLines::new(columns))),
        })
    }
}
