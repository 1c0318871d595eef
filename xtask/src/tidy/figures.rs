//! Pages, plots and tables agree with `docs/results`, and each figure stands in a marked place.

use super::{Finding, Tree};
use crate::publish::Site;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    match Site::of(tree).and_then(|site| site.faults(tree)) {
        Ok(faults) => {
            let finding =
                |(path, line, fault): (String, usize, String)| Finding::new(path, line, fault);
            faults.into_iter().map(finding).collect()
        }
        Err(error) => vec![Finding::new("docs/results", 0, format!("{error:#}"))],
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    const SUITE: &str = "title = 'T'\ncommand = '-p a -- s'\nform = 'bench'\nminutes = 1\n";
    const RESULTS: &str = r#"{"suite":"s","commit":"c","command":"x","machine":"m","remarks":"r","columns":["subject"],"rows":[]}"#;

    #[test]
    fn unmarked_figures_and_bad_results_are_found() {
        let page = ("docs/benchmarks.md", "It takes 5 ns.\n");
        let fault = "docs/benchmarks.md:1: the figure 5 ns stands outside of a marked place";
        assert_eq!(run(check, &[page]), [fault]);
        let found = run(check, &[page, ("docs/results/block.json", "{}")]);
        assert_eq!(
            found,
            ["docs/results: docs/results/block.json: missing field `suite` at line 1 column 2"]
        );
    }

    #[test]
    fn outdated_page_is_a_finding() {
        let files = [("xtask/suites/s.toml", SUITE), ("docs/results/s.json", RESULTS)];
        let found = run(check, &files);
        let fault =
            "docs/results/s.html:1: differs from docs/results; run cargo xtask publish --render";
        assert_eq!(found, [fault]);
    }
}
