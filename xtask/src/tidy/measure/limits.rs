//! Limits of measures: general limits, and limits of parts above them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::super::{Finding, Tree};
use super::Measures;

/// File of the limits of parts above the general ones.
pub(crate) const PATH: &str = "xtask/limits.toml";
const HEAD: &str = "\
# Limits of parts that exceed the general ones, by package and page. They may only fall:
# `cargo xtask tidy --tighten` lowers them, and `cargo xtask tidy --measure` shows the measures.
";

/// Name of the limits of packages and pages without an entry. The first `--tighten` replaces them by names.
const NEW: &str = "*";

/// Limits of parts.
#[derive(Default, Deserialize)]
struct Limits {
    /// Names of types without a noun.
    #[serde(default)]
    participles: Vec<String>,
    /// Limits of sums.
    #[serde(default)]
    tree: BTreeMap<String, f64>,
    /// Limits by package or page, and by measure.
    #[serde(default)]
    parts: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Limits {
    fn of_part(&self, part: &str, measure: &str) -> Option<f64> {
        self.parts.get(part).or_else(|| self.parts.get(NEW))?.get(measure).copied()
    }
}

/// Measures above their limits.
pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let limits = match read(tree) {
        Ok(limits) => limits,
        Err(error) => return vec![Finding::new(PATH, 0, error)],
    };
    let measures = Measures::of(tree);
    let mut findings = Vec::new();
    for (name, value, general) in measures.sums() {
        // A limit of the file only permits an excess over the general limit.
        let limit = limits.tree.get(name).map_or(general, |own| own.max(general));
        if value > limit {
            findings.push(Finding::new(PATH, 0, over(name, value, limit)));
        }
    }
    for (part, measured) in &measures.parts {
        for (name, value, general) in measured.rates() {
            let limit = limits.of_part(part, name).map_or(general, |own| own.max(general));
            if value > limit {
                findings.push(Finding::new(part, 0, over(name, value, limit)));
            }
        }
    }
    for name in measures.participles.iter().filter(|name| !limits.participles.contains(name)) {
        let what = format!("the type `{name}` is named by a participle: add its noun");
        findings.push(Finding::new("crates", 0, what));
    }
    findings
}

fn over(name: &str, value: f64, limit: f64) -> String {
    format!("{name} is {:.3}, and the limit is {:.3}", value.abs(), limit.abs())
}

fn read(tree: &Tree) -> Result<Limits, String> {
    let Some(file) = tree.get(PATH) else { return Ok(Limits::default()) };
    toml::from_str(&file.text).map_err(|error| error.to_string())
}

/// The file of limits with each limit lowered to its measure. Limits without need are gone.
///
/// # Errors
/// The file has another form.
pub(crate) fn tightened(tree: &Tree) -> Result<String, String> {
    let limits = read(tree)?;
    let is_new = tree.get(PATH).is_none();
    let measures = Measures::of(tree);
    let lower = |own: Option<f64>, value: f64, general: f64| {
        let value = up(value);
        // Only the first file takes today's measures as limits. Later, a new excess stays a finding.
        let own = own.or_else(|| is_new.then_some(f64::INFINITY))?;
        // The smaller of both: a limit never rises, and an unneeded limit is gone.
        (value > general).then(|| own.min(value)).filter(|limit| *limit > general)
    };
    let mut text = HEAD.to_owned();
    let is_allowed = |name: &&String| is_new || limits.participles.contains(name);
    let participles: Vec<String> =
        measures.participles.iter().filter(is_allowed).map(|name| format!("{name:?}")).collect();
    let _ = writeln!(text, "participles = [{}]\n\n[tree]", participles.join(", "));
    for (name, value, general) in measures.sums() {
        if let Some(limit) = lower(limits.tree.get(name).copied(), value, general) {
            let _ = writeln!(text, "{name} = {limit:?}");
        }
    }
    for (part, measured) in &measures.parts {
        let mut lines = String::new();
        for (name, value, general) in measured.rates() {
            if let Some(limit) = lower(limits.of_part(part, name), value, general) {
                let _ = writeln!(lines, "{name} = {limit:?}");
            }
        }
        if !lines.is_empty() {
            let _ = write!(text, "\n[parts.{part:?}]\n{lines}");
        }
    }
    Ok(text)
}

/// A value with three decimals, or a whole number from 100 on, rounded up.
fn up(value: f64) -> f64 {
    if value.abs() < 100.0 { (value * 1000.0).ceil() / 1000.0 } else { value.ceil() }
}

#[cfg(test)]
mod tests {
    use super::super::super::testkit::run;
    use super::*;

    const BAD: &str = "This is a page that is one which has words that are what it is.\n";
    const GOOD: &str = "A pool has volumes.\n";

    #[test]
    fn measure_above_the_limit_is_found() {
        assert!(run(check, &[("docs/a.md", GOOD)]).iter().all(|line| !line.contains("a.md")));
        let found = run(check, &[("docs/a.md", BAD)]);
        let relative = "docs/a.md: relative is 4.000, and the limit is 0.250";
        assert!(found.iter().any(|line| line == relative), "{found:?}");
        let limits = "[parts.\"docs/a.md\"]\nrelative = 4.0\nwhat = 1.0\n";
        let found = run(check, &[("docs/a.md", BAD), (PATH, limits)]);
        assert!(found.iter().all(|line| !line.contains("a.md")), "{found:?}");
    }

    #[test]
    fn type_named_by_participle_is_found() {
        let files = [("crates/a/Cargo.toml", ""), ("crates/a/src/lib.rs", "struct Held;")];
        let has = |files: &[(&str, &str)]| {
            run(check, files).iter().any(|line| line.contains("`Held` is named by a participle"))
        };
        assert!(has(&files));
        assert!(!has(&[files[0], files[1], (PATH, "participles = [\"Held\"]")]));
    }

    #[test]
    fn tightened_limits_only_fall() {
        let tighten = |page: &str, limits: &str| {
            tightened(&Tree::planted(&[("docs/a.md", page), (PATH, limits)])).unwrap()
        };
        let limits = |relative: &str| format!("[parts.\"docs/a.md\"]\nrelative = {relative}\n");
        assert!(tighten(BAD, &limits("5.0")).contains("relative = 4.0\n"));
        assert!(tighten(BAD, &limits("3.0")).contains("relative = 3.0\n"));
        assert!(!tighten(BAD, &limits("3.0")).contains("what"));
        assert!(!tighten(GOOD, &limits("3.0")).contains("docs/a.md"));
    }
}
