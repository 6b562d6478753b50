//! The macro that declares the keys of a table of a network file: names, types, ranges, meanings. [`Nanoseconds`] is
//! the type of their times.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use crate::Picoseconds;
use crate::keys::Value;

/// A time in a file. The file states it in ns, with fractions; it is stored in ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanoseconds(pub Picoseconds);

/// The range of a time in a file.
pub const TIME: Value = Value::Words("ns, at most 10^9");

/// Longest time that is allowed. Unit: ns.
const LONGEST_NS: f64 = 1e9;

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Nanoseconds, D::Error> {
        let ns = f64::deserialize(deserializer)?;
        if !(0.0..=LONGEST_NS).contains(&ns) {
            return Err(D::Error::custom(format_args!("the time is {ns:?} ns; allowed: 0 to {LONGEST_NS}")));
        }
        Ok(Nanoseconds((ns * 1000.0).round() as Picoseconds))
    }
}

impl Serialize for Nanoseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1000.0)
    }
}

/// A value that [`Value::check`] can compare with a range.
pub trait Number {
    /// The number in the file's unit; times are checked when they are read.
    fn number(self) -> u64;
}

impl Number for u32 {
    fn number(self) -> u64 {
        self.into()
    }
}

impl Number for u64 {
    fn number(self) -> u64 {
        self
    }
}

impl Number for Nanoseconds {
    fn number(self) -> u64 {
        self.0
    }
}

/// Declares a structure whose fields are the keys of a table. It is read by serde, which refuses other keys. `KEYS`
/// describes them, and `check_ranges` checks their ranges.
macro_rules! keys {
    (
        $(#[$meta:meta])*
        $name:ident {
            $($key:ident: $type:ty = $value:expr, $example:literal, $meaning:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(#[doc = $meaning] pub $key: $type,)*
        }

        impl $name {
            /// Its keys.
            pub const KEYS: &'static [$crate::keys::KeyInfo] =
                &[$($crate::keys::KeyInfo::required(stringify!($key), $value, $example, $meaning),)*];

            /// Checks the range of each key.
            ///
            /// # Errors
            /// The name of a key, and what is wrong with its value.
            pub fn check_ranges(&self) -> Result<(), (&'static str, String)> {
                $(
                    let value: $crate::keys::Value = $value;
                    let number = $crate::network::registry::keys::Number::number(self.$key);
                    value.check(stringify!($key), number).map_err(|what| (stringify!($key), what))?;
                )*
                Ok(())
            }
        }
    };
}
