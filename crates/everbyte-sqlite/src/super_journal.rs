//! Super-journals: SQLite's commits to several databases.
//!
//! SQLite makes one through the VFS of the main database and ends the journal of every other one
//! with its name. Such a journal is rolled back only if the VFS of its database finds the
//! super-journal. Our VFS cannot find one made by another VFS, and the journal would not be rolled
//! back. So a journal of ours gets no such name: this module recognizes its write, by the format of
//! `writeSuperJournal` in SQLite's `pager.c`.
//!
//! Knows nothing of files.

/// Bytes inspected by [`is_name`] from a journal's start on.
pub(crate) const JOURNAL_HEAD_BYTES: usize = 28;
/// Bytes before a page or a name in a journal: a number.
pub(crate) const NUMBER_BYTES: usize = 4;

/// First of SQLite's locking bytes. The page with it is never used, so it is in no journal.
const PENDING_BYTE: u32 = 0x4000_0000;

/// Returns true if `data` ends as the name of every super-journal does, short names of eight and three letters included:
/// in a 9 and two hexadecimal digits.
pub(crate) fn may_be_name(data: &[u8]) -> bool {
    matches!(data, [.., b'9', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Returns true if the bytes behind `number` in a journal beginning with `head` are the name of a
/// super-journal. A page follows its own number, a name follows the number of the page that is
/// never used.
pub(crate) fn is_name(head: &[u8; JOURNAL_HEAD_BYTES], number: [u8; NUMBER_BYTES]) -> bool {
    let page_bytes = u32::from_be_bytes([head[24], head[25], head[26], head[27]]);
    let unused = PENDING_BYTE.checked_div(page_bytes).map(|pages| pages + 1);
    unused == Some(u32::from_be_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_in_a_nine_and_two_digits() {
        for name in ["/home/a/ledger-mj0B3CF19A7", "ledger.9a7", "-mj000000900"] {
            assert!(may_be_name(name.as_bytes()), "{name}");
        }
        for other in ["", "9", "9a", "ledger-mj0B3CF18A7", "ledger-mj0B3CF19AG"] {
            assert!(!may_be_name(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn only_the_number_of_the_unused_page_precedes_a_name() {
        for page_bytes in [512_u32, 4096, 65536] {
            let mut head = [7; JOURNAL_HEAD_BYTES];
            head[24..].copy_from_slice(&page_bytes.to_be_bytes());
            let unused = (1 << 30) / page_bytes + 1;
            assert!(is_name(&head, unused.to_be_bytes()));
            for used in [1, unused - 1, unused + 1] {
                assert!(!is_name(&head, used.to_be_bytes()));
            }
        }
        assert!(!is_name(&[0; JOURNAL_HEAD_BYTES], [0; NUMBER_BYTES]));
    }
}
