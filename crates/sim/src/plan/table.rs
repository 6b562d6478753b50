//! TOML tables of plans: [`combinations`] makes one table for each combination of listed alternatives, and [`overlay`]
//! lays one table on another. Every value keeps its span in the file, so that later errors can name the line.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A TOML value and its span in the file.
pub type Value<'i> = Spanned<DeValue<'i>>;

/// An error in a part of a file.
#[derive(Debug)]
pub struct SpannedError {
    /// Byte range in the file.
    pub span: Range<usize>,
    /// The error, and what is allowed.
    pub what: String,
}

/// Bound of the combinations of a sweep.
const MAX_COMBINATIONS: usize = 100_000;

/// Lays `over` on `base`: merges tables and replaces all other values. A workload of another name replaces
/// the first one.
pub fn overlay<'i>(base: &mut DeTable<'i>, over: &DeTable<'i>) {
    for (key, value) in over {
        let name: &str = key.get_ref();
        let merged = match (base.remove(name), value.get_ref()) {
            (Some(below), DeValue::Table(above))
                if name != "workload" || is_of_same_kind(below.get_ref(), above) =>
            {
                let span = value.span();
                match below.into_inner() {
                    DeValue::Table(mut below) => {
                        overlay(&mut below, above);
                        Spanned::new(span, DeValue::Table(below))
                    }
                    _ => value.clone(),
                }
            }
            _ => value.clone(),
        };
        base.insert(key.clone(), merged);
    }
}

fn is_of_same_kind(below: &DeValue<'_>, above: &DeTable<'_>) -> bool {
    below.as_table().is_some_and(|below| below.keys().eq(above.keys()))
}

/// One table for each combination of the alternatives in `table`. The last key varies fastest.
///
/// # Errors
/// [`SpannedError`] if a list is empty or there are too many combinations.
pub fn combinations<'i>(table: &DeTable<'i>, span: &Range<usize>) -> Result<Vec<DeTable<'i>>, SpannedError> {
    let mut all = vec![DeTable::new()];
    for (key, value) in table {
        let alternatives = alternatives(value)?;
        if all.len() * alternatives.len() > MAX_COMBINATIONS {
            let what = format!("more than {MAX_COMBINATIONS} combinations; split the sweep");
            return Err(SpannedError { span: span.clone(), what });
        }
        let with = |table: &DeTable<'i>, value: &Value<'i>| {
            let mut table = table.clone();
            table.insert(key.clone(), value.clone());
            table
        };
        all = all.iter().flat_map(|table| alternatives.iter().map(|value| with(table, value))).collect();
    }
    Ok(all)
}

fn alternatives<'i>(value: &Value<'i>) -> Result<Vec<Value<'i>>, SpannedError> {
    match value.get_ref() {
        DeValue::Array(list) if list.is_empty() => {
            let what = String::from("the list is empty; allowed: one value or more");
            Err(SpannedError { span: value.span(), what })
        }
        DeValue::Array(list) => {
            let mut all = Vec::new();
            for element in list.iter() {
                match element.get_ref() {
                    DeValue::Array(_) => all.push(element.clone()), // a value that is a list
                    _ => all.extend(alternatives(element)?),
                }
            }
            Ok(all)
        }
        DeValue::Table(table) => {
            let span = value.span();
            let tables = combinations(table, &span)?;
            Ok(tables.into_iter().map(|table| Spanned::new(span.clone(), DeValue::Table(table))).collect())
        }
        _ => Ok(vec![value.clone()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use toml::de::Deserializer;

    fn read(text: &str) -> Result<Vec<serde_json::Value>, String> {
        let table = DeTable::parse(text).expect("toml");
        let all = combinations(table.get_ref(), &(0..1)).map_err(|fault| fault.what)?;
        let json = |table| {
            let deserializer = Deserializer::from(Spanned::new(0..1, table));
            serde_json::Value::deserialize(deserializer).expect("json")
        };
        Ok(all.into_iter().map(json).collect())
    }

    #[test]
    fn a_list_at_any_depth_expands_to_alternatives() {
        let all = read("a = [1, 2]\nb.c = [\"x\", \"y\"]\nd = [[1, 2]]").expect("combinations");
        let wanted = serde_json::json!([
            {"a": 1, "b": {"c": "x"}, "d": [1, 2]},
            {"a": 1, "b": {"c": "y"}, "d": [1, 2]},
            {"a": 2, "b": {"c": "x"}, "d": [1, 2]},
            {"a": 2, "b": {"c": "y"}, "d": [1, 2]},
        ]);
        assert_eq!(serde_json::Value::from(all), wanted);
        assert!(read("a = []").unwrap_err().contains("empty"));
        let many = (0..400).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        assert!(read(&format!("a = [{many}]\nb = [{many}]")).unwrap_err().contains("100000"));
    }

    #[test]
    fn an_overlay_wins_and_another_workload_replaces_the_first() {
        let parse = |text| DeTable::parse(text).expect("toml").into_inner();
        let mut base = parse("a = 1\nworkload.x = { n = 1, m = 2 }");
        overlay(&mut base, &parse("a = 2\nworkload.x = { n = 3 }"));
        let json = |table: &DeTable<'_>| {
            let deserializer = Deserializer::from(Spanned::new(0..1, table.clone()));
            serde_json::Value::deserialize(deserializer).expect("json")
        };
        assert_eq!(json(&base), serde_json::json!({"a": 2, "workload": {"x": {"n": 3, "m": 2}}}));
        overlay(&mut base, &parse("workload.y = { k = 1 }"));
        assert_eq!(json(&base)["workload"], serde_json::json!({"y": {"k": 1}}));
    }
}
