//! A workload on a target: creation of the file set, then threads with their steps.
//!
//! Invariants: threads start together after the creation of their buffers. A thread checks its bound between rounds of
//! steps, so it leaves no file open. Only calls of the target are timed. The final sync has its own time. A thread's
//! sizes depend on its seed alone.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::file_set::FileSet;
use super::personality::{APPEND_BYTES, IO_BYTES, Operation, Personality, Step};
use super::picker::Picker;
use super::target::Target;
use crate::stats::as_f64;

/// Buffers begin at multiples of this, for unbuffered reads and writes.
const ALIGN: usize = 4096;
/// The log of a web server begins anew at this size; Filebench's grows without end.
const LOG_BYTES_MAX: u64 = 256 << 20;
const LOG_PATH: &str = "log";
/// Longest latency that is told from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// End of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// Threads begin no round of steps after it.
    Time(Duration),
    /// About so many operations over all threads.
    Operations(u64),
    /// The file set is whole.
    Whole,
}

/// Threads and end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) personality: Personality,
    pub(crate) threads: usize,
    pub(crate) bound: Bound,
    pub(crate) stop: &'a AtomicBool,
}

/// Results of a run, or of one of its threads.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    /// Time that it took to make everything durable after that.
    pub(crate) sync: Duration,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Look-ups of inode tables, if the target counts them.
    pub(crate) lookups: u64,
    latencies: [Option<Histogram<u64>>; Operation::ALL.len()],
}

/// A file set on a target.
pub(crate) struct Filled<'a, T> {
    pub(crate) target: &'a T,
    pub(crate) set: &'a FileSet,
    picker: Picker,
    log_bytes: AtomicU64,
}

/// Bytes that begin at a multiple of `ALIGN`.
struct Buffer {
    room: Vec<u8>,
    start: usize,
}

/// A thread's hands.
struct Worker<'a, T: Target> {
    filled: &'a Filled<'a, T>,
    data: &'a [u8],
    open: Option<(usize, T::File)>,
    log: Option<T::File>,
    path: String,
    buffer: Buffer,
    rng: SmallRng,
    outcome: Outcome,
}

/// The answer to a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Went {
    On,
    /// There is no file to create any more.
    Out,
}

impl Buffer {
    fn new(bytes: u64) -> Self {
        let len = usize::try_from(bytes).expect("a buffer fits into memory");
        let room = vec![0; len + ALIGN];
        let start = room.as_ptr().align_offset(ALIGN);
        Self { room, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.room.len() - ALIGN;
        &mut self.room[self.start..self.start + len]
    }
}

impl Outcome {
    /// Operations in a second.
    pub(crate) fn rate(&self) -> f64 {
        as_f64(self.operations) / self.elapsed.as_secs_f64()
    }

    /// The same if what makes everything durable counts.
    pub(crate) fn durable_rate(&self) -> f64 {
        as_f64(self.operations) / (self.elapsed + self.sync).as_secs_f64()
    }

    /// Microseconds that so many percent of the operations of a kind took at most; `None` if there
    /// were none.
    pub(crate) fn latency_us(&self, operation: Operation, percent: f64) -> Option<f64> {
        let latencies = self.latencies[operation as usize].as_ref()?;
        Some(as_f64(latencies.value_at_quantile(percent / 100.0)) / 1e3)
    }

    /// How many operations of a kind there were.
    pub(crate) fn count(&self, operation: Operation) -> u64 {
        self.latencies[operation as usize].as_ref().map_or(0, Histogram::len)
    }

    fn note(&mut self, operation: Operation, took: Duration) -> Result<()> {
        let latencies = &mut self.latencies[operation as usize];
        let latencies = match latencies {
            Some(latencies) => latencies,
            None => latencies.insert(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)?),
        };
        latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.operations += 1;
        Ok(())
    }

    fn add(&mut self, other: Self) -> Result<()> {
        self.operations += other.operations;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.lookups += other.lookups;
        for (own, others) in self.latencies.iter_mut().zip(other.latencies) {
            match (own.as_mut(), others) {
                (Some(own), Some(others)) => own.add(&others)?,
                (None, others) => *own = others,
                (Some(_), None) => {}
            }
        }
        Ok(())
    }
}

/// The bytes that all files are made of.
fn random_bytes() -> Buffer {
    let mut buffer = Buffer::new(IO_BYTES);
    SmallRng::seed_from_u64(1).fill_bytes(buffer.bytes());
    buffer
}

impl<'a, T: Target> Filled<'a, T> {
    /// Makes the directories of `set`, and the files that are there at first.
    ///
    /// # Errors
    /// The target's; it is to stop.
    pub(crate) fn new(
        target: &'a T,
        set: &'a FileSet,
        personality: Personality,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let picker = Picker::new(set.entries.len());
        let filled = Self { target, set, picker, log_bytes: AtomicU64::new(0) };
        set.directories.iter().try_for_each(|path| target.make_directory(path))?;
        let mut data = random_bytes();
        let mut worker = Worker::new(&filled, data.bytes(), 0);
        for &entry in &set.present {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped");
            let entry = usize::try_from(entry)?;
            worker.create(entry).and_then(|()| worker.write_whole()).with_context(|| {
                format!(
                    "making {} files in {} directories",
                    set.present.len(),
                    set.directories.len()
                )
            })?;
            worker.close()?;
        }
        if personality.steps().contains(&Step::AppendLog) {
            target.close(target.create(LOG_PATH)?)?;
        }
        drop(worker);
        target.sync()?;
        Ok(filled)
    }

    /// A set that somebody else made on `target`.
    pub(crate) fn made_before(target: &'a T, set: &'a FileSet) -> Result<Self> {
        let picker = Picker::new(set.entries.len());
        for &entry in &set.present {
            picker.release(usize::try_from(entry)?, true);
        }
        Ok(Self { target, set, picker, log_bytes: AtomicU64::new(0) })
    }
}

impl<'a, T: Target> Worker<'a, T> {
    fn new(filled: &'a Filled<'a, T>, data: &'a [u8], seed: u64) -> Self {
        Self {
            filled,
            data,
            open: None,
            log: None,
            path: String::new(),
            buffer: Buffer::new(IO_BYTES),
            rng: SmallRng::seed_from_u64(seed),
            outcome: Outcome::default(),
        }
    }

    /// Calls the target, and notes how long it took.
    fn timed<R>(
        &mut self,
        kind: Operation,
        call: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let start = Instant::now();
        let result = call(self)?;
        self.outcome.note(kind, start.elapsed())?;
        Ok(result)
    }

    /// `bytes` in whole units of the target.
    fn whole_units(&self, bytes: u64) -> usize {
        let bytes = usize::try_from(bytes).expect("at most a file of 4 GiB");
        bytes.next_multiple_of(self.filled.target.unit_bytes())
    }

    fn set_path(&mut self, entry: usize) {
        let set = self.filled.set;
        set.path(&set.entries[entry], &mut self.path);
    }

    /// Creates a file that was picked.
    fn create(&mut self, entry: usize) -> Result<()> {
        self.set_path(entry);
        let made = self.timed(Operation::Create, |own| own.filled.target.create(&own.path));
        self.open = Some((entry, made?));
        self.filled.picker.opened(entry);
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        let Some(entry) = self.filled.picker.pick_present() else { return Ok(()) };
        self.set_path(entry);
        let opened = self.timed(Operation::Open, |own| own.filled.target.open(&own.path));
        self.open = Some((entry, opened?));
        self.filled.picker.opened(entry);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        self.timed(Operation::Close, |own| own.filled.target.close(file))?;
        self.filled.picker.closed(entry);
        Ok(())
    }

    fn write_whole(&mut self) -> Result<()> {
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        let bytes = self.whole_units(u64::from(self.filled.set.entries[entry].bytes));
        self.timed(Operation::Write, |own| {
            let mut at = 0;
            while at < bytes {
                let part = own.data.len().min(bytes - at);
                own.filled.target.write(&file, at as u64, &own.data[..part])?;
                at += part;
            }
            Ok(())
        })?;
        self.outcome.written_bytes += bytes as u64;
        self.open = Some((entry, file));
        Ok(())
    }

    fn read_whole(&mut self) -> Result<()> {
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        let bytes = self.timed(Operation::Read, |own| {
            let (target, buffer) = (own.filled.target, own.buffer.bytes());
            let mut at = 0;
            loop {
                match target.read(&file, at, buffer)? {
                    0 => return Ok(at),
                    bytes => at += bytes as u64,
                }
            }
        })?;
        self.outcome.read_bytes += bytes;
        self.open = Some((entry, file));
        Ok(())
    }

    /// Appends a random number of bytes, and returns it.
    fn append_to(&mut self, file: &T::File) -> Result<u64> {
        let bytes = self.rng.random_range(0..APPEND_BYTES);
        let bytes = self.whole_units(bytes);
        self.timed(Operation::Append, |own| match bytes {
            0 => Ok(()),
            _ => own.filled.target.append(file, &own.data[..bytes]),
        })?;
        self.outcome.written_bytes += bytes as u64;
        Ok(bytes as u64)
    }

    fn append(&mut self) -> Result<()> {
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        self.append_to(&file)?;
        self.open = Some((entry, file));
        Ok(())
    }

    fn append_log(&mut self) -> Result<()> {
        let log = match self.log.take() {
            Some(log) => log,
            None => self.filled.target.open(LOG_PATH)?,
        };
        let bytes = self.append_to(&log)?;
        let before = self.filled.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < LOG_BYTES_MAX && before + bytes >= LOG_BYTES_MAX {
            self.filled.target.truncate(&log)?;
            self.filled.log_bytes.store(0, Ordering::Relaxed);
        }
        self.log = Some(log);
        Ok(())
    }

    fn fsync(&mut self) -> Result<()> {
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        self.timed(Operation::Fsync, |own| own.filled.target.fsync(&file))?;
        self.open = Some((entry, file));
        Ok(())
    }

    /// Deletes a file, unless somebody has it open.
    fn delete(&mut self) -> Result<()> {
        let Some(entry) = self.filled.picker.pick_present() else { return Ok(()) };
        if self.filled.picker.is_open(entry) {
            self.filled.picker.release(entry, true);
            return Ok(());
        }
        self.set_path(entry);
        self.timed(Operation::Delete, |own| own.filled.target.delete(&own.path))?;
        self.filled.picker.release(entry, false);
        Ok(())
    }

    fn stat(&mut self) -> Result<()> {
        let Some(entry) = self.filled.picker.pick_present() else { return Ok(()) };
        self.set_path(entry);
        self.timed(Operation::Stat, |own| own.filled.target.stat(&own.path))?;
        self.filled.picker.release(entry, true);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<Went> {
        match step {
            Step::Create => match self.filled.picker.pick_absent() {
                Some(entry) => self.create(entry)?,
                None => return Ok(Went::Out),
            },
            Step::Open => self.open()?,
            Step::WriteWhole => self.write_whole()?,
            Step::ReadWhole => self.read_whole()?,
            Step::Append => self.append()?,
            Step::Fsync => self.fsync()?,
            Step::Close => self.close()?,
            Step::Delete => self.delete()?,
            Step::Stat => self.stat()?,
            Step::AppendLog => self.append_log()?,
        }
        Ok(Went::On)
    }

    /// Takes the steps over and over.
    fn work(&mut self, run: &Run<'_>, start: Instant) -> Result<()> {
        let steps = run.personality.steps();
        loop {
            let is_over = match run.bound {
                Bound::Time(slice) => start.elapsed() >= slice,
                Bound::Operations(all) => self.outcome.operations * run.threads as u64 >= all,
                Bound::Whole => false,
            };
            if is_over || run.stop.load(Ordering::Relaxed) {
                break;
            }
            for &step in &steps {
                let went = self.step(step);
                let went = went.with_context(|| format!("{step:?} at {}", self.path))?;
                // Only who makes the whole set is done with that.
                if went == Went::Out && run.personality == Personality::Createfiles {
                    return Ok(());
                }
            }
        }
        self.log.take().map_or(Ok(()), |log| self.filled.target.close(log))
    }
}

/// Runs the threads.
///
/// # Errors
/// The first thread's; a file may be left open then.
pub(crate) fn run<T: Target>(filled: &Filled<'_, T>, run: &Run<'_>) -> Result<Outcome> {
    let mut data = random_bytes();
    let data: &[u8] = data.bytes();
    let barrier = Barrier::new(run.threads);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..run.threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || -> Result<(Instant, Instant, Outcome)> {
                    let mut worker = Worker::new(filled, data, thread as u64);
                    barrier.wait();
                    let (start, before) = (Instant::now(), filled.target.lookups());
                    worker.work(run, start)?;
                    let end = Instant::now();
                    worker.outcome.lookups = filled.target.lookups() - before;
                    Ok((start, end, worker.outcome))
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow!("a thread of the workload panicked")).flatten()
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let start = Instant::now();
    filled.target.sync()?;
    let mut outcome = Outcome { sync: start.elapsed(), ..Outcome::default() };
    let first = done.iter().map(|(start, ..)| *start).min();
    let last = done.iter().map(|(_, end, _)| *end).max();
    outcome.elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    done.into_iter().try_for_each(|(.., thread)| outcome.add(thread))?;
    Ok(outcome)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that a target does what it is asked to, and every personality runs on it.
    pub(crate) fn check_target<T: Target>(target: &T) {
        target.make_directory("a").unwrap();
        let file = target.create("a/b").unwrap();
        assert!(target.create("a/b").is_err());
        let mut data = random_bytes();
        let data = &data.bytes()[..3 * ALIGN];
        target.write(&file, 0, &data[..ALIGN]).unwrap();
        target.write(&file, ALIGN as u64, &data[ALIGN..2 * ALIGN]).unwrap();
        target.append(&file, &data[2 * ALIGN..]).unwrap();
        target.fsync(&file).unwrap();
        let mut buffer = Buffer::new(IO_BYTES);
        assert_eq!(target.read(&file, 0, buffer.bytes()).unwrap(), data.len());
        assert!(buffer.bytes()[..data.len()] == *data);
        assert_eq!(target.read(&file, data.len() as u64, buffer.bytes()).unwrap(), 0);
        assert_eq!(target.stat("a/b").unwrap(), data.len() as u64);
        target.truncate(&file).unwrap();
        target.close(file).unwrap();
        assert_eq!(target.stat("a/b").unwrap(), 0);
        target.close(target.open("a/b").unwrap()).unwrap();
        target.set_permissions("a/b", 0o600).unwrap();
        target.rename("a/b", "a/c").unwrap();
        assert!(target.stat("a/b").is_err());
        target.make_file("a/b").unwrap();
        assert!(target.make_file("a/b").is_err());
        target.delete("a/c").unwrap();
        target.delete("a/b").unwrap();
        assert!(target.open("a/b").is_err());
        target.sync().unwrap();
    }

    /// Runs a personality, and checks that it did what its steps say.
    pub(crate) fn check_run<T: Target>(target: &T, personality: Personality, threads: usize) {
        let (stop, set) = (AtomicBool::new(false), FileSet::new(personality, 300));
        let filled = Filled::new(target, &set, personality, &stop).unwrap();
        let bound = match personality {
            Personality::Createfiles => Bound::Whole,
            _ => Bound::Operations(2000),
        };
        let outcome = run(&filled, &Run { personality, threads, bound, stop: &stop }).unwrap();
        let steps = personality.steps();
        let rounds = match personality {
            Personality::Createfiles => 300,
            _ => outcome.operations / steps.len() as u64,
        };
        for operation in Operation::ALL {
            let of_round = steps.iter().filter(|step| step.operation() == operation).count() as u64;
            let counted = outcome.count(operation);
            assert_eq!(counted > 0, of_round > 0, "{personality:?}: {operation:?}");
            assert_eq!(outcome.latency_us(operation, 99.0).is_some(), counted > 0);
            if threads == 1 && operation != Operation::Delete && rounds > 0 {
                assert!(counted.abs_diff(of_round * rounds) <= of_round, "{operation:?}");
            }
        }
        assert!(outcome.rate() >= outcome.durable_rate() && outcome.rate() > 0.0);
        assert_eq!(outcome.read_bytes > 0, steps.contains(&Step::ReadWhole));
        assert!(outcome.written_bytes > 0);
        for file in 0..300 {
            let mut path = String::new();
            set.path(&set.entries[file], &mut path);
            assert_eq!(target.stat(&path).is_ok(), filled.picker.is_present(file), "{path}");
        }
    }
}
