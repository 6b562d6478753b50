//! Values that depend on a number by steps, such as thresholds by message size.

use alloc::vec::Vec;

/// Bound: steps of a table.
pub const MAX_STEPS: usize = 64;

/// A value for each number: that of the last step that begins at or below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps<T> {
    /// Beginning and value of each step. The first begins at 0.
    steps: Vec<(u32, T)>,
}

/// The reason why a list is no table of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepsError {
    /// There is no step, or there are too many.
    #[error("the table has {count} steps; allowed: 1 to {MAX_STEPS}")]
    Count {
        /// How many.
        count: usize,
    },
    /// The first step does not begin at 0.
    #[error("the first step begins at {begin}; allowed: 0")]
    First {
        /// Where it begins.
        begin: u32,
    },
    /// A step does not begin after the one before.
    #[error("a step begins at {begin} after one at {before}; allowed: ascending numbers")]
    Order {
        /// Where it begins.
        begin: u32,
        /// Where the one before begins.
        before: u32,
    },
}

impl<T> Steps<T> {
    /// The same value for all numbers.
    pub fn constant(value: T) -> Steps<T> {
        Steps { steps: Vec::from([(0, value)]) }
    }

    /// - `steps`: beginning and value of each step, ascending from 0.
    ///
    /// # Errors
    /// [`StepsError`].
    pub fn new(steps: Vec<(u32, T)>) -> Result<Steps<T>, StepsError> {
        match steps.first() {
            Some(_) if steps.len() > MAX_STEPS => Err(StepsError::Count { count: steps.len() }),
            None => Err(StepsError::Count { count: 0 }),
            Some(&(begin, _)) if begin > 0 => Err(StepsError::First { begin }),
            Some(_) => {
                let wrong = steps.windows(2).find(|pair| pair[0].0 >= pair[1].0);
                match wrong {
                    Some(pair) => Err(StepsError::Order { begin: pair[1].0, before: pair[0].0 }),
                    None => Ok(Steps { steps }),
                }
            }
        }
    }

    /// The value for `number`.
    pub fn at(&self, number: u32) -> &T {
        let after = self.steps.partition_point(|(begin, _)| *begin <= number);
        &self.steps[after - 1].1 // the first step begins at 0
    }
}
