//! Check of block ownership as a partition: every block is free or owned once.
//!
//! Owns no state. The check of an open pool keeps writers out and compares the blocks of the maps with the
//! allocator's state. It finds blocks with two owners, blocks without an owner, free blocks with an owner,
//! and every invalid word and header.

use std::sync::Arc;

use everbyte_media::{BLOCK_U64, BlockNo, Medium};

use crate::alloc::{Allocator, BlockRun};
use crate::format::Corrupt;
use crate::health::Health;
use crate::kind::{ClaimCollector, DoubleOwnership};
use crate::pool::{Pool, PoolError};
use crate::scrub::ScrubFinding;
use crate::volume::Volume;

/// Problems of one sort in the list; further ones are only counted.
const LISTED_MAX: usize = 20;

/// Report of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Volumes with a walked map.
    pub volumes: usize,
    /// Blocks owned by volumes, logs and maps included.
    pub used_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Damage repaired or found when the pool was opened.
    pub remarks: Vec<String>,
    /// All problems, each naming structure and offset.
    pub problems: Vec<String>,
    /// Health of the pool, by the worst of the problems.
    pub health: Health,
    /// Blocks without an owner. They are not allocated before a repair.
    pub leaked_blocks: u64,
}

impl CheckReport {
    /// Returns true if nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes a problem: the health of the pool is not better than `health`.
    pub(crate) fn note(&mut self, health: Health, problem: impl ToString) {
        self.health = self.health.max(health);
        self.problems.push(problem.to_string());
    }

    /// Notes several problems.
    pub(crate) fn note_all(&mut self, health: Health, problems: impl IntoIterator<Item = String>) {
        problems.into_iter().for_each(|problem| self.note(health, problem));
    }
}

/// Sets the volume's count of used blocks to the count of its map, and reports a difference.
fn count_anew<M: Medium>(volume: &Volume<M>, used: u64) -> Option<String> {
    let counted = volume.correct_used_blocks(used)?;
    let name = volume.name();
    Some(format!("volume {name}: {counted} blocks were counted as used, and it uses {used}"))
}

impl<M: Medium> Pool<M> {
    /// Checks the pool while it is open. Writers wait; readers go on.
    ///
    /// # Errors
    /// The medium's. The problems of the pool are in the report, not an error.
    pub fn check(&self) -> Result<CheckReport, PoolError> {
        // Before writers have to wait.
        let findings = self.scrub().findings;
        let _admin = self.lock_admin();
        let volumes = self.volumes();
        let quiesce_locks: Vec<_> = volumes.iter().map(|v| v.quiesce()).collect();
        let mut report = CheckReport {
            volumes: volumes.len(),
            remarks: self.recovery().remarks.clone(),
            ..CheckReport::default()
        };
        self.check_openly(findings, &volumes, &mut report);
        let mut walked = self.space_unknown().is_none();
        for volume in volumes.iter().filter(|v| v.opened_read_only().is_none()) {
            // Afterwards no block is deferred or preallocated: such blocks are in no map and not
            // free.
            if let Err(error) = volume.settle() {
                report.note(Health::Damaged, format!("volume {}: {error}", volume.name()));
                walked = false;
            }
        }
        // A pin that ends during the comparison would free its blocks in between.
        let _frozen_pins: Vec<_> = volumes.iter().map(|volume| volume.pins.freeze()).collect();
        let bounds = self.data_bounds();
        let owned = Allocator::new(bounds.end);
        let all = BlockRun { start: BlockNo(bounds.start), len: bounds.end - bounds.start };
        if let Err(error) = owned.add(all) {
            report.note(Health::Damaged, error);
        }
        for volume in &volumes {
            // The blocks of an unknown kind cannot be told from leaked ones.
            if !self.knows_kind(volume) {
                walked = false;
                continue;
            }
            let free_before = owned.free_blocks();
            let mut taker = ClaimCollector::new(&owned, volume.name());
            if let Err(corrupt) = taker.take_all(|claim| self.visit(volume, claim)) {
                let clash = taker.into_clash().map(|clash| self.name_both(clash, &volumes));
                report.note(Health::Damaged, clash.unwrap_or(corrupt));
                walked = false;
            } else {
                let log_blocks = volume.descriptor().log_blocks();
                let used = free_before - owned.free_blocks() - log_blocks;
                report.remarks.extend(count_anew(volume, used));
            }
            report.note_all(Health::Damaged, self.judge(volume));
        }
        for (health, range) in self.name_poisoned_ranges() {
            report.note(health, range);
        }
        report.used_blocks = owned.total_blocks() - owned.free_blocks();
        report.free_blocks = owned.free_blocks();
        // A block of an unwalked map would count as leaked.
        if self.read_only_reason().is_none() && walked {
            self.compare((&owned, &volumes), bounds, &mut report);
        }
        drop(quiesce_locks);
        self.medium().check()?;
        Ok(report)
    }

    /// Notes the damage known without a walk: of superblocks, headers, logs and read-only volumes.
    fn check_openly(
        &self,
        findings: Vec<ScrubFinding>,
        volumes: &[Arc<Volume<M>>],
        report: &mut CheckReport,
    ) {
        let read_only = self.read_only_reason();
        if let Some(reason) = read_only {
            let health = if self.has_clash() { Health::Damaged } else { Health::Degraded };
            report.note(health, format!("the pool is read-only: {reason}"));
        }
        report.health = report.health.max(Health::of_findings(&findings));
        for finding in findings {
            let volume = finding.volume.as_ref().map(|name| format!("volume {name}: "));
            let (structure, at, what) = (&finding.structure, finding.at, &finding.what);
            let problem = format!("{}{structure} at {at}: {what}", volume.unwrap_or_default());
            report.note(finding.health(), problem);
        }
        if let Some(reason) = self.space_unknown() {
            report.note(Health::Damaged, format!("which blocks are free is unknown: {reason}"));
        }
        for volume in volumes {
            if let Some(reason) = volume.damage() {
                let name = volume.name();
                report.note(Health::Damaged, format!("volume {name} is read-only: {reason}"));
            }
        }
    }

    /// The error with the names of the owners, of `volumes`, of the part in `clash`.
    fn name_both(&self, mut clash: DoubleOwnership, volumes: &[Arc<Volume<M>>]) -> Corrupt {
        for volume in volumes {
            clash.look_in(volume.name(), |claim| self.visit(volume, claim));
        }
        clash.into_corrupt()
    }

    /// Compares the blocks free by the maps with the blocks free by the allocator. Freed and pinned blocks
    /// are neither.
    fn compare(
        &self,
        (owned, volumes): (&Allocator, &[Arc<Volume<M>>]),
        bounds: std::ops::Range<u64>,
        report: &mut CheckReport,
    ) {
        let mut wrong = 0;
        for block in bounds.map(BlockNo) {
            let (health, what) = match (owned.is_free(block), self.allocator().is_free(block)) {
                // The allocator withholds bad blocks. They are not leaked.
                (true, false) if self.medium().check_range(block.offset(), BLOCK_U64).is_err() => {
                    continue;
                }
                // A reader in place still has the freed block.
                (true, false) if volumes.iter().any(|volume| volume.pins.holds_back(block)) => {
                    continue;
                }
                (true, false) => (Health::Degraded, "is owned by nobody, yet not free: it leaked"),
                (false, true) => (Health::Damaged, "has an owner, yet is free for others"),
                _ => continue,
            };
            wrong += 1;
            report.leaked_blocks += u64::from(health == Health::Degraded);
            report.health = report.health.max(health);
            if wrong <= LISTED_MAX {
                report.note(health, format!("{block} at {:#x} {what}", block.0 * BLOCK_U64));
            }
        }
        if wrong > LISTED_MAX {
            let more = format!("{} more blocks are like that", wrong - LISTED_MAX);
            report.note(Health::Degraded, more);
        }
    }
}
