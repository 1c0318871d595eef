//! Selection of measurements by words of their subjects and workloads.

/// Choice of measurements. By default all are wanted.
#[derive(clap::Args, Clone, Default, Debug)]
pub(crate) struct Filter {
    /// Measure only subjects and workloads with all of these words in their names. References of a selected
    /// measurement are measured in addition.
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Leave out names with all of these words. The option can be repeated.
    #[arg(long, value_name = "WORDS")]
    except: Vec<String>,
}

impl Filter {
    /// Returns true if the filter selects `name`.
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
    fn filter_needs_all_words_and_no_exception() {
        assert!(Filter::default().wants("FT.A, t1"));
        assert!(filter("t1 FT.", &[]).wants("FT.A, t1"));
        assert!(!filter("t2 FT.", &[]).wants("FT.A, t1"));
        let some = filter("FT.", &["FT.B, t2", "zipf"]);
        assert!(some.wants("FT.B, t1") && some.wants("FT.A, t2"));
        assert!(!some.wants("FT.B, 70%, t2") && !some.wants("paging, t1"));
    }
}
