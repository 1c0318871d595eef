//! Our server in a separate process with its own processor time.
//!
//! The process is this program with a hidden subcommand. It serves until its standard input ends. Its parent holds the
//! other end, so the process ends with its parent.

use std::any::Any;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use everbyte_block::Delta;
use everbyte_cache::{Mode, WritebackThread};
use everbyte_device::{BlockDevice, DelayDevice, DiskCosts};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};
use everbyte_policy::sim::{Kind, Spec};
use everbyte_vhost::{VhostServer, VhostSettings};

use super::floor::nameless_file;
use super::plain::PlainDevice;
use super::volume::BenchPool;
use crate::cache::subject::new_cache;
use crate::subject::Subject;
use crate::workload::{Action, Workload};

/// Device of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ServedDevice {
    /// Nothing.
    Null,
    /// Bare memory.
    Memory,
    /// A volume without holes.
    Volume,
    /// A cache with all pages of bare memory.
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
    /// Serve by vhost-user-blk instead of NBD.
    #[arg(long)]
    pub(crate) vhost: bool,
    /// Let a guest have a volatile write cache.
    #[arg(long, requires = "vhost")]
    pub(crate) write_back: bool,
}

/// One device under every name.
struct OneExport(Arc<dyn BlockDevice>);

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
/// The device cannot be made, or the socket cannot be bound.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let (pool, _writer);
    let memory = || -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(PlainDevice::memory(populated(args, args.size)?)))
    };
    let device: Arc<dyn BlockDevice> = match args.device {
        ServedDevice::Null => Arc::new(PlainDevice::null(args.size)?),
        ServedDevice::Memory => memory()?,
        ServedDevice::Disk => Arc::new(DelayDevice::new(memory()?, DiskCosts::HDD)),
        ServedDevice::Ssd => Arc::new(DelayDevice::new(memory()?, DiskCosts::SSD)),
        ServedDevice::Volume => {
            pool = BenchPool::new(&args.folder, args.size, 1)?;
            let subject = pool.volume("served", args.size, Delta::Auto)?;
            subject.prepare(&Workload::new(Action::Rewrite, 4096))?;
            Arc::new(subject.into_device())
        }
        ServedDevice::Cache => {
            // More than twice the pages of the device: all may be dirty, and no page is evicted or written back.
            let spec = Spec::new(u32::try_from(args.size / 4096)? * 5 / 2)?;
            let populated = |pool_bytes| populated(args, pool_bytes);
            let cache = new_cache(memory()?, Kind::Everbyte, Mode::WriteBack, &spec, populated)?;
            _writer = WritebackThread::start(&cache)?;
            cache
        }
    };
    let server: Box<dyn Any> = if args.vhost {
        let listener = UnixListener::bind(&args.socket)?;
        listener.set_nonblocking(true)?;
        let (name, address) = ("disk".to_owned(), String::new());
        let settings = VhostSettings { name, address, write_back: args.write_back };
        let open = move || Ok(Arc::clone(&device));
        Box::new(VhostServer::start(listener, settings, Box::new(open))?)
    } else {
        let address = Address::Unix(args.socket.clone());
        Box::new(Server::bind(&address, Arc::new(OneExport(device)))?)
    };
    // The parent connects after this line.
    let mut out = io::stdout().lock();
    out.write_all(b"ready\n")?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    // Either server shuts down when it is dropped.
    drop(server);
    Ok(())
}

/// Memory of a new file, with all its pages.
fn populated(args: &ServeArgs, bytes: u64) -> Result<Mapped> {
    let file = nameless_file(&args.folder, bytes)?;
    let options = MediaOptions::new().force_flush(true).populate(true);
    Ok(Mapped::from_file(&file, &options)?)
}
