//! Serves a volatile device in DRAM: `cargo run -p everbyte-nbd --example memory -- unix:/tmp/s 1073741824`.
//!
//! It loses everything at its end, which is the end of its standard input.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;

use everbyte_device::{BlockDevice, MemoryDevice};
use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};

struct Memory(Arc<MemoryDevice>);

impl Exports for Memory {
    fn list(&self) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "memory".to_owned(), description: "volatile memory".to_owned() }]
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        match name {
            "" | "memory" => Ok(Export::new("memory", Arc::clone(&self.0) as Arc<dyn BlockDevice>)),
            _ => Err(OpenError::Unknown),
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program that says where it listens")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: Address = arguments.next().unwrap_or_else(|| "tcp:10809".to_owned()).parse()?;
    let size_bytes = arguments.next().map_or(Ok(1 << 30), |size| size.parse())?;
    let device = Arc::new(MemoryDevice::new(size_bytes));
    let server = Server::bind(&address, Arc::new(Memory(device)))?;
    println!("{}", server.address().uri("memory"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.shutdown();
    println!("{:?}", server.stats());
    Ok(())
}
