//! Our server in a separate process with its own processor time.
//!
//! The process is this program with a hidden subcommand. It serves until its standard input ends, at the latest with its
//! parent.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use everbyte_block::Delta;
use everbyte_cache::{Cache, Mode, WritebackThread};
use everbyte_device::{BlockDevice, DelayDevice, DiskCosts};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};
use everbyte_policy::sim::{Kind, Spec};

use super::floor::nameless_file;
use super::plain::PlainDevice;
use super::volume::BenchPool;
use crate::cache::subject::new_cache;
use crate::subject::Subject;
use crate::workload::{Action, Workload};

/// Device that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ServedDevice {
    /// Nothing.
    Null,
    /// Bare memory.
    Memory,
    /// A volume, all of it written.
    Volume,
    /// A cache that has all of it, dirty pages too.
    Cache,
    /// Bare memory as slow as a hard disk.
    Disk,
    /// Bare memory as slow as a SATA solid-state disk.
    Ssd,
}

/// Serve a device to the benchmark.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Device to serve.
    #[arg(long, value_enum)]
    pub(crate) device: ServedDevice,
    /// Socket to listen on.
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Folder for the pool's file.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// Bytes of the device.
    #[arg(long)]
    pub(crate) size: u64,
}

/// One device under every name.
pub(crate) struct OneExport(pub(crate) Arc<dyn BlockDevice>);

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "disk".to_owned(), description: String::new() }]
    }

    fn open(&self, _name: &str) -> Result<Export, OpenError> {
        Ok(Export::new("disk", Arc::clone(&self.0)))
    }
}

/// Serves until standard input ends.
///
/// # Errors
/// The device cannot be made or the address not listened on.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let (pool, _writer);
    let device: Arc<dyn BlockDevice> = match args.device {
        ServedDevice::Null => Arc::new(PlainDevice::null(args.size)?),
        ServedDevice::Memory => memory(args)?,
        ServedDevice::Disk => Arc::new(DelayDevice::new(memory(args)?, DiskCosts::HDD)),
        ServedDevice::Ssd => Arc::new(DelayDevice::new(memory(args)?, DiskCosts::SSD)),
        ServedDevice::Volume => {
            pool = BenchPool::new(&args.folder, args.size, 1)?;
            let subject = pool.volume("served", args.size, Delta::Auto)?;
            subject.prepare(&Workload::new(Action::Rewrite, 4096))?;
            Arc::new(subject.into_device())
        }
        ServedDevice::Cache => {
            let cache = cache(args)?;
            _writer = WritebackThread::start(&cache)?;
            cache
        }
    };
    let address = Address::Unix(args.socket.clone());
    let server = Server::bind(&address, Arc::new(OneExport(device)))?;
    let mut out = io::stdout().lock();
    out.write_all(b"ready\n")?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    server.shutdown();
    Ok(())
}

/// A cache before bare memory, with more than twice as many pages as that has: all of them may be dirty, and none is
/// evicted or written back. So what is measured is hits.
fn cache(args: &ServeArgs) -> Result<Arc<Cache>> {
    let pages = u32::try_from(args.size / 4096)?;
    let spec = Spec::new(pages * 5 / 2)?;
    new_cache(memory(args)?, Kind::Everbyte, Mode::WriteBack, &spec, |pool_bytes| {
        let file = nameless_file(&args.folder, pool_bytes)?;
        let options = MediaOptions::new().force_flush(true).populate(true);
        Ok(Mapped::from_file(&file, &options)?)
    })
}

/// Bare memory of the size that is asked for.
fn memory(args: &ServeArgs) -> Result<Arc<dyn BlockDevice>> {
    let file = nameless_file(&args.folder, args.size)?;
    let options = MediaOptions::new().force_flush(true).populate(true);
    Ok(Arc::new(PlainDevice::memory(Mapped::from_file(&file, &options)?)))
}
