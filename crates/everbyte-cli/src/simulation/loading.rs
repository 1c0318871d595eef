//! Reading traces for simulations, and the fingerprints of their bytes.
//!
//! Invariants: a fingerprint covers the simulated bytes. The bytes of a pipe pass through the
//! fingerprint. A file is read a second time, and a change between the two reads is an error.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use everbyte_path::Kind;
use everbyte_policy::trace::{LoadedTrace, PageLimits, ReadOptions, SkippedKind, TraceReader};

use super::task::Fingerprint;
use crate::output;

/// A loaded trace.
pub(crate) struct LoadedSource {
    pub(crate) trace: LoadedTrace,
    pub(crate) fingerprint: Fingerprint,
}

/// Reads a trace. Its accesses are kept in DRAM if there are `kept_max` at most.
///
/// # Errors
/// The trace's, or it has no requests.
pub(crate) fn load(
    path: &Path,
    options: &ReadOptions,
    kept_max: u64,
) -> anyhow::Result<LoadedTrace> {
    let trace = LoadedTrace::load(path, options, PageLimits::default(), kept_max)?;
    note_skipped(&path.display().to_string(), &trace, options);
    Ok(trace)
}

/// As [`load`], with the fingerprint of the bytes.
///
/// # Errors
/// As [`load`], or the file changed between the two reads.
pub(crate) fn load_with_fingerprint(
    path: &Path,
    options: &ReadOptions,
    kept_max: u64,
) -> anyhow::Result<LoadedSource> {
    if path.as_os_str() == "-" {
        return load_stream("standard input", io::stdin(), options);
    }
    let context = || format!("{}: cannot be read", path.display());
    // A file is read twice, for the accesses and for the fingerprint, so its version is compared
    // around both.
    let before = match everbyte_path::look(path) {
        Ok(found) if found.kind() == Kind::File => version_of(found.metadata()),
        // Pipes and devices can be read once only: the fingerprint is taken on the way.
        Ok(_) => {
            let (source, _) = everbyte_path::open_input(path).with_context(context)?;
            return load_stream(&path.display().to_string(), source, options);
        }
        // The reader has the words for a missing file.
        Err(error) => {
            load(path, options, kept_max)?;
            return Err(error).with_context(context);
        }
    };
    let trace = load(path, options, kept_max)?;
    let fingerprint = Fingerprint::of(path)?;
    // By the path: a replaced file has another inode, a changed one another time or size.
    let after = everbyte_path::look(path).with_context(context)?;
    if before != version_of(after.metadata()) {
        bail!("{}: the trace changed while it was in use", path.display());
    }
    Ok(LoadedSource { trace, fingerprint })
}

/// Prints a note about objects too large for a cache.
fn note_skipped(name: &str, trace: &LoadedTrace, options: &ReadOptions) {
    let large = trace.skipped().of(SkippedKind::LargeObject);
    // Only skips that an option can change are worth a note. `sim info` shows all.
    if large > 0 {
        let max = options.request_bytes_max;
        output::complain(format!(
            "note: {name}: {large} requests for objects of more than {max} bytes are skipped; \
             --request-max raises the limit"
        ));
    }
}

/// The version of a file: every change gives another one.
fn version_of(file: &Metadata) -> [i128; 7] {
    [
        file.dev().into(),
        file.ino().into(),
        file.size().into(),
        file.mtime().into(),
        file.mtime_nsec().into(),
        file.ctime().into(),
        file.ctime_nsec().into(),
    ]
}

/// Reads a trace once, from a pipe or a device.
fn load_stream(
    name: &str,
    source: impl Read + Send + 'static,
    options: &ReadOptions,
) -> anyhow::Result<LoadedSource> {
    let passed = Arc::new(Mutex::new(Fingerprint::default()));
    let source = FingerprintReader { source, passed: Arc::clone(&passed) };
    let mut reader = TraceReader::new(name, source, options)?;
    let trace = LoadedTrace::of_reader(&mut reader, PageLimits::default())?;
    note_skipped(name, &trace, options);
    // After the reader has met the end, so the fingerprint covers all bytes.
    let fingerprint = passed.lock().map(|passed| *passed).unwrap_or_default();
    Ok(LoadedSource { trace, fingerprint })
}

/// A source. Its bytes pass through a fingerprint.
struct FingerprintReader<R> {
    source: R,
    passed: Arc<Mutex<Fingerprint>>,
}

impl<R: Read> Read for FingerprintReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        // The reader runs on one thread. A poisoned lock follows a panic that ends the command
        // anyway.
        if let Ok(mut passed) = self.passed.lock() {
            passed.add(&buffer[..read]);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use everbyte_policy::trace::Accesses;

    use super::*;

    #[test]
    fn named_pipe_with_a_late_writer_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let path = pipe.clone();
        let writing = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::fs::write(path, "0,W,a,0,512\n")
        });
        let loaded = load_with_fingerprint(&pipe, &ReadOptions::default(), 0).unwrap();
        assert_eq!(loaded.trace.requests(), 1);
        writing.join().unwrap().unwrap();
    }

    #[test]
    fn stream_and_file_have_one_fingerprint() {
        let text = "0,W,a,0,512\n1,R,a,8192,4096\n".repeat(5000);
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        for bytes in [text.as_bytes(), &packed] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            let options = ReadOptions::default();
            let from_file = load_with_fingerprint(file.path(), &options, 0).unwrap();
            let source = Cursor::new(bytes.to_vec());
            let from_stream = load_stream("s", source, &options).unwrap();
            assert_eq!(from_file.fingerprint, from_stream.fingerprint);
            assert_eq!(from_file.fingerprint, Fingerprint::of(file.path()).unwrap());
            assert_eq!(from_file.trace.requests(), from_stream.trace.requests());
        }
    }
}
