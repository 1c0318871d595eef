//! The everbyte command.
fn main() {}
