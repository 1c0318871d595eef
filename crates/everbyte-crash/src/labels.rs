//! Names for ranges of a medium, so that a report says "flag" and not only 0x40.
//!
//! Knows nothing of the contents: the scenario names them.

use std::ops::Range;

use everbyte_media::PoolOffset;

/// Names of address ranges. Where ranges overlap, the shortest counts.
#[derive(Clone, Debug, Default)]
pub struct Labels(Vec<(Range<u64>, String)>);

impl Labels {
    /// These names, and `name` for the bytes of `range`.
    #[must_use]
    pub fn with(mut self, range: Range<u64>, name: impl Into<String>) -> Self {
        self.0.push((range, name.into()));
        self
    }

    /// The name of the byte at `at`: its range's, with the distance from the start of it.
    #[must_use]
    pub fn name(&self, at: PoolOffset) -> Option<String> {
        let around = self.0.iter().filter(|(range, _)| range.contains(&at.0));
        // A scenario names a structure and its fields: the field says more.
        let (range, name) = around.min_by_key(|(range, _)| range.end - range.start)?;
        Some(match at.0 - range.start {
            0 => name.clone(),
            inside => format!("{name}+{inside:#x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_matching_range_names() {
        let labels = Labels::default().with(64..72, "flag").with(0..4096, "header");
        let name = |at| labels.name(PoolOffset(at));
        assert_eq!(name(64).as_deref(), Some("flag"));
        assert_eq!(name(71).as_deref(), Some("flag+0x7"));
        assert_eq!(name(72).as_deref(), Some("header+0x48"));
        assert_eq!(name(4096), None);
    }
}
