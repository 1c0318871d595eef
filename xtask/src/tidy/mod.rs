//! The house rules, as a program: one file per group of rules.
//!
//! Every rule is a pure function from the [`Tree`] to findings, so its test can plant a violation in a tree of
//! strings. Checks of clippy and rustfmt are not repeated here.

mod circles;
mod commands;
mod docs;
mod examples;
mod figures;
mod layers;
mod layout;
mod links;
mod measure;
mod modules;
mod names;
mod openings;
mod paths;
mod promises;
mod rules;
mod sizes;
mod tree;
mod words;

pub(crate) use measure::{Measures, PATH as LIMITS, tightened};
pub(crate) use tree::Tree;

use std::fmt;

/// A broken rule and where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    /// Path from the root of the tree.
    path: String,
    /// Line from 1 on, or 0 where the whole file is meant.
    line: usize,
    /// Message: the mistake and its remedy.
    what: String,
}

impl Finding {
    fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Every broken rule in `tree`, sorted by place.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let rules: [fn(&Tree) -> Vec<Finding>; 15] = [
        sizes::check,
        layers::check,
        names::check,
        words::check,
        commands::check,
        links::check,
        promises::check,
        layout::check,
        docs::check,
        circles::check,
        openings::check,
        paths::check,
        figures::check,
        examples::check,
        measure::check,
    ];
    let mut findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod testkit {
    use super::{Finding, Tree};

    /// Runs one rule over a planted tree and returns its findings as text.
    pub(super) fn run(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::planted(files)).iter().map(ToString::to_string).collect()
    }
}
