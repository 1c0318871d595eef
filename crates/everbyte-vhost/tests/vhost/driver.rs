//! The crate `virtio-driver` as the guest.

use std::fs::File;
use std::os::fd::AsRawFd;

use memmap2::MmapMut;
use virtio_driver::{
    VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkReqBuf,
    VirtioBlkTransport, VirtioFeatureFlags, VirtioTransport,
};

use crate::guest::Host;

const DEPTH: usize = 32;
const BLOCK: usize = 4096;

/// Data of a guest, in memory that it shares.
fn data() -> (File, MmapMut) {
    let file = tempfile::tempfile().unwrap();
    file.set_len((DEPTH * BLOCK) as u64).unwrap();
    // SAFETY: nobody truncates the file. The server stores to it only between a request and its completion.
    let map = unsafe { MmapMut::map_mut(&file) }.unwrap();
    (file, map)
}

/// Notifies the server, and waits until all requests are complete.
fn complete(
    transport: &VirtioBlkTransport,
    queue: &mut VirtioBlkQueue<'_, usize>,
    index: usize,
    count: usize,
) {
    transport.get_submission_notifier(index).notify().unwrap();
    let mut left = count;
    while left > 0 {
        // Some completions come without a notification of their own.
        for completion in queue.completions() {
            assert_eq!(completion.ret, 0, "request {}", completion.context);
            left -= 1;
        }
        std::thread::yield_now();
    }
}

fn blocks_move_at_depth(features: VirtioFeatureFlags) {
    let host = Host::new(true);
    let features = features.bits() | VirtioFeatureFlags::VERSION_1.bits();
    let features = features | (VirtioBlkFeatureFlags::MQ | VirtioBlkFeatureFlags::FLUSH).bits();
    let path = host.path.to_str().unwrap();
    let transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, features).unwrap();
    assert_eq!(transport.get_features() & features, features);
    let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
    let (file, mut map) = data();
    transport.map_mem_region(map.as_ptr() as usize, map.len(), file.as_raw_fd(), 0).unwrap();
    let mut queues = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 2, 128).unwrap();
    for (index, queue) in queues.iter_mut().enumerate() {
        let offset = |slot: usize| (index * DEPTH * BLOCK + slot * BLOCK) as u64;
        for round in 0..20 {
            for (slot, block) in map.chunks_mut(BLOCK).enumerate() {
                block.fill(u8::try_from(index * 100 + slot + round).unwrap());
                queue.write(offset(slot), block, slot).unwrap();
            }
            complete(&*transport, queue, index, DEPTH);
            queue.flush(0).unwrap();
            complete(&*transport, queue, index, 1);
            map.fill(0xff);
            for (slot, block) in map.chunks_mut(BLOCK).enumerate() {
                queue.read(offset(slot), block, slot).unwrap();
            }
            complete(&*transport, queue, index, DEPTH);
            for (slot, block) in map.chunks(BLOCK).enumerate() {
                let wanted = u8::try_from(index * 100 + slot + round).unwrap();
                assert!(block.iter().all(|byte| *byte == wanted), "{index} {round} {slot}");
            }
        }
        queue.discard(offset(0), BLOCK as u64, 0).unwrap();
        queue.write_zeroes(offset(1), BLOCK as u64, true, 1).unwrap();
        queue.read(offset(0), &mut map[..2 * BLOCK], 2).unwrap();
        complete(&*transport, queue, index, 3);
        assert!(map[..2 * BLOCK].iter().all(|byte| *byte == 0));
    }
    transport.unmap_mem_region(map.as_ptr() as usize, map.len()).unwrap();
}

#[test]
fn virtio_driver_moves_blocks_at_depth() {
    blocks_move_at_depth(VirtioFeatureFlags::empty());
}

#[test]
fn virtio_driver_with_event_index_moves_blocks() {
    let features = VirtioFeatureFlags::RING_EVENT_IDX | VirtioFeatureFlags::RING_INDIRECT_DESC;
    blocks_move_at_depth(features);
}
