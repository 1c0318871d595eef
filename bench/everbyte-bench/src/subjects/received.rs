//! Payloads that come by a socket, and the ways they take into memory: through a buffer that stays
//! in the processor's cache, or straight to their place.
//!
//! Each request is sent and received by the same thread, so the processor time of a request is that of
//! both sides; the sending side is the same for all.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};

use super::floor::nameless_file;
use super::raw_memory::RawMemory;
use crate::subject::{Session, Subject};
use crate::workload::Workload;

/// Longest payload that a socket takes before anything of it is received, with room to spare.
const PAYLOAD_MAX: usize = 64 << 10;

/// The way of a payload from the socket to its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Received into a buffer, and from there by non-temporal stores; then a fence.
    Buffered,
    /// Received into its place; then its lines are written back, and a fence.
    StraightFlushed,
    /// Received into its place: enough where the processor's caches are persistent.
    Straight,
}

/// Memory that payloads are received into.
pub(crate) struct Received {
    /// The same file twice: as memory that the system stores to, and as a medium.
    memory: RawMemory,
    medium: Mapped,
    way: Way,
}

impl Received {
    /// Maps `size_bytes` of a new file in `folder`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(folder: &Path, size_bytes: u64, way: Way) -> Result<Self> {
        let file = nameless_file(folder, size_bytes)?;
        let memory = RawMemory::map(&file).context("cannot map memory to receive into")?;
        let medium = Mapped::from_file(&file, &MediaOptions::new().force_flush(true))?;
        super::floor::touch(&medium, 0, size_bytes)?;
        Ok(Self { memory, medium, way })
    }
}

impl Subject for Received {
    fn name(&self) -> &str {
        match self.way {
            Way::Buffered => "received-buffered",
            Way::StraightFlushed => "received-straight-flushed",
            Way::Straight => "received-straight",
        }
    }

    fn refuses(&self, workload: &Workload) -> Option<String> {
        (!workload.writes() || workload.bytes > PAYLOAD_MAX)
            .then(|| format!("it receives at most {PAYLOAD_MAX} bytes, and sends none"))
    }

    fn prepare(&self, _workload: &Workload) -> Result<()> {
        Ok(())
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        let (near, far) = UnixStream::pair().context("cannot make a pair of sockets")?;
        Ok(Box::new(Receiving { into: self, near, far, buffer: vec![0; PAYLOAD_MAX] }))
    }
}

/// One thread's socket.
struct Receiving<'a> {
    into: &'a Received,
    near: UnixStream,
    far: UnixStream,
    buffer: Vec<u8>,
}

impl Session for Receiving<'_> {
    fn read(&mut self, _offset: u64, _out: &mut [u8]) -> Result<()> {
        anyhow::bail!("nothing is sent back")
    }

    fn write(&mut self, offset: u64, data: &[u8], _fua: Fua) -> Result<()> {
        self.far.write_all(data)?;
        let (medium, at) = (&self.into.medium, PoolOffset(offset));
        if self.into.way == Way::Buffered {
            let payload = &mut self.buffer[..data.len()];
            self.near.read_exact(payload)?;
            medium.stream(at, payload);
            medium.fence()?;
            return Ok(());
        }
        self.into.memory.receive(offset, data.len(), &self.near)?;
        if self.into.way == Way::StraightFlushed {
            medium.flush(at, data.len() as u64);
            medium.fence()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Action;

    #[test]
    fn every_way_leads_to_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let workload = Workload::new(Action::Rewrite, 4096);
        let data: Vec<u8> = (0..=255).cycle().take(4096).collect();
        for way in [Way::Buffered, Way::StraightFlushed, Way::Straight] {
            let subject = Received::new(folder.path(), 16 << 10, way).unwrap();
            subject.open(&workload).unwrap().write(4096, &data, Fua::No).unwrap();
            let mut out = vec![0; 4096];
            Medium::read(&subject.medium, PoolOffset(4096), &mut out);
            assert_eq!(out, data);
        }
    }
}
