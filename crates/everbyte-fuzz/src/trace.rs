//! Readers of traces, each fed with any bytes.
//!
//! Oracle: no panic and no endless loop. An accepted request keeps within the limits. A trace that
//! was read, written in our own format and read again is the same. Cut into pages it touches as
//! many bytes as it requests, and limits on pages hold. A trace of detected format has the counts
//! of a second, slow reader.

use std::io::Cursor;

use everbyte_policy::trace::{
    CsvWriter, Format, OFFSET_MAX, PageLimits, PageTraceBuilder, ReadOptions, Request, RequestOp,
    TraceReader,
};

use crate::trace_reference::{Counts, counts};

/// Most inspected requests: a compressed trace may hold any number.
const REQUESTS_MAX: usize = 10_000;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Limits of a trace in DRAM.
const LIMITS: PageLimits = PageLimits { accesses_max: 20_000, pages_max: 1000 };

/// Reads `bytes` as a trace of `format`, or of the detected format.
///
/// # Panics
/// If a promise is broken.
fn trace(format: Option<Format>, bytes: &[u8]) {
    let options = ReadOptions { format, assume_reads: true, request_bytes_max: REQUEST_BYTES_MAX };
    let source = Cursor::new(bytes.to_vec());
    let Ok(mut reader) = TraceReader::new("trace", source, &options) else { return };
    // Without a given format, any detected one is right here. `trace_detection` judges it.
    assert!(format.is_none_or(|format| format == reader.format()));
    let mut requests = Vec::new();
    for request in reader.by_ref().take(REQUESTS_MAX) {
        match request {
            Ok(request) => requests.push(request),
            // Any bytes may be refused. The error names the file, and ends the reader.
            Err(error) => assert!(error.to_string().starts_with("trace")),
        }
    }
    let names: Vec<String> = requests
        .iter()
        .map(|request| reader.files().name(request.file).expect("its file has a name").to_owned())
        .collect();
    requests.iter().for_each(assert_limits);
    assert_comes_back(&requests, &names);
    assert_pages(&requests);
}

fn assert_limits(request: &Request) {
    let Request { op, offset, len, .. } = *request;
    // A flush has no range.
    if op != RequestOp::Flush {
        assert!(offset.checked_add(len).is_some_and(|end| end <= OFFSET_MAX), "{request:?}");
        // A trim has no payload, and one trim may cover a whole disk.
        assert!(op == RequestOp::Trim || len <= REQUEST_BYTES_MAX, "{request:?}");
    }
}

fn assert_comes_back(requests: &[Request], names: &[String]) {
    let mut csv = CsvWriter::new(Vec::new()).unwrap();
    for (request, name) in requests.iter().zip(names) {
        csv.write(request, name).unwrap();
    }
    let options = ReadOptions {
        format: Some(Format::Csv),
        request_bytes_max: REQUEST_BYTES_MAX,
        ..ReadOptions::default()
    };
    let text = Cursor::new(csv.finish().unwrap());
    let again: Vec<Request> = TraceReader::new("again", text, &options)
        .unwrap()
        .map(|request| request.expect("what was written can be read"))
        .collect();
    assert_eq!(again.len(), requests.len());
    for (request, again) in requests.iter().zip(again) {
        // Files are numbered by appearance in each reader, so numbers of files may differ.
        let facts = |r: &Request| (r.time_ns, r.op, r.offset, r.len);
        assert_eq!(facts(&again), facts(request));
    }
}

fn assert_pages(requests: &[Request]) {
    let mut builder = PageTraceBuilder::new(LIMITS);
    let mut bytes = 0;
    for request in requests {
        match builder.push(request) {
            // Neither touches bytes, so neither adds accesses.
            Ok(()) if matches!(request.op, RequestOp::Flush | RequestOp::Trim) => {}
            Ok(()) => bytes += request.len,
            // The result is then undefined.
            Err(_) => return,
        }
    }
    let pages = builder.finish();
    assert_eq!(pages.accesses.iter().map(|access| u64::from(access.len)).sum::<u64>(), bytes);
    assert!(pages.accesses.len() as u64 <= LIMITS.accesses_max);
    assert!(pages.pages() as u64 <= LIMITS.pages_max);
    assert!(pages.addresses.is_sorted_by(|a, b| a < b));
    // Policies index arrays by page numbers, so a gap would waste memory.
    let mut is_used = vec![false; pages.pages()];
    for access in &pages.accesses {
        assert!(access.len > 0 && u32::from(access.start) + u32::from(access.len) <= 4096);
        is_used[access.page.0 as usize] = true;
    }
    assert!(is_used.into_iter().all(|used| used), "pages are numbered without a gap");
}

/// Largest input with a detection from all of it.
const SAMPLE_BYTES: usize = 60_000;

/// Detects the format of `bytes`: they are refused, or have the counts of the reference.
///
/// # Panics
/// If the counts differ.
pub fn trace_detection(bytes: &[u8]) {
    let options =
        ReadOptions { format: None, assume_reads: true, request_bytes_max: REQUEST_BYTES_MAX };
    // Compressed input is not compared: the reference decompresses nothing.
    let packed: [&[u8]; 4] = [b"\x1F\x8B", b"\xFD7zXZ", b"\x28\xB5\x2F\xFD", b"\x2A\x4D\x18"];
    // The first byte of a skippable frame of zstd varies, and the rest of its magic follows.
    let is_packed =
        packed.iter().any(|magic| bytes.starts_with(magic) || bytes.get(1..4) == Some(magic));
    if is_packed || bytes.len() > SAMPLE_BYTES {
        return;
    }
    let source = Cursor::new(bytes.to_vec());
    let Ok(mut reader) = TraceReader::new("trace", source, &options) else { return };
    let mut found: Counts = [0; 6];
    for (number, request) in reader.by_ref().enumerate() {
        // The reader may refuse a line that the simple reference takes, so counts are compared only
        // for traces without an error.
        let Ok(Request { op, len, .. }) = request else { return };
        // The reference counts all requests, so a cut trace cannot be compared.
        if number > REQUESTS_MAX {
            return;
        }
        match op {
            RequestOp::Read => {
                found[0] += 1;
                found[1] += len;
            }
            // A zeroing counts as a write of its bytes, as in the reference.
            RequestOp::Write | RequestOp::Zero => {
                found[2] += 1;
                found[3] += len;
            }
            RequestOp::Flush => found[4] += 1,
            RequestOp::Trim => found[5] += 1,
        }
    }
    let format = reader.format();
    assert_eq!(counts(format, bytes, REQUEST_BYTES_MAX), Some(found), "{format}");
}

macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident => $format:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Panics
            /// If a promise is broken.
            pub fn $name(bytes: &[u8]) {
                trace($format, bytes);
            }
        )*
    };
}

targets! {
    /// Reads `bytes` in the detected format, perhaps compressed.
    trace_any => None;
    /// Reads `bytes` as our own format.
    trace_csv => Some(Format::Csv);
    /// Reads `bytes` as vscsi records of version 1.
    trace_vscsi1 => Some(Format::VscsiV1);
    /// Reads `bytes` as vscsi records of version 2.
    trace_vscsi2 => Some(Format::VscsiV2);
    /// Reads `bytes` as a trace of MSR Cambridge.
    trace_msr => Some(Format::Msr);
    /// Reads `bytes` as output of blkparse.
    trace_blkparse => Some(Format::Blkparse);
    /// Reads `bytes` as a log of fio.
    trace_fio => Some(Format::Fio);
    /// Reads `bytes` as an SPC trace.
    trace_spc => Some(Format::Spc);
    /// Reads `bytes` as an ASCII trace of DiskSim or MQSim.
    trace_disksim => Some(Format::Disksim);
    /// Reads `bytes` as libCacheSim's oracleGeneral records.
    trace_oracle_general => Some(Format::OracleGeneral);
    /// Reads `bytes` as system calls of Mobibench.
    trace_mobibench => Some(Format::Mobibench);
    /// Reads `bytes` as a block trace of Florida International University.
    trace_fiu => Some(Format::Fiu);
    /// Reads `bytes` as a key-value trace of CacheLib.
    trace_kvcache => Some(Format::Kvcache);
    /// Reads `bytes` as libCacheSim's records with a header.
    trace_lcs => Some(Format::Lcs);
}
