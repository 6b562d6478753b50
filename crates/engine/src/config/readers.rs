//! Readers of single settings: they parse a value and check it against what [`SETTINGS`] says is allowed.
//!
//! `given` maps variables to values. A setting without a value is `None`. This file does not know defaults, except those of
//! the scheme, whose parts make one value.

use std::num::{IntErrorKind, NonZeroU32, ParseIntError};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use weir_proto::{Growth, Scheme};

use super::list::*;
use super::{LinkChoice, SettingError, Settings, Thresholds, ThresholdsError};

/// The selected scheme. Checks the settings of all schemes, also of those that are not selected.
pub(super) fn read_scheme(given: &impl Fn(&str) -> Option<String>) -> Result<Scheme, SettingError> {
    let piggyback = read_word(given, PIGGYBACK, &SWITCH)?.unwrap_or(true);
    let rnr_timer_us = read_number(given, RNR_TIMER_US, 1..=655_360u32)?.unwrap_or(10);
    let rnr_retries = read_number(given, RNR_RETRIES, 0..=7u8)?.unwrap_or(7);
    let ecm_threshold = read_number(given, ECM_THRESHOLD, 0..=65535)?.and_then(NonZeroU32::new);
    let growth = match given(ADAPTIVE_GROWTH) {
        None => Growth::Exponential,
        Some(word) => growth_of(&word).ok_or_else(|| not_allowed(ADAPTIVE_GROWTH, word))?,
    };
    let words = [
        Scheme::Unlimited,
        Scheme::Hardware { rnr_timer_ns: u64::from(rnr_timer_us) * 1000, rnr_retries },
        Scheme::Static { piggyback },
        Scheme::StaticConnection { ecm_threshold },
        Scheme::AdaptiveBacklog { growth, ecm_threshold },
        Scheme::Dynamic { piggyback },
        Scheme::Demand,
    ]
    .map(|scheme| (scheme.name(), scheme));
    Ok(read_word(given, FLOW, &words)?.unwrap_or(Settings::default().scheme))
}

pub(super) fn growth_of(word: &str) -> Option<Growth> {
    if word == "exponential" {
        return Some(Growth::Exponential);
    }
    let slots = word.strip_prefix("linear:")?.parse().ok().filter(|slots| (1..=65535).contains(slots))?;
    Some(Growth::Linear { slots: NonZeroU32::new(slots)? })
}

pub(super) fn growth_word(growth: Growth) -> String {
    match growth {
        Growth::Linear { slots } => format!("linear:{slots}"),
        Growth::Exponential => String::from("exponential"),
    }
}

/// Rejects `value` if it is greater than `most`, unless that is 0.
pub(super) fn check_not_above(
    (variable, value): (&'static str, u32),
    (other, most): (&'static str, u32),
) -> Result<(), SettingError> {
    if most > 0 && value > most {
        return Err(SettingError::ExceedsOther { variable, value, other, most });
    }
    Ok(())
}

/// Off and on.
pub(super) const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

fn not_allowed(variable: &str, value: String) -> SettingError {
    let setting = setting(variable);
    SettingError::NotAllowed { variable: setting.variable, value, allowed: setting.allowed }
}

fn no_number(variable: &str, value: String) -> SettingError {
    let setting = setting(variable);
    SettingError::NoNumber { variable: setting.variable, value, allowed: setting.allowed }
}

fn setting(variable: &str) -> &'static SettingInfo {
    SETTINGS.iter().find(|setting| setting.variable == variable).expect("variable is in SETTINGS")
}

pub(super) fn read_word<T: Copy>(
    given: &impl Fn(&str) -> Option<String>,
    variable: &str,
    words: &[(&str, T)],
) -> Result<Option<T>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    match words.iter().find(|(word, _)| *word == value) {
        Some(&(_, meaning)) => Ok(Some(meaning)),
        None => Err(not_allowed(variable, value)),
    }
}

pub(super) fn read_number<T: FromStr<Err = ParseIntError> + PartialOrd>(
    given: &impl Fn(&str) -> Option<String>,
    variable: &str,
    range: RangeInclusive<T>,
) -> Result<Option<T>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    match value.parse::<T>() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        Err(error) if *error.kind() == IntErrorKind::InvalidDigit && !value.starts_with('-') => {
            Err(no_number(variable, value))
        }
        _ => Err(not_allowed(variable, value)),
    }
}

pub(super) fn read_links(
    given: &impl Fn(&str) -> Option<String>,
) -> Result<Option<LinkChoice>, SettingError> {
    let Some(value) = given(LINK) else { return Ok(None) };
    LinkChoice::parse(&value).map(Some).ok_or_else(|| not_allowed(LINK, value))
}

pub(super) fn read_thresholds(
    given: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Thresholds>, SettingError> {
    let Some(value) = given(ADMIT_THRESHOLDS) else { return Ok(None) };
    let SettingInfo { variable, allowed, .. } = *setting(ADMIT_THRESHOLDS);
    let refused = |wrong: ThresholdsError| SettingError::Part {
        variable,
        value: value.clone(),
        wrong: wrong.to_string(),
        allowed,
    };
    value.parse().map(Some).map_err(refused)
}

pub(super) fn read_ports(
    given: &impl Fn(&str) -> Option<String>,
) -> Result<Option<RangeInclusive<u16>>, SettingError> {
    let Some(value) = given(PORTS) else { return Ok(None) };
    let ports = value.split_once('-').and_then(|(low, high)| {
        let (low, high) = (low.parse().ok()?, high.parse().ok()?);
        (0 < low && low <= high).then_some(low..=high)
    });
    ports.map(Some).ok_or_else(|| not_allowed(PORTS, value))
}

pub(super) fn read_directory(
    given: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
) -> Result<Option<PathBuf>, SettingError> {
    let Some(value) = given(variable) else { return Ok(None) };
    let path = PathBuf::from(&value);
    if path.is_dir() { Ok(Some(path)) } else { Err(SettingError::NoDirectory { variable, value }) }
}
