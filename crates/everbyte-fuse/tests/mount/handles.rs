//! Files opened by handle after the kernel has forgotten them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use everbyte_testkit::is_root;

use super::Mounted;

/// Takes handles of paths into files, and opens such handles: prints the content of the file or
/// directory, or the error.
const HANDLES: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
way, mount, *paths = sys.argv[1:]
for path in paths:
    handle = Handle(128)
    if way == "take":
        number = ctypes.c_int()
        name = os.fsencode(path)
        if libc.name_to_handle_at(-100, name, ctypes.byref(handle), ctypes.byref(number), 0) != 0:
            sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")
        name = os.path.relpath(path, mount).replace("/", "-")
        open(f"{mount}.{name}", "wb").write(bytes(handle))
        continue
    ctypes.memmove(ctypes.byref(handle), open(f"{mount}.{path}", "rb").read(), ctypes.sizeof(handle))
    at = os.open(mount, os.O_RDONLY)
    opened = libc.open_by_handle_at(at, ctypes.byref(handle), os.O_RDONLY)
    if opened < 0:
        print(errno.errorcode[ctypes.get_errno()])
    elif os.path.isdir(f"/proc/self/fd/{opened}"):
        print(",".join(sorted(os.listdir(opened))), os.readlink(f"/proc/self/fd/{opened}")[len(mount):])
    else:
        print(os.read(opened, 100).decode())
"#;

/// Runs the program above and returns its lines.
fn handles(dir: &Path, way: &str, paths: &[&str]) -> Vec<String> {
    let mut python = Command::new("python3");
    let output = python.args(["-c", HANDLES, way]).arg(dir).args(paths).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn take(mounted: &Mounted, names: &[&str]) {
    let paths: Vec<_> = names.iter().map(|name| mounted.path().join(name)).collect();
    let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    handles(mounted.path(), "take", &paths);
}

/// Opens handles after the kernel has forgotten all unused files.
fn open(mounted: &Mounted, names: &[&str]) -> Vec<String> {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    handles(mounted.path(), "open", names)
}

fn remove_handle(dir: &Path, name: &str) {
    fs::remove_file(format!("{}.{name}", dir.display())).unwrap();
}

/// A mount on a folder, beside which the handles lie.
fn mounted() -> Option<Mounted> {
    is_root("open files by handle").then(Mounted::new)
}

#[test]
fn forgotten_files_open_by_handle() {
    let Some(mut mounted) = mounted() else { return };
    let dir = mounted.path().to_owned();
    fs::create_dir_all(dir.join("d/e/g")).unwrap();
    fs::write(dir.join("d/f"), "in f").unwrap();
    fs::write(dir.join("d/e/deep"), "in deep").unwrap();
    fs::hard_link(dir.join("d/f"), dir.join("second")).unwrap();
    take(&mounted, &["d", "d/f", "d/e", "d/e/deep", "d/e/g", "."]);
    let all = ["d", "d-f", "d-e", "d-e-deep", "d-e-g", "."];
    let found = ["e,f /d", "in f", "deep,g /d/e", "in deep", " /d/e/g", "d,second "];
    assert_eq!(open(&mounted, &all), found);
    // Renaming keeps a handle, and so does the loss of one name of two.
    fs::rename(dir.join("d/e"), dir.join("moved")).unwrap();
    fs::remove_file(dir.join("d/f")).unwrap();
    let found = ["in f", "deep,g /moved", "in deep", " /moved/g"];
    assert_eq!(open(&mounted, &["d-f", "d-e", "d-e-deep", "d-e-g"]), found);
    mounted.unmount();
    mounted.mount();
    assert_eq!(open(&mounted, &["d-f", "d-e", "d-e-deep", "d-e-g"]), found, "mounted again");
    drop(mounted);
    all.into_iter().for_each(|name| remove_handle(&dir, name));
}

#[test]
fn handle_of_removed_file_is_stale() {
    let Some(mounted) = mounted() else { return };
    let dir = mounted.path().to_owned();
    fs::write(dir.join("f"), "old").unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    let number = fs::metadata(dir.join("f")).unwrap().ino();
    take(&mounted, &["f", "d"]);
    fs::remove_file(dir.join("f")).unwrap();
    fs::remove_dir(dir.join("d")).unwrap();
    assert_eq!(open(&mounted, &["f", "d"]), ["ESTALE", "ESTALE"]);
    mounted.fs.upgrade().unwrap().sync().unwrap();
    let again = (0..1000).any(|count| {
        let path = dir.join(count.to_string());
        fs::write(&path, "new").unwrap();
        fs::metadata(path).unwrap().ino() == number
    });
    assert!(again, "no file has got the number");
    assert_eq!(open(&mounted, &["f", "d"]), ["ESTALE", "ESTALE"], "it is another file's");
    drop(mounted);
    ["f", "d"].into_iter().for_each(|name| remove_handle(&dir, name));
}

/// Only the holder of a handle's right can forge one, and gets no inode without a file.
#[test]
fn made_up_handle_is_stale() {
    let Some(mounted) = mounted() else { return };
    let dir = mounted.path().to_owned();
    fs::write(dir.join("f"), "").unwrap();
    take(&mounted, &["f"]);
    let path = format!("{}.f", dir.display());
    let handle = fs::read(&path).unwrap();
    for number in [0_u64, 1, 1 << 20, 1 << 40, u64::MAX] {
        let mut other = handle.clone();
        // A number has two words, the higher one first.
        other[8..12].copy_from_slice(&number.to_le_bytes()[4..]);
        other[12..16].copy_from_slice(&number.to_le_bytes()[..4]);
        fs::write(&path, other).unwrap();
        assert_eq!(open(&mounted, &["f"]), ["ESTALE"], "{number}");
    }
    fs::remove_file(path).unwrap();
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"");
}
