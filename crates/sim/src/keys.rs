//! Types that describe the keys of plans and network files, for the reference page and for the readers that check
//! values. The keys themselves are in `plan/keys.rs` and `network/registry`.

use std::fmt;

/// A key of a plan or network file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Name in the file.
    pub name: &'static str,
    /// Allowed values.
    pub value: Value,
    /// Whether the key is required, and its default.
    pub presence: Presence,
    /// An allowed value, in TOML. The examples of one table are consistent.
    pub example: &'static str,
    /// Meaning.
    pub meaning: &'static str,
}

/// Allowed values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Type and unit, as text.
    Words(&'static str),
    /// A whole number.
    Number {
        /// Unit; empty: none.
        unit: &'static str,
        /// Smallest value.
        least: u64,
    },
    /// One of these strings.
    OneOf(&'static [&'static str]),
}

/// Whether a key is required, and its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The file is rejected.
    Required,
    /// The key has this value, in TOML.
    Default(&'static str),
    /// Text: what happens is not a value of the key.
    Optional(&'static str),
}

/// A table of keys.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Name of the workload or network kind.
    pub name: &'static str,
    /// Purpose.
    pub about: &'static str,
    /// Its keys.
    pub keys: &'static [KeyInfo],
}

impl KeyInfo {
    pub(crate) const fn required(
        name: &'static str,
        value: Value,
        example: &'static str,
        meaning: &'static str,
    ) -> KeyInfo {
        KeyInfo { name, value, presence: Presence::Required, example, meaning }
    }

    pub(crate) const fn with_default(
        name: &'static str,
        value: Value,
        default: &'static str,
        meaning: &'static str,
    ) -> KeyInfo {
        KeyInfo { name, value, presence: Presence::Default(default), example: default, meaning }
    }

    pub(crate) const fn optional(
        name: &'static str,
        value: Value,
        example: &'static str,
        without: &'static str,
        meaning: &'static str,
    ) -> KeyInfo {
        KeyInfo { name, value, presence: Presence::Optional(without), example, meaning }
    }
}

impl Value {
    /// Whether a value of the key is in its range.
    ///
    /// # Errors
    /// The value, and what is allowed.
    pub fn check(&self, name: &str, number: u64) -> Result<(), String> {
        match *self {
            Value::Number { least, .. } if number < least => {
                Err(format!("{name} is {number}; allowed: at least {least}"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Words(words) => f.write_str(words),
            Value::Number { unit, least: 0 } => f.write_str(unit),
            Value::Number { unit: "", least } => write!(f, "at least {least}"),
            Value::Number { unit, least } => write!(f, "{unit}, at least {least}"),
            Value::OneOf(values) => {
                let quoted: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                f.write_str(&quoted.join(", "))
            }
        }
    }
}
