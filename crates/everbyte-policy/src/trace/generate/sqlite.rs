//! The requests of `SQLite` to its files in rollback mode, as Android's databases were when the
//! paper's traces were taken.
//!
//! A transaction has these steps. It reads the change counter (bytes 24..40 of the first page) and
//! its pages. It writes to the journal the header, and for each page its number (4 bytes), its old
//! content and a checksum (4 bytes), and hardens the journal. It writes the number of records into
//! the header (12 bytes at its beginning) and hardens it. It writes the pages, including the first
//! one because of the counter, and hardens them. It overwrites the header with 28 zeroes (journal
//! mode PERSIST). Source: SQLite's documentation, "Atomic Commit In SQLite" and "Database File
//! Format", section 3.

use std::io;

use super::random::Zipf;
use super::script::{File, PAGE, Script};

/// Most pages that a transaction changes.
pub(super) const CHANGED_MAX: u64 = 5;
/// Pages of a journal: a header and its records.
pub(super) const JOURNAL_PAGES: u64 = 6;
/// The sector that a journal's header takes.
const HEADER: u64 = 512;
/// Skew of the uses of a database's pages: inner pages of its trees and a few leaves are hot.
const SKEW: f64 = 0.9;

/// A database and its journal.
pub(super) struct Database {
    file: File,
    journal: File,
    /// Popularity of all pages but the first.
    popularity: Zipf,
}

impl Database {
    /// Makes a database of `pages` pages, at least 2, and its journal of [`JOURNAL_PAGES`].
    pub(super) fn new(script: &mut Script<'_>, name: &str, pages: u64) -> Self {
        Self {
            file: script.file(name, pages),
            journal: script.file(&format!("{name}-journal"), JOURNAL_PAGES),
            popularity: Zipf::new(pages - 1, SKEW),
        }
    }

    /// Draws a page other than the first. Ranks are spread by a stride, so that hot pages lie
    /// apart.
    fn page(&self, script: &mut Script<'_>) -> u64 {
        let pages = script.pages(self.file) - 1;
        // The prime scatters popular pages over the file. Page 0 has the header.
        1 + (self.popularity.rank(&mut script.random) * 7919) % pages
    }

    /// Reads as a query does.
    pub(super) fn query(&self, script: &mut Script<'_>, pages: u64) -> io::Result<()> {
        script.read(self.file, 24, 16)?;
        for _ in 0..pages {
            let page = self.page(script);
            script.read(self.file, page * PAGE, PAGE)?;
        }
        Ok(())
    }

    /// Runs a transaction: it changes more pages if writes are to be larger on average.
    pub(super) fn change(&self, script: &mut Script<'_>) -> io::Result<()> {
        let changed = match script.wants_large_writes() {
            true => script.random.between(3, CHANGED_MAX),
            false => script.random.between(1, 2),
        };
        // The first page always changes: it has the change counter.
        let mut pages = vec![0];
        for _ in 1..changed {
            pages.push(self.page(script));
        }
        script.read(self.file, 24, 16)?;
        for page in &pages {
            script.read(self.file, page * PAGE, PAGE)?;
        }
        script.write(self.journal, 0, HEADER)?;
        let mut at = HEADER;
        for _ in &pages {
            script.write(self.journal, at, 4)?;
            script.write(self.journal, at + 4, PAGE)?;
            script.write(self.journal, at + 4 + PAGE, 4)?;
            at += PAGE + 8;
        }
        // The old pages are durable before the header names them.
        script.flush(self.journal)?;
        script.write(self.journal, 0, 12)?;
        script.flush(self.journal)?;
        for page in &pages {
            script.write(self.file, page * PAGE, PAGE)?;
        }
        script.flush(self.file)?;
        script.write(self.journal, 0, 28)
    }
}
