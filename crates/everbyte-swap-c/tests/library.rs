//! The header is current, and a C program with it works.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::cast_possible_truncation, reason = "patterns of bytes")]
#![allow(unsafe_code, reason = "functions for callers in C")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_control::{
    Attached, ControlServer, Handler, Request, RequestError, Response, send_descriptor,
};
use everbyte_region::{
    EverbyteStatus, everbyte_region_address, everbyte_region_map, everbyte_region_unmap,
    everbyte_space_borrow, everbyte_space_close,
};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The header as this crate's functions are now.
fn header() -> String {
    let comment = "/* Regions of memory that page to storage-class memory. Made by cbindgen. */";
    let rename_variants = cbindgen::RenameRule::ScreamingSnakeCase;
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("EVERBYTE_REGION_H".into()),
        header: Some(comment.into()),
        documentation_style: cbindgen::DocumentationStyle::C99,
        style: cbindgen::Style::Both,
        usize_is_size_t: true,
        enumeration: cbindgen::EnumConfig {
            rename_variants,
            prefix_with_name: true,
            ..cbindgen::EnumConfig::default()
        },
        ..cbindgen::Config::default()
    };
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(here().join("src/error.rs"))
        .with_src(here().join("src/space.rs"))
        .with_src(here().join("src/region.rs"))
        .generate()
        .unwrap();
    let mut bytes = Vec::new();
    made.write(&mut bytes);
    // Rust's rules for pointers repeat the text above them.
    let text = String::from_utf8(bytes).unwrap();
    text.replace("// # Safety\n", "// Requires:\n")
}

#[test]
fn header_matches_library() {
    let path = here().join("include/everbyte_region.h");
    let made = header();
    if std::env::var_os("EVERBYTE_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "{} is out of date: run this with EVERBYTE_BLESS=1", path.display());
}

/// The folder of the library built with this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let folders = [deps, deps.parent().unwrap()];
    let found = folders.into_iter().find(|folder| folder.join("libeverbyte_region.so").exists());
    found.unwrap_or_else(|| panic!("no library beside {}", test.display())).to_owned()
}

/// Builds `tests/c/NAME.c` with all warnings as errors.
fn build(name: &str, folder: &Path) -> PathBuf {
    let (program, library) = (folder.join(name), library_folder());
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I"]);
    compile.arg(here().join("include")).arg(here().join(format!("tests/c/{name}.c")));
    compile.arg("-o").arg(&program).arg("-L").arg(&library).arg("-leverbyte_region");
    compile.arg(format!("-Wl,-rpath,{}", library.display()));
    let built = compile.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

#[test]
fn c_program_pages_and_gets_errors() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = build("region", folder.path());
    let done = Command::new(program).arg(folder.path().join("store")).output().unwrap();
    let (out, error) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out == "good\n", "{:?}: {out}{error}", done.status);
}

/// A pool's server for a test: it lends a file, a run of 2 MiB for each request.
struct Lender {
    file: File,
    lent: AtomicU64,
}

const RUN: u64 = 2 << 20;

impl Handler for Lender {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        Err(RequestError::new(format!("no {request:?} here")))
    }

    fn handle_attached(
        &self,
        request: Request,
        attached: Attached,
    ) -> Result<(Response, Vec<u8>), RequestError> {
        let Request::Lend { volume, .. } = &request else {
            return Err(RequestError::new("no lease"));
        };
        assert_eq!(volume, "more");
        let start = self.lent.fetch_add(1, Ordering::SeqCst) * RUN;
        if start >= self.file.metadata().unwrap().len() {
            return Err(RequestError::new("all runs are lent"));
        }
        let socket = UnixStream::from(attached.descriptor.unwrap());
        send_descriptor(&socket, self.file.as_fd()).unwrap();
        Ok((Response::Lent { ranges: vec![(start, start + RUN)] }, Vec::new()))
    }
}

#[test]
fn space_of_many_leases_is_borrowed() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(3 * RUN).unwrap();
    let pool = folder.path().join("pool");
    let lender = Arc::new(Lender { file, lent: AtomicU64::new(0) });
    let handler = Arc::clone(&lender) as Arc<dyn Handler>;
    let _server = ControlServer::start(&pool, None, handler).unwrap();
    let path = CString::new(pool.to_str().unwrap()).unwrap();
    let (mut space, mut region) = (ptr::null_mut(), ptr::null_mut());
    let (volume, bytes) = (c"more".as_ptr(), 2 * RUN);
    // SAFETY: texts that end, and room for a pointer each.
    let borrowed = unsafe { everbyte_space_borrow(path.as_ptr(), volume, bytes, &raw mut space) };
    assert_eq!(borrowed, EverbyteStatus::Ok);
    assert_eq!(lender.lent.load(Ordering::SeqCst), 2, "each request brings a part");
    // SAFETY: the space is open, and there is room for a pointer.
    let mapped =
        unsafe { everbyte_region_map(bytes, RUN / 2, space, ptr::null(), &raw mut region) };
    assert_eq!(mapped, EverbyteStatus::Ok);
    // SAFETY: the region is mapped.
    let at = unsafe { everbyte_region_address(region) }.cast::<u8>();
    for page in 0..usize::try_from(bytes / 4096).unwrap() {
        // SAFETY: a byte of the region, which is this thread's alone.
        unsafe { at.wrapping_add(page * 4096).write(page as u8) };
    }
    for page in 0..usize::try_from(bytes / 4096).unwrap() {
        // SAFETY: as above.
        assert_eq!(unsafe { at.wrapping_add(page * 4096).read() }, page as u8);
    }
    let mut more = ptr::null_mut();
    // SAFETY: as above.
    let refused = unsafe { everbyte_space_borrow(path.as_ptr(), volume, bytes, &raw mut more) };
    assert_eq!((refused, more), (EverbyteStatus::SpaceTooSmall, ptr::null_mut()));
    // SAFETY: mapped, and not used any more.
    assert_eq!(unsafe { everbyte_region_unmap(region) }, EverbyteStatus::Ok);
    // SAFETY: open, and not used any more.
    assert_eq!(unsafe { everbyte_space_close(space) }, EverbyteStatus::Ok);
}
