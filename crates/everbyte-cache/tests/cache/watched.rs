//! An SCM that lets other threads act during a request.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_block::BlockVolume;
use everbyte_cache::Cache;
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, Passthrough, WriteRequest,
};
use everbyte_media::Mapped;
use everbyte_pool::format::VolumeKind;

use crate::{identity, open_pool};

/// A moment of a request to SCM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    BeforeRead,
    AfterRead,
    /// Before several writes are made as one.
    BeforeStore,
    /// Before a page gives its space back.
    BeforeDiscard,
}

type Act = Box<dyn FnOnce() + Send>;

/// SCM with an action at one moment.
pub(crate) struct Watched {
    volume: BlockVolume<Mapped>,
    next: Mutex<Option<(Moment, Act)>>,
}

impl Watched {
    /// Has `act` done in the next such moment.
    pub(crate) fn at(&self, moment: Moment, act: impl FnOnce() + Send + 'static) {
        *self.next.lock().unwrap() = Some((moment, Box::new(act)));
    }

    fn comes(&self, moment: Moment) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let act = next.take_if(|(awaited, _)| *awaited == moment);
        drop(next);
        if let Some((_, act)) = act {
            act();
        }
    }
}

impl everbyte_device::Decorator for Watched {
    type Inner = BlockVolume<Mapped>;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.volume
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.comes(Moment::BeforeRead);
        let read = self.volume.read(offset, out);
        self.comes(Moment::AfterRead);
        read
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.comes(Moment::BeforeDiscard);
        self.volume.discard(offset, len, fua)
    }
}

impl AtomicWrites for Watched {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.comes(Moment::BeforeStore);
        self.volume.write_atomic(requests)
    }
}

/// Opens the cache in the pool on `medium`, with such an SCM.
pub(crate) fn open(
    medium: &Arc<Mapped>,
    backing: Arc<dyn BlockDevice>,
) -> (Arc<Cache>, Arc<Watched>) {
    let volume = BlockVolume::open_as(&open_pool(medium).unwrap(), "c", VolumeKind::CACHE).unwrap();
    let scm = Arc::new(Watched { volume, next: Mutex::default() });
    let cache = Cache::open(Arc::<Watched>::clone(&scm), backing, &identity()).unwrap();
    (Arc::new(cache), scm)
}

/// A thread that acts during a request. With sound code it may have to wait until the end of the
/// request.
#[derive(Default)]
pub(crate) struct Other(Mutex<Option<JoinHandle<()>>>);

impl Other {
    /// Starts it, and gives it `time` to end.
    pub(crate) fn acts(&self, time: Duration, act: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(act);
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < time {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.0.lock().unwrap() = Some(thread);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.lock().unwrap().as_ref().is_some_and(JoinHandle::is_finished)
    }

    pub(crate) fn join(&self) {
        let thread = self.0.lock().unwrap().take();
        thread.expect("its moment has come").join().unwrap();
    }
}

/// Time for a thread that has to wait.
pub(crate) const IN_VAIN: Duration = Duration::from_millis(100);
/// A thread without a wait has ended long before.
pub(crate) const LONG: Duration = Duration::from_secs(20);
