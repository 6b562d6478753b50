//! Evidence for the verdicts about published statements: selects records by the settings of worlds, and computes
//! overheads and curves, medians over seeds and means over sizes. It also has the computed floors of all-to-alls. The
//! files of `points` use it. [`First`] is the size from which on a curve satisfies a condition.

use super::floor::{Floor, Work};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use weir_bench::memory::Row;
use weir_bench::statistics::Spread;
pub use weir_output::chart::Curve;
use weir_sim::plan::{Key, Record, SchemeName, Settings, Setup};

/// The records of an experiment.
pub struct Evidence<'a> {
    /// All worlds, with references.
    pub records: Vec<&'a Record>,
    /// Memory of receivers.
    pub memory: &'a [Row],
    /// References by their settings, as text.
    references: HashMap<String, &'a Record>,
    /// The work of all-to-alls, from which their floors follow.
    works: Rc<HashMap<Key, Work>>,
}

fn text_of(settings: &Settings) -> String {
    serde_json::to_string(settings).expect("settings have names for keys")
}

impl<'a> Evidence<'a> {
    /// Evidence from these records.
    pub fn new(records: Vec<&'a Record>, memory: &'a [Row]) -> Evidence<'a> {
        let references = records.iter().filter(|record| record.settings.scheme == SchemeName::Unlimited);
        let references = references.map(|record| (text_of(&record.settings), *record)).collect();
        Evidence { records, memory, references, works: Rc::default() }
    }

    /// The same, with the computed floors of these worlds.
    #[must_use]
    pub fn with_floors<'b>(self, setups: impl Iterator<Item = &'b Setup>) -> Evidence<'a> {
        let works = setups.filter_map(|setup| Some((setup.key(), Work::of(setup)?))).collect();
        Evidence { works: Rc::new(works), ..self }
    }

    /// The same world without flow control.
    pub fn reference(&self, record: &Record) -> Option<&'a Record> {
        self.references.get(&text_of(&record.settings.reference())).copied()
    }

    /// Time divided by that of the reference, minus one. Unit: percent.
    pub fn overhead(&self, record: &Record) -> Option<f64> {
        Some(100.0 * (record.time_ns / self.reference(record)?.time_ns - 1.0))
    }

    /// The computed floor of the overhead; `None` if the world is not an all-to-all for which one can be computed.
    pub fn floor(&self, record: &Record) -> Option<Floor> {
        Some(self.works.get(&record.key)?.floor(self.reference(record)?.time_ns))
    }

    /// `y` over `x` of the worlds that `which` selects; the median where several have the same `x` (seeds).
    pub fn curve(
        &self,
        which: impl Fn(&Settings) -> bool,
        x: impl Fn(&Settings) -> Option<f64>,
        y: impl Fn(&Record) -> Option<f64>,
    ) -> Curve {
        let mut samples: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
        for record in self.records.iter().filter(|record| which(&record.settings)) {
            let (Some(x), Some(y)) = (x(&record.settings), y(record)) else { continue };
            // Bits of positive numbers have the same order as the numbers.
            samples.entry(x.abs().to_bits()).or_insert((x, Vec::new())).1.push(y);
        }
        Curve(samples.into_values().filter_map(|(x, values)| Some((x, median(&values)?))).collect())
    }

    /// Overhead over slots per peer. Unit: percent.
    pub fn overhead_by_slots(&self, which: impl Fn(&Settings) -> bool) -> Curve {
        self.curve(which, slots, |record| self.overhead(record))
    }

    /// The seeds of its worlds, in order.
    pub fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<u64> = self.records.iter().map(|record| record.settings.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// The worlds of one seed.
    pub fn of_seed(&self, seed: u64) -> Evidence<'a> {
        let records = self.records.iter().copied().filter(|record| record.settings.seed == seed);
        Evidence { works: Rc::clone(&self.works), ..Evidence::new(records.collect(), self.memory) }
    }

    /// All values of `of`, each once, in order.
    pub fn values<T: Ord>(&self, of: impl Fn(&Settings) -> T) -> Vec<T> {
        let credited = self.records.iter().filter(|record| record.settings.scheme != SchemeName::Unlimited);
        let mut values: Vec<T> = credited.map(|record| of(&record.settings)).collect();
        values.sort();
        values.dedup();
        values
    }

    /// The largest number of ranks that ran.
    pub fn max_ranks(&self) -> u32 {
        self.values(|settings| settings.ranks).last().copied().unwrap_or(0)
    }
}

/// The first size from which on something holds, as an interval. It lies above the last size at which it did
/// not hold, up to the first at which it held. Both ends are infinite if no size ran there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct First {
    /// Lower end.
    pub least: f64,
    /// Upper end; this size ran.
    pub most: f64,
}

impl First {
    /// The first size of a curve from which on `holds` is true.
    pub fn of(curve: &Curve, holds: impl Fn(f64) -> bool) -> First {
        let most = curve.holds_from(holds).unwrap_or(f64::INFINITY);
        let before = curve.0.iter().rev().find(|(slots, _)| *slots < most);
        First { least: before.map_or(f64::NEG_INFINITY, |(slots, _)| slots + 1.0), most }
    }

    /// Whether the size lies in a range, ends included. `None` if only a part of the interval does.
    pub fn is_within(self, from: f64, to: f64) -> Option<bool> {
        if from <= self.least && self.most <= to {
            return Some(true);
        }
        (self.most < from || to < self.least).then_some(false)
    }

    /// The interval as text.
    pub fn words(self) -> String {
        match self {
            First { least, most } if least == most => format!("{most} slots"),
            First { least, most: f64::INFINITY } => format!("not up to {} slots", least - 1.0),
            First { least: f64::NEG_INFINITY, most } => format!("at most {most} slots"),
            First { least, most } => format!("{least} to {most} slots, of which {most} were run"),
        }
    }
}

/// Slots per peer, as `x` of [`Evidence::curve`].
pub fn slots(settings: &Settings) -> Option<f64> {
    Some(settings.slots_per_peer.into())
}

/// Share of messages that waited for credit. A message that waited several times counts several times; the
/// share is at most 100. Unit: percent.
pub fn delayed(record: &Record) -> Option<f64> {
    Some((100.0 * record.stalls as f64 / record.messages.max(1) as f64).min(100.0))
}

/// The median: the middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// The mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_finds_where_a_condition_begins_to_hold() {
        let curve = Curve(vec![(1.0, 9.0), (2.0, 3.0), (3.0, 6.0), (4.0, 2.0), (5.0, 1.0)]);
        assert_eq!(curve.holds_from(|value| value < 4.0), Some(4.0));
        assert_eq!(curve.holds_from(|value| value < 0.5), None);
        assert_eq!((curve.at(3.0), curve.at(3.5)), (Some(6.0), None));
        assert_eq!(curve.between(2.0, 4.0), [3.0, 6.0, 2.0]);
        assert_eq!(
            (median(&[3.0, 1.0, 2.0]), median(&[1.0, 2.0]), median(&[])),
            (Some(2.0), Some(1.5), None)
        );
        assert_eq!((mean(&[1.0, 3.0]), mean(&[])), (Some(2.0), None));
    }

    /// Sizes that did not run may be on either side.
    #[test]
    fn a_first_size_is_bounded_by_the_simulated_sizes() {
        let curve = Curve(vec![(36.0, 9.0), (37.0, 9.0), (40.0, 5.0), (41.0, 5.0), (80.0, 1.0)]);
        let first = |limit| First::of(&curve, |value| value < limit);
        for (limit, words, within_38_to_40, within_41_to_90) in [
            (6.0, "38 to 40 slots, of which 40 were run", Some(true), Some(false)),
            (2.0, "42 to 80 slots, of which 80 were run", Some(false), Some(true)),
            (1.0, "not up to 80 slots", Some(false), None),
            (10.0, "at most 36 slots", Some(false), Some(false)),
        ] {
            assert_eq!(first(limit).words(), words);
            assert_eq!(first(limit).is_within(38.0, 40.0), within_38_to_40, "{words}");
            assert_eq!(first(limit).is_within(41.0, 90.0), within_41_to_90, "{words}");
        }
        assert_eq!(first(6.0).is_within(39.0, 41.0), None, "38 is not among them");
        let dense =
            Curve((30..=80).map(|slots| (f64::from(slots), f64::from(u32::from(slots < 50)))).collect());
        assert_eq!(First::of(&dense, |value| value < 0.5).words(), "50 slots");
    }
}
