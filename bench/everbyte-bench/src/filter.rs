//! Which measurements are wanted, by words of the names in their results.

/// Choice of measurements. By default all are wanted.
#[derive(clap::Args, Clone, Default, Debug)]
pub(crate) struct Filter {
    /// Measure only what has all of these words in the names of its results: those of workloads, and of subjects
    /// in suites that can do without some. What others are compared with is measured besides.
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Leave out those whose names contain all of these words. May be given several times.
    #[arg(long, value_name = "WORDS")]
    except: Vec<String>,
}

impl Filter {
    /// Returns true if what has `name` is to be measured.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let has_all = |words: &str| words.split_whitespace().all(|word| name.contains(word));
        has_all(&self.filter) && !self.except.iter().any(|words| has_all(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(filter: &str, except: &[&str]) -> Filter {
        let except = except.iter().copied().map(str::to_owned).collect();
        Filter { filter: filter.to_owned(), except }
    }

    #[test]
    fn all_words_must_be_there_and_all_of_no_exception() {
        assert!(Filter::default().wants("FT.A, t1"));
        assert!(filter("t1 FT.", &[]).wants("FT.A, t1"));
        assert!(!filter("t2 FT.", &[]).wants("FT.A, t1"));
        let some = filter("FT.", &["FT.B, t2", "zipf"]);
        assert!(some.wants("FT.B, t1") && some.wants("FT.A, t2"));
        assert!(!some.wants("FT.B, 70%, t2") && !some.wants("paging, t1"));
    }
}
