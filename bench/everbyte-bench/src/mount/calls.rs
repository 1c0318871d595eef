//! Single system calls on a mount, by one thread.
//!
//! Invariants: files and buffers exist before the clock starts. The files of a slice are removed after the clock
//! stops. Each slice has its own names.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Advice, AtFlags, Mode, OFlags};

use super::server::Server;
use crate::measure::thread_cpu;
use crate::stats::as_f64;

/// Bytes of the file that is read and written.
const FILE_BYTES: u64 = 16 << 20;
/// Bytes that small reads are of: few, so that they measure requests and not memory.
const SMALL_READ_BYTES: u64 = 256 << 10;
/// Bytes of a small read, and of a large read or write.
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 128 << 10;
const FILE: &str = "file";
/// Calls between looks at the clock.
const STRIDE: usize = 16;

/// A call that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Attributes by path.
    Stat,
    /// 4 KiB at a random place.
    Pread,
    /// Opening and closing a file.
    OpenClose,
    /// Creating an empty file and closing it.
    Create,
    /// 128 KiB after those before.
    Write,
    /// 128 KiB after those before, of what the page cache has not.
    Read,
}

/// Times of one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) calls: u64,
    pub(crate) elapsed: Duration,
    /// Processor time of the caller.
    pub(crate) cpu: Duration,
    pub(crate) server_cpu_ns: u64,
}

/// A mount with the files that the calls need.
pub(crate) struct Client<'a> {
    server: &'a Server,
    root: OwnedFd,
    file: OwnedFd,
    /// Files that were created so far.
    created: AtomicU64,
}

impl Call {
    pub(crate) const ALL: [Self; 6] =
        [Self::Stat, Self::Pread, Self::OpenClose, Self::Create, Self::Write, Self::Read];

    /// Its name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Pread => "pread 4K",
            Self::OpenClose => "open and close",
            Self::Create => "create and close",
            Self::Write => "sequential write 128K",
            Self::Read => "sequential read 128K",
        }
    }
}

impl Sample {
    pub(crate) fn ns_per_call(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / as_f64(self.calls)
    }

    pub(crate) fn cpu_ns_per_call(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / as_f64(self.calls)
    }

    pub(crate) fn server_ns_per_call(&self) -> f64 {
        as_f64(self.server_cpu_ns) / as_f64(self.calls)
    }
}

fn open(root: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, name, flags, Mode::from_raw_mode(0o644));
    file.with_context(|| format!("cannot open {name}"))
}

impl<'a> Client<'a> {
    /// Makes the files.
    ///
    /// # Errors
    /// The mount's.
    pub(crate) fn new(server: &'a Server) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&server.dir, flags, Mode::empty())?;
        let made = if server.kind.keeps() { OFlags::CREATE } else { OFlags::empty() };
        let file = open(&root, FILE, made)?;
        let client = Self { server, root, file, created: AtomicU64::new(0) };
        let data = vec![7; LARGE_BYTES];
        for at in (0..FILE_BYTES).step_by(LARGE_BYTES) {
            client.write(&data, at)?;
        }
        Ok(client)
    }

    fn write(&self, data: &[u8], at: u64) -> Result<()> {
        let done = rustix::io::pwrite(&self.file, data, at)?;
        ensure!(done == data.len(), "{done} of {} bytes were written", data.len());
        Ok(())
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<()> {
        let done = rustix::io::pread(&self.file, &mut *into, at)?;
        ensure!(done == into.len(), "{done} of {} bytes were read", into.len());
        Ok(())
    }

    /// Makes calls for about `slice`.
    ///
    /// # Errors
    /// The first call that fails.
    pub(crate) fn measure(&self, call: Call, slice: Duration) -> Result<Sample> {
        let mut hand = Hand::new(self);
        let first = self.created.load(Ordering::Relaxed);
        let server_start = self.server.cpu_ns()?;
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        let mut calls = 0;
        while start.elapsed() < slice {
            for _ in 0..STRIDE {
                hand.make(call)?;
            }
            calls += STRIDE as u64;
        }
        let (elapsed, cpu) = (start.elapsed(), thread_cpu().saturating_sub(cpu_start));
        let server_cpu_ns = self.server.cpu_ns()? - server_start;
        // Where nothing is kept, there is nothing to remove.
        let made = if self.server.kind.keeps() {
            first..self.created.load(Ordering::Relaxed)
        } else {
            0..0
        };
        for serial in made {
            let name = new_name(serial);
            rustix::fs::unlinkat(&self.root, &name, AtFlags::empty())
                .with_context(|| format!("cannot remove {name}"))?;
        }
        Ok(Sample { calls, elapsed, cpu, server_cpu_ns })
    }
}

fn new_name(serial: u64) -> String {
    format!("new{serial}")
}

/// The caller in one slice.
struct Hand<'a> {
    client: &'a Client<'a>,
    buffer: Vec<u8>,
    rng: SmallRng,
    at: u64,
}

impl<'a> Hand<'a> {
    fn new(client: &'a Client<'a>) -> Self {
        Self { client, buffer: vec![7; LARGE_BYTES], rng: SmallRng::seed_from_u64(1), at: 0 }
    }

    /// The place of the next large read or write.
    fn next(&mut self) -> u64 {
        let at = self.at;
        self.at = (at + LARGE_BYTES as u64) % FILE_BYTES;
        at
    }

    fn make(&mut self, call: Call) -> Result<()> {
        let client = self.client;
        match call {
            Call::Stat => {
                rustix::fs::statat(&client.root, FILE, AtFlags::empty())?;
                Ok(())
            }
            Call::Pread => {
                let blocks = SMALL_READ_BYTES / SMALL_BYTES as u64;
                let at = self.rng.random_range(0..blocks) * SMALL_BYTES as u64;
                client.read(&mut self.buffer[..SMALL_BYTES], at)
            }
            Call::OpenClose => open(&client.root, FILE, OFlags::empty()).map(drop),
            Call::Create => {
                let serial = client.created.fetch_add(1, Ordering::Relaxed);
                let flags = OFlags::CREATE | OFlags::EXCL;
                open(&client.root, &new_name(serial), flags).map(drop)
            }
            Call::Write => {
                let at = self.next();
                client.write(&self.buffer, at)
            }
            Call::Read => {
                let at = self.next();
                if at == 0 {
                    rustix::fs::fadvise(&client.file, 0, None, Advice::DontNeed)?;
                }
                client.read(&mut self.buffer, at)
            }
        }
    }
}
