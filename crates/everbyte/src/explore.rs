//! Crash tests of code above a block device or a file system: the explorer crashes the whole stack below it.
//!
//! [`OnDevice`] and [`OnFiles`] turn a workload into a [`Scenario`] for the [`Explorer`](crate::crash::Explorer). The
//! pool, the volume and their recovery run on a simulated medium.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_crash::{Crash, Log, Scenario, SimMedium};
use everbyte_device::BlockDevice;
use everbyte_fs::{FileSystem, FsOptions};
use everbyte_pool::{OpenOptions, Pool};

use crate::engine::kinds;

const NAME: &str = "tested";
/// Bytes of the medium beyond the volume: a log and the structures of the pool.
const OVERHEAD_BYTES: u64 = 4 << 20;

/// A workload on a block device, and the check after a crash.
pub trait DeviceTest {
    /// Event the workload reports to the check, such as "write 3 is durable".
    type Event;

    /// Size of the device, in bytes.
    fn size_bytes(&self) -> u64;

    /// Runs the workload on an empty device, once.
    fn run(&self, device: &dyn BlockDevice, log: &Log<Self::Event>);

    /// Compares the device after a crash with the contents permitted by the events before the
    /// crash.
    ///
    /// # Errors
    /// A description of the fault. It ends the exploration.
    fn check(&self, device: &dyn BlockDevice, crash: &Crash<'_, Self::Event>)
    -> Result<(), String>;
}

/// A workload on a file system, and the check after a crash.
pub trait FilesTest {
    /// Event the workload reports to the check.
    type Event;

    /// Runs the workload on an empty file system of 1 MiB, once.
    fn run(&self, files: &FileSystem<SimMedium>, log: &Log<Self::Event>);

    /// Compares the files after a crash with the contents permitted by the events before the crash.
    ///
    /// # Errors
    /// A description of the fault. It ends the exploration.
    fn check(
        &self,
        files: &FileSystem<SimMedium>,
        crash: &Crash<'_, Self::Event>,
    ) -> Result<(), String>;
}

/// The scenario of a [`DeviceTest`].
pub struct OnDevice<T>(pub T);

/// The scenario of a [`FilesTest`].
pub struct OnFiles<T>(pub T);

fn open_pool(medium: &Arc<SimMedium>, len: u64) -> Result<Arc<Pool<SimMedium>>, String> {
    let options = OpenOptions { capacity_blocks: len / 4096 };
    let pool = Pool::open(Arc::clone(medium), kinds(), &options);
    pool.map(Arc::new).map_err(|error| error.to_string())
}

/// Makes a pool and a volume in it by `create`.
///
/// # Panics
/// The volume cannot be made: its size is wrong.
fn prepare<T, E: std::fmt::Display>(
    medium: &Arc<SimMedium>,
    len: u64,
    create: impl FnOnce(&Arc<Pool<SimMedium>>) -> Result<T, E>,
) {
    let made = Pool::format(&**medium, 1, [1; 16]).map_err(|error| error.to_string());
    let made = made.and_then(|()| open_pool(medium, len)).and_then(|pool| {
        create(&pool).map_err(|error| error.to_string())?;
        pool.close().map_err(|error| error.to_string())
    });
    assert_eq!(made, Ok(()), "the volume under test cannot be made");
}

impl<T: DeviceTest> Scenario for OnDevice<T> {
    type Event = T::Event;
    type Recovered = BlockVolume<SimMedium>;

    fn medium_len(&self) -> u64 {
        (self.0.size_bytes() + OVERHEAD_BYTES).next_multiple_of(4096)
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        let options =
            BlockOptions { log_bytes: Some(1 << 20), lanes: 1, ..BlockOptions::default() };
        let create = |pool: &_| BlockVolume::create(pool, NAME, self.0.size_bytes(), &options);
        prepare(medium, self.medium_len(), create);
    }

    /// # Panics
    /// Panics if the volume made by `prepare` cannot be opened.
    fn run(&self, medium: &Arc<SimMedium>, log: &Log<T::Event>) {
        match self.recover(Arc::clone(medium)) {
            Ok(device) => self.0.run(&device, log),
            Err(error) => panic!("the volume under test cannot be opened: {error}"),
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String> {
        let pool = open_pool(&medium, self.medium_len())?;
        BlockVolume::open(&pool, NAME).map_err(|error| error.to_string())
    }

    fn check(&self, device: Self::Recovered, crash: &Crash<'_, Self::Event>) -> Result<(), String> {
        self.0.check(&device, crash)
    }
}

impl<T: FilesTest> Scenario for OnFiles<T> {
    type Event = T::Event;
    type Recovered = FileSystem<SimMedium>;

    fn medium_len(&self) -> u64 {
        OVERHEAD_BYTES + (1 << 20)
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        let options = FsOptions { log_bytes: Some(1 << 20), lanes: 1, ..FsOptions::default() };
        prepare(medium, self.medium_len(), |pool| {
            FileSystem::create(pool, NAME, 1 << 20, &options)
        });
    }

    /// # Panics
    /// Panics if the volume made by `prepare` cannot be opened.
    fn run(&self, medium: &Arc<SimMedium>, log: &Log<T::Event>) {
        match self.recover(Arc::clone(medium)) {
            Ok(files) => self.0.run(&files, log),
            Err(error) => panic!("the file system under test cannot be opened: {error}"),
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Self::Recovered, String> {
        let pool = open_pool(&medium, self.medium_len())?;
        FileSystem::open(&pool, NAME).map_err(|error| error.to_string())
    }

    fn check(&self, files: Self::Recovered, crash: &Crash<'_, Self::Event>) -> Result<(), String> {
        self.0.check(&files, crash)
    }
}
