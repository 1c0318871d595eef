//! Groups of rows with the same trace, device, ratio and threshold: one table or set of charts each.

use super::args::Setting;
use super::devices::Backing;
use super::names::short_names;
use super::results::Row;
use crate::size::show_size;

/// Rows over one trace with one device, ratio and threshold.
pub(super) struct Group {
    /// The trace and the common settings.
    pub(super) name: String,
    pub(super) rows: Vec<Row>,
}

/// The groups of `rows` by trace, and for each trace the paper's device first.
pub(super) fn groups(rows: &[Row]) -> Vec<Group> {
    let names = short_names(rows);
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        // Everything but size and policy: these are the axes of a table.
        let is_same = |group: &&mut Group| {
            let first = &group.rows[0];
            let (size, policy) = (row.setting.size, row.setting.policy);
            first.trace == row.trace
                && Setting { size, policy, ..first.setting.clone() } == row.setting
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.rows.push(row.clone()),
            None => groups.push(Group {
                name: name(row, &names[row.trace.as_str()]),
                rows: vec![row.clone()],
            }),
        }
    }
    let is_other = |backing: &Backing| !backing.is_of_paper();
    // Stable, so that the order of the arguments remains. The paper's device comes first of each
    // trace.
    groups.sort_by(|a, b| {
        let key =
            |group: &Group| (group.rows[0].trace.clone(), is_other(&group.rows[0].setting.backing));
        key(a).cmp(&key(b))
    });
    groups
}

fn name(row: &Row, trace: &str) -> String {
    let Setting { ratio, small_write_bytes, pseudo_code, backing, .. } = &row.setting;
    let code = if *pseudo_code { ", hybrid by its pseudo-code" } else { "" };
    format!(
        "{trace}: DRAM:SCM {ratio}, small writes up to {small_write_bytes} B, on {}{code}",
        backing.name()
    )
}

impl Group {
    /// Requests, accesses and pages of the trace.
    pub(super) fn trace_figures(&self) -> String {
        let outcome = &self.rows[0].outcome;
        format!(
            "{} requests, {} accesses to pages, footprint {} pages ({})",
            outcome.requests,
            outcome.accesses(),
            outcome.footprint_pages,
            show_size(outcome.footprint_pages * 4096)
        )
    }
}
