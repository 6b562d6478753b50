//! The `weir` command. Everything is in the library, except the allocator.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Counts, for `weir bench memory`.
#[global_allocator]
static HEAP: weir_link::counted_heap::CountedHeap = weir_link::counted_heap::CountedHeap;

fn main() -> ExitCode {
    weir_cli::command_line::main()
}
