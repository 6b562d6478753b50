//! Compiles the kernel programs in `xdp/` with clang, if there is one. Without it the crate has none, and says so when
//! somebody wants to attach them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the compiler comes from. A change of this directory builds again, so an installed clang is found.
const PROGRAMS: &str = "/usr/bin";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(kernel_programs)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=WEIR_CLANG");
    if std::env::var_os("CARGO_FEATURE_LOADER").is_none() {
        return;
    }
    let sources = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../xdp");
    println!("cargo:rerun-if-changed={}", sources.display());
    let clang = std::env::var("WEIR_CLANG").unwrap_or_else(|_| String::from("clang"));
    let known = Command::new(&clang).arg("-print-targets").output();
    if !known.is_ok_and(|known| String::from_utf8_lossy(&known.stdout).contains("bpf")) {
        println!("cargo:rerun-if-changed={PROGRAMS}");
        println!("cargo:warning=no kernel programs, since {clang} with the target bpf was not found");
        return;
    }
    // Another clang, or older headers of the kernel, must not keep anybody from building everything else.
    match ["nic", "switch"].into_iter().try_for_each(|name| compile(&clang, &sources, name)) {
        Ok(()) => println!("cargo:rustc-cfg=kernel_programs"),
        Err(why) => println!("cargo:warning=no kernel programs: {}", why.replace('\n', " | ")),
    }
}

/// Compiles `xdp/NAME.bpf.c`.
///
/// # Errors
/// What clang says.
fn compile(clang: &str, sources: &Path, name: &str) -> Result<(), String> {
    let source = sources.join(format!("{name}.bpf.c"));
    let object = Path::new(&variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    let mut command = Command::new(clang);
    command.args(["--target=bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra"]);
    // The kernel's headers of this processor, which clang does not look for with this target.
    let architecture = variable("CARGO_CFG_TARGET_ARCH");
    let headers = PathBuf::from(format!("/usr/include/{architecture}-linux-gnu"));
    command.arg("-I").arg(headers).arg("-c").arg(&source).arg("-o").arg(&object);
    let output = command.output().expect("clang has just answered");
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{clang} cannot compile {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr)))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
