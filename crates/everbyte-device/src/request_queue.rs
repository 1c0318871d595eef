//! The request loop of all faces: the order and the batches of a client's requests.
//!
//! A [`Face`] decodes requests, submits them in order of arrival and answers them. The queue knows neither
//! sockets nor rings.

use std::sync::Arc;

use crate::device::{BlockDevice, Fua, Hole, WriteRequest};
use crate::error::DeviceError;

/// Writes in one batch for the device.
const BATCH_MAX: usize = 64;

/// The action of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Writes the payload.
    Write,
    /// Makes answered writes durable.
    Flush,
    /// As [`BlockDevice::discard`].
    Discard,
    /// As [`BlockDevice::write_zeroes`].
    WriteZeroes {
        /// Permission to free the space.
        hole: Hole,
        /// Fail instead of writing zeroes.
        fast: bool,
    },
    /// As [`BlockDevice::prefetch`].
    Prefetch,
    /// Returns data to the client, by [`Face::transfer`].
    Transfer,
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub struct Request<T> {
    /// The face's own name of the request.
    pub tag: T,
    /// The action.
    pub work: Work,
    /// First byte.
    pub offset: u64,
    /// Bytes of the range.
    pub len: u64,
    /// `Yes` if the request must be durable when it is complete.
    pub fua: Fua,
}

/// A server's side of one client: the payloads and the answers of its requests.
pub trait Face {
    /// The face's own name of a request.
    type Tag;
    /// The reason for the end of a client.
    type Stop;

    /// Returns the payload of a submitted write. Its length is the request's.
    fn payload<'a>(&'a self, write: &'a Request<Self::Tag>) -> &'a [u8];

    /// Executes a request of the kind [`Work::Transfer`] and answers it. Every earlier request is complete.
    ///
    /// # Errors
    /// The client can get no further answer.
    fn transfer(
        &mut self,
        device: &dyn BlockDevice,
        request: &Request<Self::Tag>,
    ) -> Result<(), Self::Stop>;

    /// Answers a request of another kind.
    fn complete(&mut self, request: &Request<Self::Tag>, done: Result<(), DeviceError>);
}

/// The requests of one client, executed in order of submission.
///
/// Writes gather until another request comes, the batch is full or the face asks for their execution. The
/// device gets them as one batch. Each submitted request is completed or transferred once.
pub struct RequestQueue<T> {
    device: Arc<dyn BlockDevice>,
    writes: Vec<Request<T>>,
}

impl<T> RequestQueue<T> {
    /// Makes an empty queue of requests to `device`.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, writes: Vec::with_capacity(BATCH_MAX) }
    }

    /// Adds a request. Executes it and all earlier ones, unless it is a write that can wait for others.
    ///
    /// # Errors
    /// Those of [`Face::transfer`].
    pub fn submit<F: Face<Tag = T>>(
        &mut self,
        face: &mut F,
        request: Request<T>,
    ) -> Result<(), F::Stop> {
        if request.work == Work::Write {
            self.writes.push(request);
            if self.writes.len() == BATCH_MAX {
                self.execute_writes(face);
            }
            return Ok(());
        }
        self.execute_writes(face);
        if request.work == Work::Transfer {
            return face.transfer(&*self.device, &request);
        }
        let done = self.execute(&request);
        face.complete(&request, done);
        Ok(())
    }

    /// Executes a write with a payload outside the face's memory of payloads. The caller has executed the
    /// gathered writes.
    pub fn write<F: Face<Tag = T>>(&self, face: &mut F, request: &Request<T>, payload: &[u8]) {
        debug_assert!(self.writes.is_empty(), "an earlier write would be executed later");
        let done = self.device.write(request.offset, payload, request.fua);
        face.complete(request, done);
    }

    /// Executes the gathered writes, as one batch if there are several. Afterwards the face may reuse the
    /// memory of their payloads.
    pub fn execute_writes<F: Face<Tag = T>>(&mut self, face: &mut F) {
        match &self.writes[..] {
            [] => {}
            [write] => {
                let done = self.device.write(write.offset, face.payload(write), write.fua);
                face.complete(write, done);
            }
            batch => {
                for (write, done) in batch.iter().zip(self.execute_batch(face, batch)) {
                    face.complete(write, done);
                }
            }
        }
        self.writes.clear();
    }

    /// Returns one result for each write, even if the device returns fewer.
    fn execute_batch<F: Face<Tag = T>>(
        &self,
        face: &F,
        batch: &[Request<T>],
    ) -> Vec<Result<(), DeviceError>> {
        const NOTHING: WriteRequest<'static> = WriteRequest { offset: 0, data: &[], fua: Fua::No };
        let mut requests = [NOTHING; BATCH_MAX];
        for (slot, write) in requests.iter_mut().zip(batch) {
            *slot =
                WriteRequest { offset: write.offset, data: face.payload(write), fua: write.fua };
        }
        let mut results = self.device.write_batch(&requests[..batch.len()]);
        // Every request needs one answer, and the device did not report success for these.
        for write in &batch[results.len().min(batch.len())..] {
            results.push(Err(DeviceError::Media {
                offset: write.offset,
                len: write.len,
                reason: "the device did not answer".to_owned(),
            }));
        }
        results
    }

    /// Executes a request without data.
    fn execute(&self, request: &Request<T>) -> Result<(), DeviceError> {
        let (offset, len, fua) = (request.offset, request.len, request.fua);
        match request.work {
            Work::Flush => self.device.flush(),
            Work::Discard => self.device.discard(offset, len, fua),
            Work::WriteZeroes { hole, fast } => {
                self.device.write_zeroes(offset, len, hole, fast, fua)
            }
            // `submit` passes no other kind.
            _ => self.device.prefetch(offset, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// Tags are the bytes of payloads.
    #[derive(Default)]
    struct Log {
        done: Vec<(u8, Work, bool)>,
        read: [u8; 4],
    }

    impl Face for Log {
        type Tag = [u8; 4];
        type Stop = u8;

        fn payload<'a>(&'a self, write: &'a Request<[u8; 4]>) -> &'a [u8] {
            &write.tag
        }

        fn transfer(
            &mut self,
            device: &dyn BlockDevice,
            request: &Request<[u8; 4]>,
        ) -> Result<(), u8> {
            device.read(request.offset, &mut self.read).map_err(|_| request.tag[0])
        }

        fn complete(&mut self, request: &Request<[u8; 4]>, done: Result<(), DeviceError>) {
            self.done.push((request.tag[0], request.work, done.is_ok()));
        }
    }

    fn request(tag: u8, work: Work, offset: u64) -> Request<[u8; 4]> {
        Request { tag: [tag; 4], work, offset, len: 4, fua: Fua::No }
    }

    #[test]
    fn read_sees_gathered_writes() {
        let mut queue = RequestQueue::new(Arc::new(MemoryDevice::new(8192)));
        let mut log = Log::default();
        for (tag, offset) in [(1, 0), (2, 8190), (3, 2)] {
            queue.submit(&mut log, request(tag, Work::Write, offset)).unwrap();
        }
        assert_eq!(log.done, [], "writes wait for others");
        queue.submit(&mut log, request(4, Work::Transfer, 0)).unwrap();
        let wanted = [(1, Work::Write, true), (2, Work::Write, false), (3, Work::Write, true)];
        assert_eq!(log.done, wanted);
        assert_eq!(log.read, [1, 1, 3, 3]);
        assert_eq!(queue.submit(&mut log, request(5, Work::Transfer, 8190)), Err(5));
    }

    #[test]
    fn requests_complete_once_in_order() {
        let mut queue = RequestQueue::new(Arc::new(MemoryDevice::new(8192)));
        let mut log = Log::default();
        let zero = Work::WriteZeroes { hole: Hole::Allowed, fast: false };
        let works = [Work::Write, Work::Flush, Work::Write, Work::Write, zero, Work::Discard];
        for (tag, work) in (0..).zip(works) {
            queue.submit(&mut log, request(tag, work, 0)).unwrap();
        }
        queue.submit(&mut log, request(6, Work::Prefetch, 0)).unwrap();
        let tags: Vec<_> = log.done.iter().map(|&(tag, _, _)| tag).collect();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6]);
        log.done.clear();
        for tag in 0..u8::try_from(BATCH_MAX).unwrap() {
            queue.submit(&mut log, request(tag, Work::Write, 0)).unwrap();
        }
        assert_eq!(log.done.len(), BATCH_MAX, "a full batch does not wait");
        queue.execute_writes(&mut log);
        assert_eq!(log.done.len(), BATCH_MAX);
    }
}
