//! Two extents with concurrent writers: they share the volume's tree of checksums.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use everbyte_extent::{BlockRange, DeviceOffset, ExtentError, Planner};
use everbyte_media::{BLOCK, BLOCK_U64};
use everbyte_pool::{BatchOutcome, PlanConstraints};

use crate::new_pair;
use crate::pair::{BOTH, Settings, pattern};

/// The first thread has planned the missing node of the checksums, and the second one needs the same node.
#[test]
fn checksum_branch_is_built_once() {
    let settings = Settings { checksums: true, lanes: 2, ..Settings::default() };
    let pair = &new_pair(256, &settings);
    let data = [0, 1].map(|seed| pattern(seed, BLOCK));
    let volume = pair.volume();
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        let _op = volume.begin_op();
        let blocks = BlockRange::of_bytes(DeviceOffset(0), BLOCK_U64);
        let _blocks = pair.extents[0].locks().write([blocks]);
        let mut batch = volume.begin_batch().unwrap();
        Planner::new(&pair.extents[0], &mut batch, PlanConstraints::default())
            .write(DeviceOffset(0), &data[0])
            .unwrap();
        let second = &data[1];
        scope.spawn(move || done.send(pair.write(1, 0, second)));
        // A thread that does not wait for the first one has ended long before; a waiting thread is only
        // beginning.
        let early = is_done.recv_timeout(Duration::from_millis(300));
        assert!(matches!(batch.commit(), Ok(BatchOutcome::Done(_))));
        let late = match early {
            Err(RecvTimeoutError::Timeout) => is_done.recv().unwrap(),
            early => early.unwrap(),
        };
        late.unwrap();
    });
    for which in BOTH {
        assert!(pair.read(which, 0, BLOCK).unwrap() == data[which], "extent {which}");
    }
    pair.judge().unwrap();
}

#[test]
fn two_writers_read_back_their_checksummed_bytes() {
    let settings =
        Settings { sizes: [(3 << 20) + 1; 2], checksums: true, lanes: 2, ..Settings::default() };
    let pair = &new_pair(4096, &settings);
    std::thread::scope(|scope| {
        let writers = BOTH.map(|which| {
            scope.spawn(move || -> Result<(), ExtentError> {
                for round in 0..600_u64 {
                    let at = round * 7919 * 13 % (3 << 20);
                    let data = pattern(round, 1 + usize::try_from(round % 9).unwrap() * 900);
                    let data = &data[..data.len().min(usize::try_from((3 << 20) - at).unwrap())];
                    pair.write(which, at, data)?;
                    assert!(pair.read(which, at, data.len())? == data);
                    if round % 97 == 0 {
                        pair.volume().flush()?;
                    }
                }
                Ok(())
            })
        });
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
    pair.judge().unwrap();
}
