//! The core may `dlclose` the plug-in at exit while thread-local destructors of the Rust runtime are still registered.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
