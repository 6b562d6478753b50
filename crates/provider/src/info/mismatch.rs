//! Hints of `fi_getinfo` that do not fit, and the rules for numbers: each mismatch names the field, the requested
//! value and what is allowed.

/// The values of a field that the provider accepts.
#[derive(Debug, PartialEq, Eq)]
pub enum Allowed {
    /// These bits, or some of them.
    Bits(u64),
    /// This amount, or less.
    AtMost(u64),
    /// This value, or 0.
    Value(u64),
    /// The values that this text names.
    Only(&'static str),
}

/// A hint that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field.
    pub field: &'static str,
    /// The value in the hints. `None`: it is not a number.
    pub asked: Option<u64>,
    /// The values that are allowed.
    pub allowed: Allowed,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "the program's hints exclude weir: {} is ", self.field)?;
        match self.asked {
            Some(asked) => write!(formatter, "{asked:#x}")?,
            None => write!(formatter, "of another provider")?,
        }
        match self.allowed {
            Allowed::Bits(bits) => write!(formatter, "; allowed: bits of {bits:#x}"),
            Allowed::AtMost(amount) => write!(formatter, "; allowed: at most {amount:#x}"),
            Allowed::Value(value) => write!(formatter, "; allowed: {value:#x}, or 0 for any"),
            Allowed::Only(text) => write!(formatter, "; allowed: {text}"),
        }
    }
}

/// All requested bits must be available.
pub fn bits_within(field: &'static str, asked: u64, have: u64) -> Result<(), Mismatch> {
    if asked & !have == 0 {
        return Ok(());
    }
    Err(Mismatch { field, asked: Some(asked), allowed: Allowed::Bits(have) })
}

/// The requested amount must not exceed the available one.
pub fn at_most(field: &'static str, asked: usize, have: usize) -> Result<(), Mismatch> {
    if asked <= have {
        return Ok(());
    }
    Err(Mismatch { field, asked: Some(asked as u64), allowed: Allowed::AtMost(have as u64) })
}

/// The requested value must be the available one. 0 requests nothing.
pub fn equal(field: &'static str, asked: u64, have: u64) -> Result<(), Mismatch> {
    if asked == 0 || asked == have {
        return Ok(());
    }
    Err(Mismatch { field, asked: Some(asked), allowed: Allowed::Value(have) })
}
