//! The name of the flow-control scheme of an endpoint ([`SchemeName`]), as segments and addresses have it.
//!
//! Endpoints connect only if theirs is equal, because one side would wait for credit that the other side does not
//! return. A link does not know what a scheme does.

use core::fmt::{self, Write};
use weir_proto::Scheme;

/// Length of the name in a segment. Unit: bytes.
const NAME_BYTES: usize = 24;

/// The name of a scheme, filled up with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemeName(pub(crate) [u8; NAME_BYTES]);

impl SchemeName {
    /// The name as a program writes it, for example `static-connection`. Characters behind the 24th are cut.
    pub const fn new(name: &str) -> SchemeName {
        let (mut bytes, name, mut at) = ([0; NAME_BYTES], name.as_bytes(), 0);
        while at < NAME_BYTES && at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        SchemeName(bytes)
    }

    /// Its number in addresses: its place among [`Scheme::NAMES`], from 1 on. 0: none of them.
    pub(crate) fn number(&self) -> u8 {
        let place = Scheme::NAMES.iter().position(|name| SchemeName::new(name) == *self);
        place.map_or(0, |place| place as u8 + 1)
    }

    /// The name with this number.
    pub(crate) fn of_number(number: u8) -> SchemeName {
        let place = usize::from(number).wrapping_sub(1);
        SchemeName::new(Scheme::NAMES.get(place).copied().unwrap_or("unknown"))
    }
}

impl fmt::Display for SchemeName {
    /// A peer wrote the bytes, so only letters and hyphens are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        let shown =
            |&byte: &u8| if byte.is_ascii_lowercase() || byte == b'-' { char::from(byte) } else { '?' };
        self.0[..end].iter().try_for_each(|byte| f.write_char(shown(byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_number_of_its_own() {
        for (place, name) in Scheme::NAMES.iter().enumerate() {
            let number = SchemeName::new(name).number();
            assert_eq!(usize::from(number), place + 1);
            assert_eq!(SchemeName::of_number(number).to_string(), *name);
        }
        assert_eq!(SchemeName::new("statics").number(), 0);
        assert_eq!([0, 8, 255].map(|number| SchemeName::of_number(number).to_string()), ["unknown"; 3]);
    }

    #[test]
    fn other_bytes_of_a_name_are_not_shown() {
        let mut name = SchemeName::new("static");
        name.0[2] = 0x1b;
        assert_eq!(name.to_string(), "st?tic");
    }
}
