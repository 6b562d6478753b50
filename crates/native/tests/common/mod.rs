//! The C library as it is installed, and programs that are compiled against it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library that cargo has built for these tests.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    // The copy beside the test is current. Only `cargo build` renews the one in the directory above.
    test.parent().expect("target/profile/deps").join("libweir_native.so")
}

/// A directory with the library under its installed names.
fn installed() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("native-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        for name in ["libweir.so.1", "libweir.so"] {
            let _ = std::fs::remove_file(directory.join(name)); // of an earlier process with this number
            std::os::unix::fs::symlink(library(), directory.join(name)).expect("a link");
        }
        directory
    })
}

/// Compiles a C program against header and library, without warnings. `name`: that of the program, one for each caller.
pub fn compile(source: &Path, name: &str) -> PathBuf {
    let directory = installed();
    let program = directory.join(format!("{name}-{:?}", std::thread::current().id()));
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new("cc");
    command.args([
        "-std=c11",
        "-O2",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wshadow",
        "-Werror",
    ]);
    command.arg("-I").arg(header).arg(source).arg("-o").arg(&program).arg("-L").arg(directory);
    command.arg(format!("-Wl,-rpath,{}", directory.display())).arg("-lweir");
    let output = command.output().expect("a C compiler, as for every build");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
