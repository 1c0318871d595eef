//! Single system calls on a mount, by one thread.
//!
//! Invariants: files and buffers exist before the clock starts. The files of a slice are removed after the clock
//! stops. Each slice has its own names.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::Advice;

use super::server::Server;
use crate::index::directory::{Directory, open_directory};
use crate::index::target::Target;
use crate::measure::thread_cpu;
use crate::stats::as_f64;

/// Bytes of the file.
const FILE_BYTES: u64 = 16 << 20;
/// Range of small reads in bytes: small, so that they measure requests and not memory.
const SMALL_READ_BYTES: u64 = 256 << 10;
/// Bytes of a small read, and of a large read or write.
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 128 << 10;
const FILE: &str = "file";
/// Calls between two reads of the clock.
const STRIDE: usize = 16;

/// A measured call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Attributes by path.
    Stat,
    /// 4 KiB at a random offset.
    Pread,
    OpenClose,
    /// Creates an empty file and closes it.
    CreateClose,
    /// The next 128 KiB.
    Write,
    /// The next 128 KiB, absent from the page cache.
    Read,
}

/// Times of one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    calls: u64,
    pub(crate) elapsed: Duration,
    /// Processor time of the caller.
    pub(crate) cpu: Duration,
    pub(crate) server_cpu: Duration,
}

/// A mount with the files of the calls.
pub(crate) struct Client<'a> {
    server: &'a Server,
    target: Directory,
    file: OwnedFd,
    /// Number of created files.
    created: AtomicU64,
}

impl Call {
    /// All calls with their names in the results.
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Stat, "stat"),
        (Self::Pread, "pread 4K"),
        (Self::OpenClose, "open and close"),
        (Self::CreateClose, "create and close"),
        (Self::Write, "sequential write 128K"),
        (Self::Read, "sequential read 128K"),
    ];
}

impl Sample {
    /// Nanoseconds per call of a time of the slice.
    pub(crate) fn ns_per_call(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / as_f64(self.calls)
    }
}

impl<'a> Client<'a> {
    /// Creates the files.
    ///
    /// # Errors
    /// The mount's.
    pub(crate) fn new(server: &'a Server) -> Result<Self> {
        let target = Directory::over(open_directory(&server.dir)?);
        let keeps = server.kind.keeps();
        let file = if keeps { target.create(FILE)? } else { target.open(FILE)? };
        let data = vec![7; LARGE_BYTES];
        for at in (0..FILE_BYTES).step_by(LARGE_BYTES) {
            target.write(&file, at, &data)?;
        }
        Ok(Self { server, target, file, created: AtomicU64::new(0) })
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let done = self.target.read(&self.file, at, into)?;
        ensure!(done == into.len(), "{done} of {} bytes were read", into.len());
        Ok(())
    }

    /// Makes calls for about `slice`.
    ///
    /// # Errors
    /// The first failure of a call.
    pub(crate) fn measure(&self, call: Call, slice: Duration) -> Result<Sample> {
        let (mut buffer, mut rng) = (vec![7; LARGE_BYTES], SmallRng::seed_from_u64(1));
        let mut offsets = (0..FILE_BYTES).step_by(LARGE_BYTES).cycle();
        let first = self.created.load(Ordering::Relaxed);
        let server_start = self.server.cpu_ns()?;
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        let mut calls = 0;
        while calls == 0 || start.elapsed() < slice {
            for _ in 0..STRIDE {
                match call {
                    Call::Stat => drop(self.target.stat(FILE)?),
                    Call::Pread => {
                        let blocks = SMALL_READ_BYTES / SMALL_BYTES as u64;
                        let at = rng.random_range(0..blocks) * SMALL_BYTES as u64;
                        self.read(at, &mut buffer[..SMALL_BYTES])?;
                    }
                    Call::OpenClose => drop(self.target.open(FILE)?),
                    Call::CreateClose => {
                        let serial = self.created.fetch_add(1, Ordering::Relaxed);
                        drop(self.target.create(&new_name(serial))?);
                    }
                    Call::Write => {
                        self.target.write(&self.file, offsets.next().unwrap_or(0), &buffer)?;
                    }
                    Call::Read => {
                        let at = offsets.next().unwrap_or(0);
                        if at == 0 {
                            rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?;
                        }
                        self.read(at, &mut buffer)?;
                    }
                }
            }
            calls += STRIDE as u64;
        }
        let (elapsed, cpu) = (start.elapsed(), thread_cpu().saturating_sub(cpu_start));
        let server_cpu = Duration::from_nanos(self.server.cpu_ns()? - server_start);
        // The empty file system keeps no file that could be removed.
        if self.server.kind.keeps() {
            let mut created = first..self.created.load(Ordering::Relaxed);
            created.try_for_each(|serial| self.target.delete(&new_name(serial)))?;
        }
        Ok(Sample { calls, elapsed, cpu, server_cpu })
    }
}

fn new_name(serial: u64) -> String {
    format!("new{serial}")
}
