//! The points of a curve, and questions about them.

/// Points of a curve, in the order of x.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// The value at `x`.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.0.iter().find(|point| point.0 == x).map(|point| point.1)
    }

    /// Whether the curve has no points.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Values from `from` to `to`, both included.
    pub fn between(&self, from: f64, to: f64) -> Vec<f64> {
        self.0.iter().filter(|point| (from..=to).contains(&point.0)).map(|point| point.1).collect()
    }

    /// The first `x` from which on all values satisfy `holds`.
    pub fn holds_from(&self, holds: impl Fn(f64) -> bool) -> Option<f64> {
        let last_bad = self.0.iter().rposition(|point| !holds(point.1));
        self.0.get(last_bad.map_or(0, |index| index + 1)).map(|point| point.0)
    }
}
