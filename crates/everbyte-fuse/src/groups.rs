//! The groups of whoever made a request. The kernel passes one of them; the others it tells of in `/proc`.

use fuser::Request;

/// Returns true if the process that made `request` is in the group `gid`. One that has gone, or that this
/// process cannot see, is in none but its own.
pub(crate) fn is_in_group(request: &Request, gid: u32) -> bool {
    request.gid() == gid
        || std::fs::read_to_string(format!("/proc/{}/status", request.pid()))
            .is_ok_and(|status| names_group(&status, gid))
}

/// Returns true if `gid` is among the supplementary groups in a process's status.
fn names_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|all| all.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_a_status() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 100 \nNStgid:\t5\n";
        for (gid, is_there) in [(4, true), (100, true), (7, false), (10, false), (5, false)] {
            assert_eq!(names_group(status, gid), is_there, "{gid}");
        }
        assert!(!names_group("Name:\tcat\n", 4));
    }
}
