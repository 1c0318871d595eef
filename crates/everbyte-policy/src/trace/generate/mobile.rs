//! The paper's two workloads of a tablet: a browser, and four programs one after the other.
//!
//! Both write mostly through `SQLite`, see `sqlite`, and also logs of short lines and preferences
//! rewritten in place. Sizes of the single files are assumed; their sum is the paper's.

use std::io;

use super::Sink;
use super::random::Zipf;
use super::script::{File, Log, PAGE, Script, Stream};
use super::sqlite::Database;

/// The paper's footprint of "web", 20,428 KB, in pages.
pub(super) const WEB_PAGES: u64 = 20_428 / 4;
/// The paper's mean write of "web".
pub(super) const WEB_WRITE_BYTES: u64 = 1599;
/// The paper's footprint of "mixed", 57,320 KB, in pages.
pub(super) const MIXED_PAGES: u64 = 57_320 / 4;
/// The paper's mean write of "mixed".
pub(super) const MIXED_WRITE_BYTES: u64 = 1625;

/// Contents in one area: each is a run of pages, written once in a while, read whole.
struct Contents {
    file: File,
    /// First page and number of pages of each.
    runs: Vec<(u64, u64)>,
    popularity: Zipf,
}

impl Contents {
    /// Makes runs of up to `longest` pages.
    fn new(script: &mut Script<'_>, name: &str, pages: u64, longest: u64) -> Self {
        let file = script.file(name, pages);
        let mut runs = Vec::new();
        let mut first = 0;
        while first < pages {
            let run = script.random.between(1, longest).min(pages - first);
            runs.push((first, run));
            first += run;
        }
        let popularity = Zipf::new(runs.len() as u64, 0.8);
        Self { file, runs, popularity }
    }

    fn run(&self, script: &mut Script<'_>) -> (u64, u64) {
        let rank = self.popularity.rank(&mut script.random);
        let number = (rank * 7919) % self.runs.len() as u64;
        self.runs[usize::try_from(number).unwrap_or(0)]
    }

    fn read(&self, script: &mut Script<'_>) -> io::Result<()> {
        let (first, pages) = self.run(script);
        script.read(self.file, first * PAGE, pages * PAGE)
    }

    /// Replaces one run: whole pages, and a rest that ends within the last one.
    fn replace(&self, script: &mut Script<'_>) -> io::Result<()> {
        let (first, pages) = self.run(script);
        let len = (pages - 1) * PAGE + script.random.between(1, PAGE);
        script.write_by_pages(self.file, first * PAGE, len)
    }
}

/// Background writes of every program of a tablet.
struct System {
    log: Log,
    preferences: File,
}

impl System {
    const PAGES: u64 = 24 + 2;

    fn new(script: &mut Script<'_>) -> Self {
        Self { log: Log::new(script, "log", 24), preferences: script.file("preferences", 2) }
    }

    /// Writes a line to the log; sometimes saves the preferences.
    fn note(&mut self, script: &mut Script<'_>) -> io::Result<()> {
        let line = script.random.between(40, 180);
        self.log.append(script, line)?;
        if script.random.percent(8) {
            let len = script.random.between(400, 1800);
            script.write_by_pages(self.preferences, 0, len)?;
            script.flush(self.preferences)?;
        }
        Ok(())
    }
}

/// The browser.
pub(super) fn web(seed: u64, requests: u64, sink: Sink<'_>) -> io::Result<()> {
    let script = &mut Script::new(seed, WEB_WRITE_BYTES, sink);
    let mut system = System::new(script);
    let databases = [("history.db", 380), ("cookies.db", 110), ("forms.db", 200)]
        .map(|(name, pages)| Database::new(script, name, pages));
    let mut libraries = Stream::new(script, "libraries", 1100);
    let rest = WEB_PAGES - script.pages_of_all();
    let cache = Contents::new(script, "cache", rest, 12);
    while script.requests() < requests {
        // One visit of a page.
        for _ in 0..script.random.between(4, 16) {
            cache.read(script)?;
        }
        for _ in 0..script.random.between(0, 3) {
            if script.wants_large_writes() {
                cache.replace(script)?;
            }
        }
        if script.random.percent(30) {
            let pages = script.random.between(4, 16);
            libraries.read(script, pages)?;
        }
        for database in &databases {
            let pages = script.random.between(1, 3);
            database.query(script, pages)?;
            if script.random.percent(60) {
                database.change(script)?;
            }
        }
        system.note(script)?;
        script.pause_us(900_000);
    }
    script.read_the_rest()
}

/// Video, gallery, social network, maps.
pub(super) fn mixed(seed: u64, requests: u64, sink: Sink<'_>) -> io::Result<()> {
    let script = &mut Script::new(seed, MIXED_WRITE_BYTES, sink);
    let mut system = System::new(script);
    let media = Database::new(script, "media.db", 500);
    let messages = Database::new(script, "messages.db", 900);
    let tiles = Database::new(script, "tiles.db", 1600);
    let thumbnails = Contents::new(script, "thumbnails", 1200, 4);
    let photographs = Contents::new(script, "photographs", 3200, 256);
    let pictures = Contents::new(script, "pictures", 800, 8);
    let rest = MIXED_PAGES - script.pages_of_all();
    let mut film = Stream::new(script, "film", rest);
    while script.requests() < requests {
        let program = script.random.below(4);
        for _ in 0..script.random.between(40, 160) {
            match program {
                // Some seconds of a film, and where it was left.
                0 => {
                    film.read(script, 32)?;
                    if script.random.percent(10) {
                        media.change(script)?;
                    }
                }
                // A screen of thumbnails, sometimes a photograph.
                1 => {
                    media.query(script, 2)?;
                    for _ in 0..12 {
                        thumbnails.read(script)?;
                    }
                    if script.random.percent(20) {
                        photographs.read(script)?;
                    }
                    if script.wants_large_writes() {
                        thumbnails.replace(script)?;
                    }
                }
                // Messages come in, with pictures.
                2 => {
                    messages.query(script, 4)?;
                    messages.change(script)?;
                    pictures.read(script)?;
                    if script.wants_large_writes() && script.random.percent(50) {
                        pictures.replace(script)?;
                    }
                }
                // The map is moved.
                _ => {
                    tiles.query(script, 6)?;
                    if script.random.percent(50) {
                        tiles.change(script)?;
                    }
                }
            }
            if !script.wants_large_writes() || script.random.percent(20) {
                system.note(script)?;
            }
            script.pause_us(300_000);
        }
    }
    script.read_the_rest()
}

const _: () = assert!(System::PAGES < WEB_PAGES);
