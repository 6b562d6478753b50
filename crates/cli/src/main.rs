//! The program `weir`: calls the library, with a heap that counts memory for `weir bench memory`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Counts, for `weir bench memory`.
#[global_allocator]
static HEAP: weir_link::counted_heap::CountedHeap = weir_link::counted_heap::CountedHeap;

fn main() -> ExitCode {
    weir_cli::command_line::main()
}
