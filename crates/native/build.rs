//! Gives the C library its name, which counts the interface, and keeps it loaded: destructors of the Rust runtime are
//! still registered at exit.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
