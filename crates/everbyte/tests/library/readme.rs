//! The program of the README: it compiles, runs, and is the same text.

use std::path::Path;

use super::Place;

#[test]
fn readme_program_runs() -> Result<(), everbyte::Error> {
    let place = Place::new();
    let path: &Path = &place.path;
    // begin
    use everbyte::{BlockDevice, Pool};

    let pool = Pool::create(path, 64 << 20)?;
    let disk = pool.create_block("disk", 1 << 30)?; // thin provisioning
    disk.write_at(4096, b"hello")?;
    disk.flush()?; // durable
    drop((disk, pool)); // dropping the last handle closes the pool
    let mut bytes = [0; 5];
    Pool::open(path)?.open_block("disk")?.read_at(4096, &mut bytes)?;
    assert_eq!(&bytes, b"hello");
    // end
    Ok(())
}

#[test]
fn readme_shows_the_tested_program() {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let between = |text: &'static str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).unwrap();
        lines(rest.split_once(end).unwrap().0.trim())
    };
    let shown = between(include_str!("../../../../README.md"), "```rust\n", "```");
    let tested = between(include_str!("readme.rs"), "// begin\n", "// end\n");
    assert_eq!(shown, tested);
}
