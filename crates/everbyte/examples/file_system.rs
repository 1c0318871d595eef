//! A file system in a pool: a directory and a file made, closed, opened again, read.
//! `cargo run -p everbyte --example file_system [PATH OF THE POOL]`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte::Pool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or(folder.path().join("pool"), Into::into);

    let files = Pool::create(&path, 64 << 20)?.create_fs("files", 48 << 20)?;
    files.create_dir("docs")?;
    files.write("docs/letter", b"hello")?;
    files.sync()?; // from here on it survives
    drop(files); // the last handle closes the pool

    let found = Pool::open(&path)?.open_fs("files")?.read("docs/letter")?;
    assert_eq!(found, b"hello");
    println!("found {:?} again", String::from_utf8_lossy(&found));
    Ok(())
}
