//! One connection of a virtual machine: its messages and its state.
//!
//! Invariants: a queue runs only while it has memory, addresses, a kick and permission. Every change of its
//! memory or ring ends the thread of a queue first, so a thread never sees a table replaced. The crate `vhost` checks the form of
//! messages; their values are checked here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use everbyte_device::BlockDevice;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};

use crate::config::{self, QUEUE_SIZE_MAX, QUEUES_MAX, WRITEBACK_AT, feature};
use crate::connection::Connection;
use crate::inflight::{self, Inflight, QueueLog};
use crate::memory::{self, GuestMap, REGIONS_MAX, Region};
use crate::request::{Disk, SERIAL_LEN};
use crate::ring::{Call, Ring, Worker};

/// The addresses of a ring, in the process of the virtual machine.
#[derive(Clone, Copy)]
struct Addresses {
    descriptors: u64,
    available: u64,
    used: u64,
}

/// A queue of the guest.
#[derive(Default)]
struct Vring {
    size: u16,
    /// Index of the next available request.
    base: u16,
    addresses: Option<Addresses>,
    kick: Option<File>,
    call: Call,
    is_enabled: bool,
    worker: Option<Worker>,
}

/// The state of one connection.
pub(crate) struct Session {
    device: Arc<dyn BlockDevice>,
    name: String,
    serial: [u8; SERIAL_LEN],
    /// True if the guest may have a volatile write cache.
    allows_write_back: bool,
    /// The state of the write cache, as the guest sees it.
    wants_write_back: bool,
    connection: Arc<Connection>,
    features: u64,
    regions: Vec<Arc<Region>>,
    map: Option<Arc<GuestMap>>,
    inflight: Option<Arc<Inflight>>,
    vrings: Vec<Vring>,
    /// True if the last message was refused, and the connection stays.
    has_refused: bool,
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Checks that a descriptor is an eventfd, and makes its reads and writes not block.
fn eventfd_of(file: File) -> Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let target =
        rustix::fs::readlink(path, Vec::new()).map_err(|error| invalid(io::Error::from(error)))?;
    // Another file could always be ready, so that its thread would never sleep.
    if !target.to_bytes().starts_with(b"anon_inode:[eventfd]") {
        return Err(invalid("the descriptor is not an eventfd"));
    }
    let set = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NONBLOCK));
    set.map_err(|error| invalid(io::Error::from(error)))?;
    Ok(file)
}

impl Session {
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        name: &str,
        serial: &str,
        allows_write_back: bool,
        connection: Arc<Connection>,
    ) -> Self {
        let mut bytes = [0; SERIAL_LEN];
        let len = serial.len().min(SERIAL_LEN);
        bytes[..len].copy_from_slice(&serial.as_bytes()[..len]);
        Self {
            device,
            name: name.to_owned(),
            serial: bytes,
            allows_write_back,
            wants_write_back: allows_write_back,
            connection,
            features: 0,
            regions: Vec::new(),
            map: None,
            inflight: None,
            vrings: (0..QUEUES_MAX).map(|_| Vring::default()).collect(),
            has_refused: false,
        }
    }

    /// Returns true if the last message was refused without an end of the connection.
    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// Returns true if completed writes may be volatile.
    fn is_write_back(&self) -> bool {
        // A driver without flushes needs durable writes.
        self.allows_write_back && self.wants_write_back && self.features & feature::FLUSH != 0
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let index = usize::try_from(index).map_err(invalid)?;
        self.vrings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Ends the thread of a queue.
    fn end(&mut self, index: u32) -> Result<()> {
        let vring = self.vring(index)?;
        if let Some(worker) = vring.worker.take() {
            // The next thread, or the next server, continues after the last taken request.
            vring.base = worker.end().ok_or(Error::BackendInternalError)?;
        }
        Ok(())
    }

    fn end_all(&mut self) -> Result<()> {
        (0..u32::from(QUEUES_MAX)).try_for_each(|index| self.end(index))
    }

    fn start_all(&mut self) -> Result<()> {
        (0..u32::from(QUEUES_MAX)).try_for_each(|index| self.start(index))
    }

    /// Starts the thread of a queue if it is ready and not running.
    fn start(&mut self, index: u32) -> Result<()> {
        let name = format!("vhost-{index}-{}", self.name);
        let Some(ring) = self.ring(index)? else { return Ok(()) };
        let worker = Worker::start(ring, name).map_err(Error::ReqHandlerError)?;
        self.vring(index)?.worker = Some(worker);
        Ok(())
    }

    /// Returns the ring of a queue if the queue can start.
    fn ring(&mut self, index: u32) -> Result<Option<Ring>> {
        let disk = Disk {
            name: self.name.clone(),
            serial: self.serial,
            is_write_through: !self.is_write_back(),
        };
        let (device, has_event_idx) =
            (Arc::clone(&self.device), self.features & feature::EVENT_IDX != 0);
        let (map, inflight) = (self.map.clone(), self.inflight.clone());
        let connection = Arc::clone(&self.connection);
        let vring = self.vring(index)?;
        let (Some(map), Some(addresses), Some(kick)) = (map, vring.addresses, &vring.kick) else {
            return Ok(None);
        };
        // One thread for each queue: two would take the same request.
        if vring.worker.is_some() || !vring.is_enabled {
            return Ok(None);
        }
        let mut queue = queue_of(&map, vring.size, addresses)?;
        queue.set_event_idx(has_event_idx);
        let ordering = std::sync::atomic::Ordering::Acquire;
        let used = queue.used_idx(&*map, ordering).map_err(|error| invalid(error.to_string()))?.0;
        // The ring has the truth: an earlier server may have published more than it noted.
        queue.set_next_used(used);
        queue.set_next_avail(vring.base);
        let index = u16::try_from(index).map_err(invalid)?;
        let log = inflight.map(|inflight| {
            QueueLog::new(&inflight, index, vring.size)
                .ok_or_else(|| invalid("the in-flight region lacks a queue"))
        });
        let mut log = log.transpose()?;
        let mut unanswered = Vec::new();
        if let Some(log) = &mut log {
            // Before the thread starts: nothing else may change the region.
            unanswered = log.recover(used);
            // The ring has at most `size` requests, so their number fits.
            let taken = u16::try_from(unanswered.len()).map_err(invalid)?;
            // Answers are in order, so taken and unanswered requests follow the used index.
            queue.set_next_avail(used.wrapping_add(taken));
        }
        let kick = kick.try_clone().map_err(Error::ReqHandlerError)?;
        let call = Arc::clone(&vring.call);
        Ok(Some(Ring { queue, map, device, disk, connection, kick, call, log, unanswered }))
    }

    /// Replaces the memory of the guest. The queues continue in the new memory.
    fn set_regions(&mut self, regions: Vec<Arc<Region>>) -> Result<()> {
        self.end_all()?;
        self.map = match regions.is_empty() {
            true => None,
            false => Some(Arc::new(memory::guest_map(regions.clone()).map_err(invalid)?)),
        };
        // After the map: an invalid table leaves the regions of the last valid one.
        self.regions = regions;
        self.start_all()
    }
}

/// Makes a queue of a ring in the guest's memory.
fn queue_of(map: &GuestMap, size: u16, addresses: Addresses) -> Result<Queue> {
    let address = |user| {
        memory::guest_address(map, user).ok_or_else(|| invalid("a ring is outside the memory"))
    };
    let wrong = |error: virtio_queue::Error| invalid(error.to_string());
    let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(wrong)?;
    queue.try_set_size(size).map_err(wrong)?;
    queue.try_set_desc_table_address(address(addresses.descriptors)?).map_err(wrong)?;
    queue.try_set_avail_ring_address(address(addresses.available)?).map_err(wrong)?;
    queue.try_set_used_ring_address(address(addresses.used)?).map_err(wrong)?;
    queue.set_ready(true);
    // The addresses come from the guest, so the whole rings are checked once, here.
    match queue.is_valid(map) {
        true => Ok(queue),
        false => Err(invalid("a ring leaves the memory")),
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.end_all()?;
        self.vrings = (0..QUEUES_MAX).map(|_| Vring::default()).collect();
        self.features = 0;
        self.wants_write_back = self.allows_write_back;
        self.inflight = None;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(config::features(&self.device.geometry()))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !config::features(&self.device.geometry()) != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.end_all()?;
        self.features = features;
        // Without protocol features no message enables a queue.
        if features & feature::PROTOCOL_FEATURES == 0 {
            self.vrings.iter_mut().for_each(|vring| vring.is_enabled = true);
        }
        self.start_all()
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions = table.iter().zip(&files).map(|(region, file)| Region::map(region, file));
        let regions = regions.map(|region| region.map(Arc::new)).collect::<io::Result<_>>();
        self.set_regions(regions.map_err(Error::ReqHandlerError)?)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(invalid)?;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        self.end(index)?;
        self.vring(index)?.size = size;
        self.start(index)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.end(index)?;
        self.vring(index)?.addresses = Some(Addresses { descriptors, available, used });
        self.start(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(invalid)?;
        self.end(index)?;
        self.vring(index)?.base = base;
        self.start(index)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.end(index)?;
        let vring = self.vring(index)?;
        // The queue stops until it gets a kick again.
        vring.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(vring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = u32::from(index);
        // Without a kick the guest would be polled for ever.
        let kick = eventfd_of(file.ok_or(Error::InvalidParam)?)?;
        self.end(index)?;
        self.vring(index)?.kick = Some(kick);
        self.start(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let file = file.map(eventfd_of).transpose()?;
        if let Some(call) = &file {
            // An earlier server may have ended between an answer and its notification.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
        *self.vring(u32::from(index))?.call.lock() = file;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        // Errors end the connection.
        self.vring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(QUEUES_MAX))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.end(index)?;
        self.vring(index)?.is_enabled = enable;
        self.start(index)
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = config::space(&self.device.geometry(), self.wants_write_back);
        let offset = usize::try_from(offset).map_err(invalid)?;
        // Fields of later specifications are zero. The crate limits the size.
        let rest = space.iter().copied().skip(offset).chain(std::iter::repeat(0));
        Ok(rest.take(usize::try_from(size).map_err(invalid)?).collect())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        let (WRITEBACK_AT, &[value]) = (offset, bytes) else { return Err(Error::InvalidParam) };
        let wanted = value != 0;
        if wanted && !self.allows_write_back {
            tracing::debug!(disk = self.name, "the guest may not have a volatile write cache");
            self.has_refused = true;
            return Err(Error::InvalidParam);
        }
        // Between the queues: every earlier write is complete, and every later one has the new durability.
        self.end_all()?;
        self.wants_write_back = wanted;
        if !wanted {
            // Completed writes become durable before the guest sees the cache off.
            self.device.flush().map_err(|error| invalid(error.to_string()))?;
        }
        self.start_all()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("not a display"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let &VhostUserInflight { num_queues, queue_size, .. } = wanted;
        let len = inflight::region_len(num_queues, queue_size).ok_or(Error::InvalidParam)?;
        let file = inflight::create(len).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(len as u64, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let &VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = given;
        let region = Inflight::map(&file, (mmap_offset, mmap_size), num_queues, queue_size);
        self.end_all()?;
        self.inflight = Some(Arc::new(region.map_err(Error::ReqHandlerError)?));
        self.start_all()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        let region = Region::map(region, &file).map_err(Error::ReqHandlerError)?;
        let mut regions = self.regions.clone();
        regions.push(Arc::new(region));
        self.set_regions(regions)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut regions = self.regions.clone();
        let place = regions.iter().position(|known| known.is(region)).ok_or(Error::InvalidParam)?;
        regions.remove(place);
        self.set_regions(regions)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("no state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("no state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("no shared memory"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("no log of writes"))
    }
}
