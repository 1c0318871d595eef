//! Suites and their pages, as `xtask/suites/NAME.toml` states them.
//!
//! A file has the command of a suite, its duration, the kept rows, the plots and the tables. A suite is published as a
//! whole, by one run of one commit.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::comparison::Comparison;
use super::grid::{Grid, Losses};

/// Folder of the files, with the slash at its end.
pub(crate) const FOLDER: &str = "xtask/suites/";

/// Form of the output of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// The document of `everbyte-bench`.
    Bench,
    /// Comma-separated values with a heading.
    Csv,
}

/// A suite with published figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    /// Name of the suite and of its files.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) title: String,
    /// Packages, targets and arguments after `cargo run --release`, quoted as for a shell; `TRACES` stands for
    /// the files of the folder of traces, `OUT` for the file with the output. Without `OUT` the command prints it.
    pub(crate) command: String,
    pub(crate) form: Form,
    /// Minutes on two cores.
    pub(crate) minutes: u32,
    /// True for figures of time: the machine must be idle.
    #[serde(default)]
    pub(crate) needs_idle: bool,
    /// Traces by the beginnings of their names; empty for all, or without traces.
    #[serde(default)]
    pub(crate) traces: Vec<String>,
    /// Metrics or columns to keep; empty for all. Rows with the reason for a missing figure are always kept.
    #[serde(default)]
    pub(crate) kept: Vec<String>,
    /// A kept workload contains one of these words; empty for all.
    #[serde(default)]
    pub(crate) workloads: Vec<String>,
    #[serde(default)]
    pub(crate) plots: Vec<Plot>,
    #[serde(default)]
    pub(crate) tables: Vec<Table>,
}

/// A chart of bars. The first of a suite is its plot in the documentation.
#[derive(Debug, Deserialize)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) explanation: String,
    /// Title of the values, with their unit.
    pub(crate) up: String,
    #[serde(default)]
    pub(crate) is_logarithmic: bool,
    #[serde(flatten)]
    pub(crate) values: PlotValues,
}

/// Values of a plot.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum PlotValues {
    /// A metric of workloads, each with the name of its group.
    Metric { metric: String, subjects: Vec<String>, groups: Vec<[String; 2]> },
    /// The means of a comparison.
    Comparison(Comparison),
}

/// A table with its heading and explanation.
#[derive(Debug, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) explanation: String,
    #[serde(flatten)]
    pub(crate) values: TableValues,
}

/// Values of a table; the fields select the variant.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum TableValues {
    Losses(Losses),
    Comparison(Comparison),
    Grid(Grid),
}

/// All suites, by name.
#[derive(Debug)]
pub(crate) struct Suites(Vec<Suite>);

impl Suites {
    /// # Errors
    /// A file has another form.
    pub(crate) fn parse<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut suites = Vec::new();
        for (path, text) in files {
            let mut suite: Suite = toml::from_str(text).with_context(|| path.to_owned())?;
            let name = path.rsplit('/').next().unwrap_or(path);
            name.trim_end_matches(".toml").clone_into(&mut suite.name);
            suites.push(suite);
        }
        // The order of a folder differs between file systems.
        suites.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self(suites))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Suite> {
        self.0.iter()
    }

    /// # Errors
    /// No suite has the name.
    pub(crate) fn find(&self, name: &str) -> Result<&Suite> {
        let Some(suite) = self.iter().find(|suite| suite.name == name) else {
            bail!("no suite {name}")
        };
        Ok(suite)
    }
}

impl Suite {
    /// The first argument of the command: the suite of `everbyte-bench`.
    pub(crate) fn bench_suite(&self) -> &str {
        let (_, arguments) = self.command.split_once("-- ").unwrap_or_default();
        arguments.split(' ').next().unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_suite_are_refused() {
        let text = "title = 't'\ncommand = '-p a -- block'\nform = 'csv'\nminutes = 1\n";
        let parse = |text: &str| Suites::parse([("x/a.toml", text)].into_iter());
        let suites = parse(text).unwrap();
        assert_eq!(suites.find("a").unwrap().bench_suite(), "block");
        assert!(parse(&format!("{text}speed = 1\n")).is_err());
        assert_eq!(suites.find("b").unwrap_err().to_string(), "no suite b");
    }
}
