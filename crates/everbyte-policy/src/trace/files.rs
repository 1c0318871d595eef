//! Names of the files and devices of a trace, numbered in the order of their first request.

use rustc_hash::FxHashMap;

use super::Problem;

/// Most names of a trace, and most bytes of all. A table of them must fit into memory for any trace.
const NAMES_MAX: u32 = 1 << 20;
const NAME_BYTES_MAX: usize = 64 << 20;

/// Names of the files and devices of a trace, numbered from 0 in the order of their first request.
#[derive(Default, Debug)]
pub struct FileNames {
    names: Vec<Box<str>>,
    numbers: FxHashMap<Box<str>, u32>,
    /// Bytes of all names.
    bytes: usize,
    /// The number returned last: traces stay with a file for a while.
    last: u32,
}

impl FileNames {
    /// Returns the name of file `number`.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(AsRef::as_ref)
    }

    /// Returns the number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if it has no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the number of `name`, a new one for a new name.
    pub(crate) fn number(&mut self, name: &str) -> Result<u32, Problem> {
        if self.names.get(self.last as usize).is_some_and(|last| **last == *name) {
            return Ok(self.last);
        }
        if let Some(&number) = self.numbers.get(name) {
            self.last = number;
            return Ok(number);
        }
        let number = u32::try_from(self.names.len()).ok().filter(|&number| number < NAMES_MAX);
        let too_many = Problem::TooMany { what: "files", max: u64::from(NAMES_MAX) };
        let number = number.ok_or(too_many)?;
        if self.bytes + name.len() > NAME_BYTES_MAX {
            let max = NAME_BYTES_MAX as u64;
            return Err(Problem::TooMany { what: "bytes of names of files", max });
        }
        self.bytes += name.len();
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        self.last = number;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_bounded_by_all_their_bytes() {
        let mut names = FileNames::default();
        let name = |number: u32| format!("{number:0>5}").repeat(13_108)[..65_536].to_owned();
        for number in 0..1024 {
            assert_eq!(names.number(&name(number)), Ok(number));
        }
        assert!(matches!(names.number("x"), Err(Problem::TooMany { max: 0x400_0000, .. })));
        assert_eq!(names.number(&name(5)), Ok(5), "what is known stays so");
    }
}
