//! Keeps the plug-in loaded. The core may `dlclose` it at exit while destructors of the Rust runtime are still
//! registered.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
