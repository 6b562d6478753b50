//! Tests of tokens by message size and active tasks.

use alloc::vec::Vec;

use crate::admission::{MAX_STEPS, TokenStep, TokenTable, TokenTableError};

fn step((bytes, tasks, tokens): (u32, u32, u32)) -> TokenStep {
    TokenStep { bytes, tasks, tokens }
}

fn table(steps: &[(u32, u32, u32)]) -> TokenTable {
    TokenTable::new(steps.iter().copied().map(step).collect()).expect("a table")
}

fn tokens(table: &TokenTable, bytes: u32, tasks: u32) -> Option<u32> {
    table.at(bytes, tasks).map(|step| step.tokens)
}

#[test]
fn the_last_step_that_begins_at_or_below_size_and_tasks_is_in_force() {
    let table = table(&[(65536, 16, 0), (2048, 8, 64), (65536, 4, 24), (2048, 4, 96)]);
    for (bytes, tasks, expected) in [
        (0, 64, None),
        (2047, 64, None),
        (2048, 3, None),
        (2048, 4, Some(96)),
        (65535, 7, Some(96)),
        (2048, 8, Some(64)),
        (65535, u32::MAX, Some(64)),
        (65536, 3, None),
        (65536, 4, Some(24)),
        (u32::MAX, 15, Some(24)),
        (65536, 16, None),
    ] {
        assert_eq!(tokens(&table, bytes, tasks), expected, "{bytes} B, {tasks} tasks");
    }
    assert_eq!(table.at(70_000, 5), Some(step((65536, 4, 24))));
    assert_eq!((table.least_bytes(), table.least_tasks()), (Some(2048), Some(4)));
}

#[test]
fn a_size_whose_steps_begin_with_more_tasks_is_not_limited_by_those_of_smaller_messages() {
    let table = table(&[(2048, 2, 10), (8192, 6, 5)]);
    assert_eq!(tokens(&table, 8192, 5), None);
    assert_eq!(tokens(&table, 8191, 5), Some(10));
}

#[test]
fn a_table_without_steps_or_with_steps_without_tokens_limits_nothing() {
    for table in [TokenTable::default(), table(&[]), table(&[(0, 1, 0), (4096, 2, 0)])] {
        assert_eq!(tokens(&table, u32::MAX, u32::MAX), None);
        assert_eq!((table.least_bytes(), table.least_tasks()), (None, None));
    }
    let table = table(&[(2048, 1, 0), (4096, 3, 7)]);
    assert_eq!((table.least_bytes(), table.least_tasks()), (Some(4096), Some(3)));
}

#[test]
fn two_steps_at_one_point_and_too_many_steps_are_refused() {
    let repeated = TokenTable::new([(2048, 2, 10), (0, 1, 3), (2048, 2, 11)].map(step).into());
    assert_eq!(repeated, Err(TokenTableError::Repeated { bytes: 2048, tasks: 2 }));
    let many = |count: u32| TokenTable::new((0..count).map(|bytes| step((bytes, 1, 1))).collect::<Vec<_>>());
    assert!(many(MAX_STEPS as u32).is_ok());
    assert_eq!(many(MAX_STEPS as u32 + 1), Err(TokenTableError::Count { count: MAX_STEPS + 1 }));
}
