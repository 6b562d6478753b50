//! Parses the lines `word key=value ...` in which the programs of benchmarks print their results.

/// One result line.
#[derive(Clone, Copy, Debug)]
pub struct ResultLine<'a> {
    word: &'a str,
    rest: &'a str,
}

/// The first word and the pairs `key=value` of every line that has such a pair.
pub fn pairs(output: &str) -> impl Iterator<Item = (&str, Vec<(&str, &str)>)> {
    output.lines().filter_map(|line| {
        let (word, rest) = line.split_once(' ')?;
        let pairs: Vec<_> = rest.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        (!pairs.is_empty()).then_some((word, pairs))
    })
}

impl<'a> ResultLine<'a> {
    /// The first line that begins with `word`; others may have printed too.
    ///
    /// # Errors
    /// One line: there is none.
    pub fn find(output: &'a str, word: &'a str) -> Result<ResultLine<'a>, String> {
        ResultLine::all(output, word).next().ok_or_else(|| String::from("it printed no result"))
    }

    /// All lines that begin with `word`.
    pub fn all(output: &'a str, word: &'a str) -> impl Iterator<Item = ResultLine<'a>> {
        let rest = move |line: &'a str| line.strip_prefix(word)?.strip_prefix(' ');
        output.lines().filter_map(rest).map(move |rest| ResultLine { word, rest })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// One line: it is missing.
    pub fn value(&self, key: &str) -> Result<&'a str, String> {
        let found = self.rest.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.ok_or_else(|| format!("its result has no {key}"))
    }

    /// The value of a key as a number.
    ///
    /// # Errors
    /// One line: it is missing or no number.
    pub fn number(&self, key: &str) -> Result<f64, String> {
        let text = self.value(key)?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("its result has {key}={text}, which is no number"))
    }

    /// The value of a key as a positive number.
    ///
    /// # Errors
    /// As for [`ResultLine::number`].
    pub fn positive(&self, key: &str) -> Result<f64, String> {
        let number = self.number(key)?;
        if number > 0.0 {
            Ok(number)
        } else {
            Err(format!("its result {} has {key}={number}, which is not above 0", self.word))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str =
        "libfabric says hello\nlatency bytes=8 us=0.59\nlatency bytes=64 us=0\nlatencyx us=1\n";

    #[test]
    fn values_are_found_by_key() {
        let line = ResultLine::find(OUTPUT, "latency").unwrap();
        assert_eq!((line.value("bytes"), line.number("us")), (Ok("8"), Ok(0.59)));
        assert_eq!(line.number("u").unwrap_err(), "its result has no u");
        assert_eq!(ResultLine::all(OUTPUT, "latency").count(), 2);
        assert_eq!(ResultLine::find(OUTPUT, "rate").unwrap_err(), "it printed no result");
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        let line = ResultLine::all(OUTPUT, "latency").nth(1).unwrap();
        assert_eq!(line.positive("us").unwrap_err(), "its result latency has us=0, which is not above 0");
        let line = ResultLine::find("a x=nan y=z", "a").unwrap();
        assert_eq!(line.number("x").unwrap_err(), "its result has x=nan, which is no number");
        assert_eq!(line.number("y").unwrap_err(), "its result has y=z, which is no number");
    }
}
