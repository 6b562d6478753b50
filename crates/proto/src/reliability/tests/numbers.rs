//! Properties of numbers, sets of positions and headers, against plain ones.

use alloc::collections::BTreeSet;

use super::super::sequence::{PositionSet, expand};
use super::*;
use crate::wire::LinkExtension;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_number_near_the_expected_one_survives_the_wire(near in 1u64 << 32..1 << 63, step in -(1i64 << 31)..1 << 31) {
        let number = near.wrapping_add_signed(step);
        prop_assert_eq!(expand(number as u32, near), number);
    }

    #[test]
    fn a_position_set_is_a_set(
        start in 1u64 << 32..(1 << 32) + 500,
        window_words in 0u32..3,
        steps in proptest::collection::vec((any::<bool>(), 0u64..256), 0..80),
    ) {
        let window = 64 << window_words;
        let mut set = PositionSet::new(window);
        let mut plain = BTreeSet::new();
        for (adds, distance) in steps {
            let position = start + distance % u64::from(window);
            prop_assert_eq!(set.contains(position), plain.contains(&position));
            if !adds {
                prop_assert_eq!(set.remove(position), plain.remove(&position));
            } else if plain.insert(position) {
                set.insert(position);
            }
            prop_assert_eq!(set.first_from(start), plain.first().copied());
            prop_assert_eq!(set.count() as usize, plain.len());
        }
    }

    #[test]
    fn a_header_survives_the_extension(
        (epoch, destination_epoch, marks) in any::<(u16, u16, u16)>(),
        (number, acknowledged, latest, arrived) in any::<(u32, u32, u32, u64)>(),
        (asks, delay_doublings) in (any::<bool>(), 0_u8..8),
    ) {
        let header = Header { epoch, destination_epoch, number, acknowledged, latest, arrived, marks, asks, delay_doublings };
        prop_assert_eq!(Header::from(LinkExtension::from(header)), header);
    }
}
