//! The fuzzer: libFuzzer with coverage, on a stable compiler. `make fuzz` builds and runs it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz::read(bytes));
