//! A workload on a target: creation of the file set, then threads with their steps.
//!
//! Invariants: threads start together after the creation of their buffers. A thread checks its bound between loops of
//! steps, so it leaves no file open. The final sync has its own time. A thread's sizes depend on its seed alone.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::file_set::FileSet;
use super::personality::{APPEND_BYTES, IO_BYTES, Personality, Step};
use super::picker::Picker;
use super::target::Target;
use crate::stats::as_f64;
use crate::workload::{Action, Payload, Workload};

/// The log of a web server is truncated at this size. Filebench's log grows without limit.
const LOG_BYTES_MAX: u64 = 256 << 20;
const LOG_PATH: &str = "log";

/// End of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// Threads begin no loop of steps after this time.
    Time(Duration),
    /// Approximate number of operations over all threads.
    Operations(u64),
    /// All files of the set exist.
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

/// Results of a run.
#[derive(Clone, Default)]
pub(crate) struct Outcome {
    counts: [u64; Step::COUNT],
    pub(crate) elapsed: Duration,
    /// Time of the final sync.
    sync: Duration,
    /// The target's hint for readers.
    pub(crate) note: Option<&'static str>,
}

/// A file set on a target.
pub(crate) struct Filled<'a, T> {
    pub(crate) target: &'a T,
    pub(crate) set: &'a FileSet,
    picker: Picker,
    log_bytes: AtomicU64,
}

/// State of one thread.
struct Worker<'a, T: Target> {
    filled: &'a Filled<'a, T>,
    data: &'a [u8],
    open: Option<(usize, T::File)>,
    log: Option<T::File>,
    path: String,
    buffer: Payload,
    rng: SmallRng,
    counts: [u64; Step::COUNT],
}

impl Outcome {
    pub(crate) fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        as_f64(self.operations()) / self.elapsed.as_secs_f64()
    }

    /// Operations per second including the final sync.
    pub(crate) fn durable_rate(&self) -> f64 {
        as_f64(self.operations()) / (self.elapsed + self.sync).as_secs_f64()
    }

    /// Number of operations of one kind.
    pub(crate) fn count(&self, step: Step) -> u64 {
        self.counts[step as usize]
    }
}

/// A buffer of `IO_BYTES` that is aligned for direct I/O.
fn buffer() -> Payload {
    Payload::new(&Workload::new(Action::Rewrite, IO_BYTES / 2), 0, 0)
}

impl<'a, T: Target> Filled<'a, T> {
    /// Creates the directories of `set` and its files that exist at the start.
    ///
    /// # Errors
    /// The target's; the user interrupted the run.
    pub(crate) fn new(
        target: &'a T,
        set: &'a FileSet,
        personality: Personality,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let picker = Picker::new(set.entries.len());
        let filled = Self { target, set, picker, log_bytes: AtomicU64::new(0) };
        set.directories.iter().try_for_each(|path| target.make_directory(path))?;
        let data = buffer();
        let mut worker = Worker::new(&filled, data.first(IO_BYTES), 0);
        for &entry in &set.present {
            anyhow::ensure!(!stop.load(Ordering::Relaxed), "stopped");
            let steps = worker.create(entry as usize).and_then(|()| {
                worker.on_open(Step::WriteWhole)?;
                worker.on_open(Step::Close)
            });
            steps.with_context(|| format!("cannot create {} files", set.present.len()))?;
        }
        if personality.steps().contains(&Step::AppendLog) {
            target.close(target.create(LOG_PATH)?)?;
        }
        drop(worker);
        target.sync()?;
        Ok(filled)
    }

    /// A set that another process created on `target`.
    pub(crate) fn made_before(target: &'a T, set: &'a FileSet) -> Self {
        let picker = Picker::new(set.entries.len());
        set.present.iter().for_each(|&entry| picker.release(entry as usize, true));
        Self { target, set, picker, log_bytes: AtomicU64::new(0) }
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
            buffer: buffer(),
            rng: SmallRng::seed_from_u64(seed),
            counts: [0; Step::COUNT],
        }
    }

    /// Creates a picked file.
    fn create(&mut self, entry: usize) -> Result<()> {
        let Filled { target, set, picker, .. } = self.filled;
        set.path(entry, &mut self.path);
        self.open = Some((entry, target.create(&self.path)?));
        picker.opened(entry);
        Ok(())
    }

    /// Takes a step on a file of the set that exists and that the thread has not open.
    fn on_present(&mut self, step: Step) -> Result<()> {
        let Filled { target, set, picker, .. } = self.filled;
        let Some(entry) = picker.pick_present() else { return Ok(()) };
        set.path(entry, &mut self.path);
        match step {
            Step::Open => {
                self.open = Some((entry, target.open(&self.path)?));
                picker.opened(entry);
            }
            // Filebench deletes no file that another thread has open.
            Step::Delete if picker.is_open(entry) => {
                picker.release(entry, true);
                return Ok(());
            }
            Step::Delete => {
                target.delete(&self.path)?;
                picker.release(entry, false);
            }
            _ => {
                target.stat(&self.path)?;
                picker.release(entry, true);
            }
        }
        self.counts[step as usize] += 1;
        Ok(())
    }

    /// Takes a step on the open file. An earlier `Open` opens no file if other threads use all files.
    fn on_open(&mut self, step: Step) -> Result<()> {
        let target = self.filled.target;
        let Some((entry, file)) = self.open.take() else { return Ok(()) };
        match step {
            Step::WriteWhole => {
                let bytes = self.whole_units(self.filled.set.entries[entry].bytes.into());
                for at in (0..bytes).step_by(IO_BYTES) {
                    target.write(&file, at as u64, &self.data[..IO_BYTES.min(bytes - at)])?;
                }
            }
            Step::ReadWhole => {
                let (mut at, room) = (0, self.buffer.room(IO_BYTES));
                loop {
                    match target.read(&file, at, room)? {
                        0 => break,
                        bytes => at += bytes as u64,
                    }
                }
            }
            Step::Append => {
                self.append(&file)?;
            }
            Step::Fsync => target.fsync(&file)?,
            _ => {
                target.close(file)?;
                self.filled.picker.closed(entry);
                self.counts[step as usize] += 1;
                return Ok(());
            }
        }
        self.open = Some((entry, file));
        self.counts[step as usize] += 1;
        Ok(())
    }

    /// `bytes` in whole units of the target.
    fn whole_units(&self, bytes: u64) -> usize {
        let bytes = usize::try_from(bytes).expect("at most a file of 4 GiB");
        bytes.next_multiple_of(self.filled.target.unit_bytes())
    }

    /// Appends a random number of bytes and returns this number.
    fn append(&mut self, file: &T::File) -> Result<u64> {
        let bytes = self.rng.random_range(0..APPEND_BYTES);
        let bytes = self.whole_units(bytes);
        if bytes > 0 {
            self.filled.target.append(file, &self.data[..bytes])?;
        }
        Ok(bytes as u64)
    }

    fn append_log(&mut self) -> Result<()> {
        let Filled { target, log_bytes, .. } = self.filled;
        let log = self.log.take().map_or_else(|| target.open(LOG_PATH), Ok)?;
        let bytes = self.append(&log)?;
        let before = log_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Only the thread whose append passes the limit truncates the log.
        if before < LOG_BYTES_MAX && before + bytes >= LOG_BYTES_MAX {
            target.truncate(&log)?;
            log_bytes.store(0, Ordering::Relaxed);
        }
        self.log = Some(log);
        self.counts[Step::AppendLog as usize] += 1;
        Ok(())
    }

    /// Takes a step. Returns false if no file is left to create.
    fn step(&mut self, step: Step) -> Result<bool> {
        match step {
            Step::Create => {
                let Some(entry) = self.filled.picker.pick_absent() else { return Ok(false) };
                self.create(entry)?;
                self.counts[step as usize] += 1;
            }
            Step::Open | Step::Delete | Step::Stat => self.on_present(step)?,
            Step::AppendLog => self.append_log()?,
            _ => self.on_open(step)?,
        }
        Ok(true)
    }

    /// Takes the steps in a loop until the bound.
    fn work(&mut self, run: &Run<'_>, start: Instant) -> Result<()> {
        let steps = run.personality.steps();
        loop {
            let operations = self.counts.iter().sum::<u64>();
            let is_over = match run.bound {
                Bound::Time(slice) => start.elapsed() >= slice,
                Bound::Operations(all) => operations * run.threads as u64 >= all,
                Bound::Whole => false,
            };
            if is_over || run.stop.load(Ordering::Relaxed) {
                break;
            }
            for &step in &steps {
                let went = self.step(step);
                let went = went.with_context(|| format!("{step:?} at {}", self.path))?;
                // The other workloads delete files, so a later loop finds a file to create.
                if !went && run.personality == Personality::Createfiles {
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
/// The first thread's error. A file can be left open then.
pub(crate) fn run<T: Target>(filled: &Filled<'_, T>, run: &Run<'_>) -> Result<Outcome> {
    let data = buffer();
    let (data, barrier) = (data.first(IO_BYTES), Barrier::new(run.threads));
    let work = |thread| -> Result<_> {
        let mut worker = Worker::new(filled, data, thread as u64);
        barrier.wait();
        let start = Instant::now();
        worker.work(run, start)?;
        Ok((start, Instant::now(), worker.counts))
    };
    let done = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..run.threads).map(|n| scope.spawn(move || work(n))).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow!("a thread of the workload panicked")).flatten()
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let start = Instant::now();
    filled.target.sync()?;
    let (sync, note) = (start.elapsed(), filled.target.note());
    let mut outcome = Outcome { sync, note, ..Outcome::default() };
    let first = done.iter().map(|(start, ..)| *start).min();
    let last = done.iter().map(|(_, end, _)| *end).max();
    outcome.elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    for (own, kind) in done.iter().flat_map(|(.., counts)| counts.iter().zip(0..)) {
        outcome.counts[kind] += own;
    }
    Ok(outcome)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const ALIGN: usize = 4096;

    /// Checks each call of a target.
    pub(crate) fn check_target<T: Target>(target: &T) {
        target.make_directory("a").unwrap();
        let file = target.create("a/b").unwrap();
        assert!(target.create("a/b").is_err());
        let data = buffer();
        let data = data.first(3 * ALIGN);
        target.write(&file, 0, &data[..ALIGN]).unwrap();
        target.write(&file, ALIGN as u64, &data[ALIGN..2 * ALIGN]).unwrap();
        target.append(&file, &data[2 * ALIGN..]).unwrap();
        target.fsync(&file).unwrap();
        let mut room = vec![0; IO_BYTES];
        assert_eq!(target.read(&file, 0, &mut room).unwrap(), data.len());
        assert!(room[..data.len()] == *data);
        assert_eq!(target.read(&file, data.len() as u64, &mut room).unwrap(), 0);
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

    /// Runs a personality and checks its counts of steps.
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
            _ => outcome.operations() / steps.len() as u64,
        };
        use Step::*;
        for step in
            [Create, Open, WriteWhole, ReadWhole, Append, Fsync, Close, Delete, Stat, AppendLog]
        {
            let of_round = steps.iter().filter(|&&own| own == step).count() as u64;
            let counted = outcome.count(step);
            assert_eq!(counted > 0, of_round > 0, "{personality:?}: {step:?}");
            if threads == 1 && step != Delete && rounds > 0 {
                assert!(counted.abs_diff(of_round * rounds) <= of_round, "{step:?}");
            }
        }
        assert!(outcome.rate() >= outcome.durable_rate() && outcome.rate() > 0.0);
        for file in 0..300 {
            let mut path = String::new();
            set.path(file, &mut path);
            assert_eq!(target.stat(&path).is_ok(), filled.picker.is_present(file), "{path}");
        }
    }
}
