//! Pages with figures are what `docs/results` makes of them, and have no figure elsewhere.

use super::{Finding, Tree};
use crate::publish::{self, Published, Results};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut published = Published::new();
    let is_result = |path: &str| path.ends_with(".json");
    for file in tree.below(publish::FOLDER).filter(|file| is_result(&file.path)) {
        match Results::parse(&file.text) {
            Ok(results) => drop(published.insert(results.suite.clone(), results)),
            Err(error) => findings.push(Finding::new(&file.path, 0, format!("{error:#}"))),
        }
    }
    for page in publish::PAGES.iter().filter_map(|path| tree.get(path)) {
        match publish::faults(&page.text, &published) {
            Ok(faults) => findings.extend(
                faults.into_iter().map(|(line, what)| Finding::new(&page.path, line, what)),
            ),
            Err(error) => findings.push(Finding::new(&page.path, 0, format!("{error:#}"))),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    #[test]
    fn figures_outside_of_places_and_results_that_are_none_are_findings() {
        let found = run(
            check,
            &[("docs/benchmarks.md", "It takes 5 ns.\n"), ("docs/results/block.json", "{}")],
        );
        let first = "docs/benchmarks.md:1: the figure 5 ns stands outside of a marked place";
        assert_eq!(found, ["docs/results/block.json: no commit", first]);
    }

    #[test]
    fn a_page_that_was_not_filled_is_a_finding() {
        let page = "<!-- figures: block/calls -->\n| 5 ns |\n<!-- end -->\n";
        let found = run(check, &[("docs/benchmarks.md", page)]);
        let what = "differs from docs/results; run cargo xtask publish --render";
        assert_eq!(found, [format!("docs/benchmarks.md:2: {what}")]);
    }
}
