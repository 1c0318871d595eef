//! The tables of the rules: `xtask/rules.toml`, compiled in.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// Path of the tables in the tree.
pub(super) const PATH: &str = "xtask/rules.toml";

pub(super) static RULES: LazyLock<Rules> = LazyLock::new(|| {
    toml::from_str(include_str!("../../rules.toml")).expect("the tables have the form of `Rules`")
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    /// Rows of the architecture, by crate.
    pub(super) crates: BTreeMap<String, Row>,
    pub(super) paths: Paths,
    pub(super) names: Names,
    pub(super) pages: Pages,
    pub(super) prose: Prose,
}

/// A crate's row in the architecture.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Row {
    pub(super) uses: Vec<String>,
    pub(super) optional: Vec<String>,
    pub(super) tests_use: Vec<String>,
    pub(super) unsafe_allowed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paths {
    pub(super) scope: Vec<String>,
    pub(super) calls: Vec<String>,
    pub(super) methods: Vec<String>,
    pub(super) of_the_kernel: Vec<String>,
    /// Reasons by path.
    pub(super) exceptions: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Names {
    pub(super) empty: Vec<String>,
    pub(super) empty_endings: Vec<String>,
    pub(super) participles: Vec<String>,
    pub(super) nouns: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pages {
    pub(super) required: Vec<String>,
    pub(super) crates_with_examples: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prose {
    pub(super) relative: Vec<String>,
    pub(super) leaders: Vec<String>,
    pub(super) idioms: Vec<String>,
}
