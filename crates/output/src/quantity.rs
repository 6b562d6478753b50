//! Numbers with units for texts (`16.5 KiB`, `1.2 us`). Records get plain numbers.

use indicatif::HumanCount;
use unit_prefix::NumberPrefix;

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Bytes with a binary unit: `64 B`, `16.5 KiB`.
pub fn bytes(number: u64) -> String {
    match NumberPrefix::binary(number as f64) {
        NumberPrefix::Standalone(_) => format!("{number} B"),
        NumberPrefix::Prefixed(prefix, value) => format!("{} {prefix}B", three_digits(value)),
    }
}

/// Bytes with the largest binary unit that needs no decimals: `64 KiB`, `3000 B`.
pub fn exact_bytes(number: u64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| number >= 1 << shift && number.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{number} B"), |(shift, unit)| format!("{} {unit}", number >> shift))
}

/// A time given in ns: `0 s`, `830 ns`, `12.3 ms`.
pub fn time_ns(ns: f64) -> String {
    let scales = [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
    if ns == 0.0 {
        return String::from("0 s");
    }
    let (scale, unit) = scales.into_iter().find(|(scale, _)| ns >= *scale).unwrap_or((1.0, "ns"));
    format!("{} {unit}", three_digits(ns / scale))
}

/// A rate per second with a decimal prefix: `2.76 M/s`.
pub fn rate(per_s: f64) -> String {
    match NumberPrefix::decimal(per_s) {
        NumberPrefix::Standalone(value) => format!("{} /s", three_digits(value)),
        NumberPrefix::Prefixed(prefix, value) => format!("{} {prefix}/s", three_digits(value)),
    }
}

/// Three significant digits for numbers from 1 to 999, all digits before the point for larger ones.
pub fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// `1 world`, `2 worlds`.
pub fn several(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_formatted() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 64, 1023, 1024, 16896, 1 << 30].map(bytes),
            ["0 B", "64 B", "1023 B", "1.00 KiB", "16.5 KiB", "1.00 GiB"]
        );
        assert_eq!(
            [8, 2048, 65536, 1 << 20, 3000].map(exact_bytes),
            ["8 B", "2 KiB", "64 KiB", "1 MiB", "3000 B"]
        );
        assert_eq!(
            [0.0, 830.0, 12_340.0, 5e6, 2e9].map(time_ns),
            ["0 s", "830 ns", "12.3 us", "5.00 ms", "2.00 s"]
        );
        assert_eq!([17.0, 2_764_372.0, 417_693.0].map(rate), ["17.0 /s", "2.76 M/s", "418 k/s"]);
        assert_eq!([9.996, 99.96, 0.594].map(three_digits), ["10.0", "100", "0.59"]);
    }
}
