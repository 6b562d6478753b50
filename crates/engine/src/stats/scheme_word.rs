//! The flow-control scheme as a word of a counter page.

use std::num::NonZeroU32;

use weir_proto::{Growth, Scheme};

/// A scheme as a word: its number in the lowest 8 bits, its parameters above.
pub(super) fn scheme_id(scheme: Scheme) -> u64 {
    let number = |slots: Option<NonZeroU32>| u64::from(slots.map_or(0, NonZeroU32::get).min(0xffff));
    match scheme {
        Scheme::Unlimited => 0,
        Scheme::Static { piggyback: false } => 1,
        Scheme::Static { piggyback: true } => 2,
        Scheme::Hardware { rnr_timer_ns, rnr_retries } => {
            3 | u64::from(rnr_retries) << 8 | (rnr_timer_ns / 1000) << 16
        }
        Scheme::StaticConnection { ecm_threshold } => 4 | number(ecm_threshold) << 16,
        Scheme::AdaptiveBacklog { growth, ecm_threshold } => {
            let linear = match growth {
                Growth::Linear { slots } => Some(slots),
                Growth::Exponential => None,
            };
            5 | number(ecm_threshold) << 16 | number(linear) << 32
        }
        Scheme::Dynamic { piggyback: false } => 6,
        Scheme::Dynamic { piggyback: true } => 7,
        Scheme::Demand => 8,
    }
}

/// The scheme of a word. `None`: this version does not know it.
pub(super) fn scheme_of(id: u64) -> Option<Scheme> {
    let number = |shift: u32| NonZeroU32::new((id >> shift) as u32 & 0xffff);
    let ecm_threshold = number(16);
    let scheme = match id & 0xff {
        0 => Scheme::Unlimited,
        1 => Scheme::Static { piggyback: false },
        2 => Scheme::Static { piggyback: true },
        3 => Scheme::Hardware {
            rnr_timer_ns: u64::from((id >> 16) as u32).saturating_mul(1000),
            rnr_retries: (id >> 8) as u8,
        },
        4 => Scheme::StaticConnection { ecm_threshold },
        5 => {
            let growth = number(32).map_or(Growth::Exponential, |slots| Growth::Linear { slots });
            Scheme::AdaptiveBacklog { growth, ecm_threshold }
        }
        6 => Scheme::Dynamic { piggyback: false },
        7 => Scheme::Dynamic { piggyback: true },
        8 => Scheme::Demand,
        _ => return None,
    };
    // Bits that this version does not know may mean another scheme to another version.
    (scheme_id(scheme) == id).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_numbers_survive_encoding() {
        let slots = NonZeroU32::new;
        let adaptive = |growth| Scheme::AdaptiveBacklog { growth, ecm_threshold: slots(9) };
        let schemes = [
            Scheme::Unlimited,
            Scheme::Static { piggyback: false },
            Scheme::Static { piggyback: true },
            Scheme::Hardware { rnr_timer_ns: 655_360_000, rnr_retries: 7 },
            Scheme::Hardware { rnr_timer_ns: 1000, rnr_retries: 0 },
            Scheme::StaticConnection { ecm_threshold: None },
            Scheme::StaticConnection { ecm_threshold: slots(65535) },
            adaptive(Growth::Exponential),
            adaptive(Growth::Linear { slots: slots(65535).unwrap() }),
            Scheme::Dynamic { piggyback: false },
            Scheme::Dynamic { piggyback: true },
            Scheme::Demand,
        ];
        for scheme in schemes {
            assert_eq!(scheme_of(scheme_id(scheme)), Some(scheme));
        }
        assert_eq!([9, 1 << 8, 4 | 1 << 40].map(scheme_of), [None; 3]);
    }
}
