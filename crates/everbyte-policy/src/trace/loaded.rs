//! [`LoadedTrace`]: a trace whose pages are known, to be gone through as often as is wanted.

use std::path::{Path, PathBuf};

use super::beside::{Touch, decode_beside};
use super::error::{Problem, TraceError};
use super::input::is_standard_input;
use super::page_numbers::PageNumbers;
use super::pages::{PageLimits, PageTraceBuilder, cut};
use super::reader::{ReadOptions, TraceReader};
use super::skipped::SkippedCounts;
use crate::access::{Access, PageAddress, PageNo, PageTrace};

/// Accesses in one block of a repeated read.
const BLOCK_ACCESSES: usize = 4096;

/// Accesses that can be gone through more than once.
pub trait Accesses: Sync {
    /// Returns the address of each page number, ascending.
    fn addresses(&self) -> &[PageAddress];

    /// Returns the number of requests that the accesses are parts of.
    fn requests(&self) -> u64;

    /// Calls `each` with all accesses in the order of time, in blocks.
    ///
    /// # Errors
    /// The trace cannot be read again, or has changed.
    fn play(&self, each: &mut dyn FnMut(&[Access])) -> Result<(), TraceError>;
}

impl Accesses for PageTrace {
    fn addresses(&self) -> &[PageAddress] {
        &self.addresses
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn play(&self, each: &mut dyn FnMut(&[Access])) -> Result<(), TraceError> {
        each(&self.accesses);
        Ok(())
    }
}

/// A trace that was read once. Its accesses are in DRAM if they are few; those of a long trace are
/// read again whenever they are played, so that memory grows with the footprint, not with the length.
#[derive(Debug)]
pub struct LoadedTrace {
    /// Without accesses if they are not kept.
    pages: PageTrace,
    accesses: u64,
    again: Option<SecondRead>,
    skipped: SkippedCounts,
}

/// How a trace is read again.
#[derive(Debug)]
struct SecondRead {
    path: PathBuf,
    options: ReadOptions,
    numbers: PageNumbers,
}

impl LoadedTrace {
    /// Reads the trace at `path`, and keeps its accesses, of 12 bytes each, if there are at most
    /// `kept_max` or if it cannot be read again: standard input (`-`) and everything but a plain
    /// file. Decodes on another thread.
    ///
    /// # Errors
    /// The trace's, [`TraceError::NoRequests`] if no page is read or written, and [`Problem::TooMany`] for more pages or
    /// accesses than `limits` allow.
    pub fn load(
        path: &Path,
        options: &ReadOptions,
        limits: PageLimits,
        kept_max: u64,
    ) -> Result<Self, TraceError> {
        let mut reader = TraceReader::open(path, options)?;
        let is_there_again = path.is_file() && !is_standard_input(path);
        // A pipe cannot be read again, so all of its accesses are kept.
        let kept_max = if is_there_again { kept_max } else { u64::MAX };
        Self::read(&mut reader, options, limits, kept_max, path)
    }

    /// Reads all of `reader`, whose source cannot be read again, and keeps its accesses. Decodes on
    /// another thread.
    ///
    /// # Errors
    /// As [`LoadedTrace::load`].
    pub fn of_reader(reader: &mut TraceReader, limits: PageLimits) -> Result<Self, TraceError> {
        Self::read(reader, &ReadOptions::default(), limits, u64::MAX, Path::new(""))
    }

    fn read(
        reader: &mut TraceReader,
        options: &ReadOptions,
        limits: PageLimits,
        kept_max: u64,
        path: &Path,
    ) -> Result<Self, TraceError> {
        let mut builder = PageTraceBuilder::keeping(limits, kept_max);
        decode_beside(reader, |touch| builder.touch(touch))?;
        let (pages, accesses, numbers) = builder.finish_with_numbers();
        if accesses == 0 {
            return Err(reader.no_requests());
        }
        let skipped = *reader.skipped();
        // With the detected format: a second read must not detect another one in a changed file.
        let options = ReadOptions { format: Some(reader.format()), ..*options };
        let again = SecondRead { path: path.to_owned(), options, numbers };
        Ok(Self { pages, accesses, again: (accesses > kept_max).then_some(again), skipped })
    }

    /// Returns the number of accesses.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Returns the lines and records without a request.
    #[must_use]
    pub fn skipped(&self) -> &SkippedCounts {
        &self.skipped
    }

    /// Returns true if the accesses are in DRAM.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.again.is_none()
    }
}

impl Accesses for LoadedTrace {
    fn addresses(&self) -> &[PageAddress] {
        &self.pages.addresses
    }

    fn requests(&self) -> u64 {
        self.pages.requests
    }

    fn play(&self, each: &mut dyn FnMut(&[Access])) -> Result<(), TraceError> {
        let Some(again) = &self.again else { return self.pages.play(each) };
        let mut reader = TraceReader::open(&again.path, &again.options)?;
        let mut block = Vec::with_capacity(BLOCK_ACCESSES);
        let mut played = 0;
        decode_beside(&mut reader, |touch: &Touch| {
            cut(touch, |address, access| {
                let page = PageNo(again.numbers.known(address).ok_or(Problem::Changed)?);
                block.push(Access { page, ..access });
                Ok(())
            })?;
            if played + block.len() as u64 > self.accesses {
                return Err(Problem::Changed);
            }
            if block.len() >= BLOCK_ACCESSES {
                played += block.len() as u64;
                each(&block);
                block.clear();
            }
            Ok(())
        })?;
        each(&block);
        match played + block.len() as u64 == self.accesses {
            true => Ok(()),
            false => Err(reader.wrong_at(reader.at(), Problem::Changed)),
        }
    }
}

/// Reads all of a trace and cuts it into pages. Decodes on another thread.
///
/// # Errors
/// The trace's, and [`Problem::TooMany`] for more pages or accesses than `limits` allow.
pub fn read_pages(reader: &mut TraceReader, limits: PageLimits) -> Result<PageTrace, TraceError> {
    let mut builder = PageTraceBuilder::new(limits);
    decode_beside(reader, |touch| builder.touch(touch))?;
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::sim::{Kind, Spec, replay};
    use crate::trace::{CsvWriter, Request, RequestOp};

    const LIMITS: PageLimits = PageLimits { accesses_max: 1 << 20, pages_max: 1 << 20 };

    fn written(requests: &[(u8, bool, u64, u64)]) -> tempfile::NamedTempFile {
        let mut csv = CsvWriter::new(Vec::new()).unwrap();
        for &(file, write, offset, len) in requests {
            let op = if write { RequestOp::Write } else { RequestOp::Read };
            let request = Request { time_ns: 0, op, file: 0, offset, len };
            csv.write(&request, &file.to_string()).unwrap();
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&csv.finish().unwrap()).unwrap();
        file
    }

    fn load(file: &tempfile::NamedTempFile, kept_max: u64) -> LoadedTrace {
        LoadedTrace::load(file.path(), &ReadOptions::default(), LIMITS, kept_max).unwrap()
    }

    fn requests() -> impl Strategy<Value = Vec<(u8, bool, u64, u64)>> {
        let request = (0..3_u8, any::<bool>(), 0..400_000_u64, 1..20_000_u64);
        prop::collection::vec(request, 1..300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn second_read_equals_the_kept_trace(requests in requests(), pages in 2..120_u32) {
            let file = written(&requests);
            let (kept, again) = (load(&file, u64::MAX), load(&file, 0));
            prop_assert!(kept.is_kept() && !again.is_kept());
            prop_assert_eq!(again.pages.accesses.capacity(), 0);
            for kind in Kind::ALL {
                let spec = Spec::new(pages).unwrap();
                let outcomes = [&kept, &again].map(|trace| replay(kind, &spec, trace).unwrap());
                prop_assert_eq!(&outcomes[0], &outcomes[1], "{}", kind);
            }
        }
    }

    #[test]
    fn trace_changed_between_reads_is_an_error() {
        let spec = Spec::new(2).unwrap();
        let is_changed = |before: &[_], after: &[_]| {
            let (file, other) = (written(before), written(after));
            let trace = load(&file, 0);
            std::fs::copy(other.path(), file.path()).unwrap();
            replay(Kind::Lru, &spec, &trace).map_err(|error| error.to_string())
        };
        let (one, two) = ((0, false, 0, 8192), (0, true, 99_999, 1));
        assert!(is_changed(&[one, two], &[one, two]).is_ok());
        for (before, after) in [(&[one, two][..], &[one][..]), (&[one], &[one, two])] {
            let error = is_changed(before, after).unwrap_err();
            assert!(error.contains("the trace changed while it was in use"), "{error}");
        }
        let error = is_changed(&[one], &[one, one]).unwrap_err();
        assert!(error.contains("changed"), "{error}");
    }

    /// A policy that knows the future has room for as many accesses as there were.
    #[test]
    fn no_more_is_played_than_there_was() {
        let one = (0, false, 0, 8192);
        let (file, grown) = (written(&[one; 3000]), written(&[one; 9000]));
        let trace = load(&file, 0);
        std::fs::copy(grown.path(), file.path()).unwrap();
        let mut played = 0;
        let error = trace.play(&mut |accesses| played += accesses.len()).unwrap_err();
        assert!(error.to_string().contains("line 3002: the trace changed"), "{error}");
        assert!(played <= 6000, "{played}");
    }
}
