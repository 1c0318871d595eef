//! A block device in a pool: written, flushed, closed, opened again, read.
//! `cargo run -p everbyte --example block_device [PATH OF THE POOL]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte::{BlockDevice, Fua, Pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or(folder.path().join("pool"), Into::into);

    let pool = Pool::create(&path, 64 << 20)?;
    let disk = pool.create_block("disk", 1 << 30)?; // takes space as it is written
    disk.write(4096, b"hello", Fua::No)?;
    disk.flush()?; // from here on it survives
    drop((disk, pool)); // the last handle closes the pool

    let mut found = [0; 5];
    Pool::open(&path)?.open_block("disk")?.read(4096, &mut found)?;
    assert_eq!(&found, b"hello");
    println!("found {:?} again", String::from_utf8_lossy(&found));
    Ok(())
}
