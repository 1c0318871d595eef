//! A durable queue, a cache, a file system with streams, and a crash test, by the public API alone.

use std::io::{Read, Seek, SeekFrom, Write};

use everbyte::crash::{Crash, Explorer, Log};
use everbyte::explore::{DeviceTest, OnDevice};
use everbyte::stream::Cursor;
use everbyte::{BlockDevice, Pool, Result};

/// A queue of numbers: word 0 counts them.
struct Queue<'d>(&'d dyn BlockDevice);

impl Queue<'_> {
    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_at(at * 8, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn push(&self, number: u64) -> Result<()> {
        let count = self.word(0)?;
        self.0.write_durable((count + 1) * 8, &number.to_le_bytes())?;
        Ok(self.0.write_durable(0, &(count + 1).to_le_bytes())?)
    }
}

struct Pushes;

impl DeviceTest for Pushes {
    type Event = u64;

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn run(&self, device: &dyn BlockDevice, log: &Log<u64>) {
        for number in 1..=2 {
            Queue(device).push(number).expect("a push");
            log.note(number);
        }
    }

    fn check(&self, device: &dyn BlockDevice, crash: &Crash<'_, u64>) -> Result<(), String> {
        let (queue, pushed) = (Queue(device), crash.events.last().map_or(0, |last| last.event));
        let count = queue.word(0).map_err(|error| error.to_string())?;
        let is_whole = (1..=count).all(|at| queue.word(at).is_ok_and(|word| word == at));
        (is_whole && count >= pushed).then_some(()).ok_or(format!("{count} after {pushed}"))
    }
}

fn main() -> Result<()> {
    let folder = std::path::PathBuf::from(std::env::args_os().nth(1).expect("a folder"));
    let pool = Pool::create(folder.join("pool"), 64 << 20)?;
    Queue(&pool.create_block("queue", 1 << 20)?).push(7)?;
    std::fs::File::create(folder.join("slow"))?.set_len(8 << 20)?;
    let cache = pool.create_cache("cache", folder.join("slow"), 1 << 20)?;
    cache.write_at(0, b"hot")?;
    cache.detach(|_| ())?;
    let mut file = Cursor::new(pool.create_fs("files", 8 << 20)?.open_file("letter")?);
    file.write_all(b"dear reader")?;
    file.seek(SeekFrom::Start(5))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    drop(file);
    pool.close()?;
    println!("{text} {}", Explorer::default().explore(&OnDevice(Pushes)).is_ok());
    Ok(())
}
