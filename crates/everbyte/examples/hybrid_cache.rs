//! A cache of DRAM and SCM before a file.
//! `cargo run -p everbyte --example hybrid_cache`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte::{BlockDevice, Fua, Pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (path, slow) = (folder.path().join("pool"), folder.path().join("slow"));
    std::fs::File::create(&slow)?.set_len(1 << 30)?;

    let pool = Pool::create(&path, 64 << 20)?;
    let cache = pool.create_cache("cache", &slow, 16 << 20)?; // as large as the file
    cache.write(0, b"hot", Fua::No)?;
    cache.flush()?; // survives in the pool; the file has not been written
    println!("{} dirty pages after the flush", cache.stats()?.dirty_pages);
    cache.drain()?; // now the file has it
    assert_eq!(&std::fs::read(&slow)?[..3], b"hot");
    println!("{} dirty pages after the drain", cache.stats()?.dirty_pages);
    Ok(())
}
