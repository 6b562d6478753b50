//! Noise: the differences of a point's numbers and verdict between seeds (the random draws of a world).
//!
//! A point (a published statement) is judged by medians over seeds. Here each seed is judged alone, by the same rule.
//! The number of seeds that agree and the interval of the numbers are added to the point.

use super::evidence::Evidence;
use super::points::{Experiment, Point, Verdict};

/// Adds the number of seeds with the same verdict, and the interval of the numbers, to each point. Does
/// nothing with one seed.
pub fn compare(experiment: &Experiment, evidence: &Evidence<'_>, points: &mut [Point]) {
    let seeds = evidence.seeds();
    if seeds.len() < 2 {
        return;
    }
    let alone: Vec<Vec<Point>> =
        seeds.iter().map(|seed| (experiment.points)(&evidence.of_seed(*seed))).collect();
    for point in points {
        let same = |other: &&Point| other.id == point.id && other.text == point.text;
        let others: Vec<&Point> = alone.iter().filter_map(|points| points.iter().find(same)).collect();
        let others: Vec<&Point> =
            others.into_iter().filter(|it| it.verdict != Verdict::NotEvaluated).collect();
        // A point with worlds of only one seed has no interval.
        if others.len() < 2 {
            continue;
        }
        let agree = others.iter().filter(|it| it.verdict.holds() == point.verdict.holds()).count();
        point.seeds = (point.verdict != Verdict::NotPublished).then_some((agree, others.len()));
        point.over_seeds = interval(&others.iter().map(|it| it.ours.as_str()).collect::<Vec<_>>());
    }
}

/// Combines texts that differ in numbers only: the result has the smallest and largest of each number. `None`
/// if they differ in more.
fn interval(texts: &[&str]) -> Option<String> {
    let parts: Vec<Vec<&str>> = texts.iter().map(|text| pieces(text)).collect();
    let first = parts.first()?;
    if parts.iter().any(|other| other.len() != first.len()) {
        return None;
    }
    let mut text = String::new();
    for place in 0..first.len() {
        let values: Option<Vec<f64>> = parts.iter().map(|part| part[place].parse().ok()).collect();
        match values {
            _ if parts.iter().all(|part| part[place] == first[place]) => text.push_str(first[place]),
            None => return None,
            Some(_) => {
                let number = |part: &&Vec<&str>| part[place].parse::<f64>().unwrap_or(0.0);
                let order = |one: &&Vec<&str>, other: &&Vec<&str>| number(one).total_cmp(&number(other));
                let (least, most) = (parts.iter().min_by(order)?, parts.iter().max_by(order)?);
                text.push_str(&format!("{} to {}", least[place], most[place]));
            }
        }
    }
    Some(text)
}

/// Splits a text into numbers and the text between them.
fn pieces(text: &str) -> Vec<&str> {
    let is_number = |character: char| character.is_ascii_digit() || character == '.' || character == '-';
    let mut pieces = Vec::new();
    let mut begin = 0;
    let mut last = None;
    for (place, character) in text.char_indices() {
        let kind = is_number(character);
        if last.is_some_and(|last| last != kind) {
            pieces.push(&text[begin..place]);
            begin = place;
        }
        last = Some(kind);
    }
    pieces.push(&text[begin..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_an_interval() {
        for (texts, expected) in [
            (
                &["13.5 % dynamic, 9 static", "-1.0 % dynamic, 9 static"][..],
                Some("-1.0 to 13.5 % dynamic, 9 static"),
            ),
            (&["40 slots", "38 to 40 slots"], None),
            (&["a", "a"], Some("a")),
            (&[], None),
        ] {
            assert_eq!(interval(texts).as_deref(), expected);
        }
    }
}
